"""What `rollflow explain` says of the learner's memory, and of the models that fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flows.config.run_config import RunConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.memory import ModelSize, bytes_per_parameter, model_size, whole_bytes
from tasks.tiny_models.models import present_model


def memory_rows(config: RunConfig, num_ranks: int) -> Iterator[tuple[str, str]]:
    """What the learner holds, as configured and in the other way, and what that means for the model
    if it is here already."""
    found = present_model(config.model, Path(config.keep.model_cache))
    size = None if found is None else model_size(found)
    learner = config.learner
    yield "learner memory", _memory(learner, num_ranks, size)
    if num_ranks > 1 and not learner.has_critic:
        other = "replicated" if learner.parameters == "sharded" else "sharded"
        changed = learner.model_copy(update={"parameters": other})
        yield f"if it were {other}", _memory(changed, num_ranks, size)


def _memory(learner: LearnerConfig, num_ranks: int, size: ModelSize | None) -> str:
    each = bytes_per_parameter(learner, num_ranks)
    room = f"10 GB hold {10 / each:.2g} billion"
    told = f"{learner.parameters} over {num_ranks}: {each:.3g} bytes a parameter on each, {room}"
    if size is None:
        return f"{told}; activations come on top"
    whole = whole_bytes(learner, size)
    moment = f" and {whole / 1e9:.2g} GB for a moment" if whole else ""
    held = each * size.num_parameters / 1e9
    return f"{told}; here {held:.2g} GB{moment}; activations come on top"
