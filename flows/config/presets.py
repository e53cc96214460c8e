"""The registry of presets, which are named configurations. A preset is a function that returns
plain values; its docstring is its line in `explain --list`.

`RunConfig(preset="tiny", num_steps=5)` is the preset `tiny` with one value changed. A variant of a
preset lists only the values that it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flows.config.elastic_presets import elastic, tiny_elastic
from flows.config.game_presets import agent, tiny_agent, tiny_tools
from flows.config.gpu_presets import eight_gpu, one_gpu
from flows.config.overlay import Values
from flows.config.smollm2_presets import (
    overlap,
    rollpacker,
    rollpacker_mixed,
    smollm2,
    smollm2_answers,
    smollm2_async,
    smollm2_in_turn,
    smollm2_judged,
    smollm2_mixed,
    smollm2_sync,
    tinycode,
)
from flows.config.tiny_presets import tiny, tiny_async, tiny_judged, tiny_sync

PRESETS: Mapping[str, Callable[[], Values]] = {
    "smollm2": smollm2,
    "smollm2-answers": smollm2_answers,
    "smollm2-sync": smollm2_sync,
    "smollm2-async": smollm2_async,
    "smollm2-in-turn": smollm2_in_turn,
    "tinycode": tinycode,
    "smollm2-mixed": smollm2_mixed,
    "smollm2-judged": smollm2_judged,
    "elastic": elastic,
    "agent": agent,
    "rollpacker": rollpacker,
    "overlap": overlap,
    "rollpacker-mixed": rollpacker_mixed,
    "tiny": tiny,
    "tiny-sync": tiny_sync,
    "tiny-async": tiny_async,
    "tiny-judged": tiny_judged,
    "tiny-elastic": tiny_elastic,
    "tiny-agent": tiny_agent,
    "tiny-tools": tiny_tools,
    "one-gpu": one_gpu,
    "eight-gpu": eight_gpu,
}


def preset_values(name: str) -> Values:
    """The values of a preset. Raises ValueError, which lists all presets, for an unknown name."""
    if name not in PRESETS:
        raise ValueError(
            f"preset must be one of {', '.join(PRESETS)}, got {name!r}; choose one, or change one"
            " with --set FIELD=VALUE"
        )
    return PRESETS[name]()
