"""The variants that compare rounds of more than two levels with tail batching on real engines, as
what they change of one preset. Pure.

`multilevel` is the schedule of ours in the simulated experiments (`paper --only beyond`). It trains
every response that it asks for, so that it compares with `unbiased` and `scoring`; `stream` is
RollPacker as published, which trains the first of each group to finish.
"""

from __future__ import annotations

from collections.abc import Mapping

from research.ablations.ablation_variants import COMPARABLE, STREAM, SYNC, TAIL, AblationVariant
from tasks.scheduling.policies.multilevel import LEVEL_ETA

LEVELS: Mapping[str, AblationVariant] = {
    "scoring": AblationVariant(label="sync with rewards per response", over="", settings=SYNC),
    "stream": AblationVariant(
        label="all of RollPacker: nine responses for eight", over="scoring", settings=TAIL + STREAM
    ),
    "unbiased": AblationVariant(
        label="the same with eight for eight",
        over="scoring",
        settings=(*TAIL, *STREAM, "scheduling.response_overprovision=1"),
    ),
    "multilevel": AblationVariant(
        label="three levels of rounds, half more prompts, eight for eight",
        over="scoring",
        settings=(
            "scheduling.kind=multilevel_batching",
            f"scheduling.prompt_overprovision={LEVEL_ETA}",
            *COMPARABLE,
            *STREAM,
            "stream_trainer.rule=devices",
        ),
    ),
}
