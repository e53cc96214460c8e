"""The variants that say what asynchrony is worth, as what they change of one preset. Pure.

All score per response, with the preset's own limits of running times, and ask no second wave of
prompts. `sync` has both devices generate and then train, and its records tell what the others could
be at best (`ideal_steps`); the others' names say where they differ. `SERVED` asks a service for its
verdicts, which keeps none of them waiting for another (`verdict_service`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from research.ablations.ablation_variants import SYNC, TAIL, AblationVariant
from research.ablations.verdict_service import PORT

A_DEVICE_EACH = ("cluster.roles=rollout: 0, learner: 1",)
ASYNCHRONOUS = ("scheduling.kind=asynchronous",)
IN_TURN = (*ASYNCHRONOUS, "scheduling.at_update=pause")
SPECULATIVE = ("scheduling.response_overprovision=1.125",)  # as the presets' tail batching has it

ASYNCHRONY: Mapping[str, AblationVariant] = {
    "sync": AblationVariant(
        label="sync: both devices generate, then train", over="", settings=SYNC
    ),
    "tail": AblationVariant(label="tail batching", over="sync", settings=(*TAIL, *SPECULATIVE)),
    "apart": AblationVariant(
        label="sync, a device each for rollout and learner",
        over="sync",
        settings=(*SYNC, *A_DEVICE_EACH),
    ),
    "async-half": AblationVariant(
        label="asynchronous, α ½, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=0.5", *A_DEVICE_EACH),
    ),
    "async-one": AblationVariant(
        label="asynchronous, α 1, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1", *A_DEVICE_EACH),
    ),
    "async-two": AblationVariant(
        label="asynchronous, α 2, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=2", *A_DEVICE_EACH),
    ),
    "async-colocated": AblationVariant(
        label="asynchronous, α 1, both devices do both",
        over="sync",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1"),
    ),
    "in-turn": AblationVariant(
        label="asynchronous, α 1, both devices generate and train in turn",
        over="sync",
        settings=(*IN_TURN, "scheduling.async_ratio=1"),
    ),
    "in-turn-late": AblationVariant(
        label="asynchronous, α 1, in turn, what takes long up to two steps later",
        over="sync",
        settings=(*IN_TURN, "scheduling.async_ratio=1", "scheduling.extra_lag=2"),
    ),
    "tail-async": AblationVariant(
        label="asynchronous, α 1, nine responses for eight",
        over="async-one",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1", *SPECULATIVE, *A_DEVICE_EACH),
    ),
}


ASKED = (
    "rewards.*.kind=service",
    f"rewards.*.url=http://127.0.0.1:{PORT}/?median_s=10",
    "rewards.*.timeout_s=600",
    "reward_workers=256",  # more than there are responses under way: none waits for another
)
SERVED: Mapping[str, AblationVariant] = {
    name: replace(ASYNCHRONY[name], settings=(*ASYNCHRONY[name].settings, *ASKED))
    for name in ("sync", "apart", "async-one", "async-two", "in-turn-late")
}
