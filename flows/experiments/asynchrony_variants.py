"""The variants that say what asynchrony is worth, as what they change of one preset. Pure.

All score per response, with the preset's own limits of running times, and ask no second wave of
prompts. `sync` has both devices generate and then train; the others' names say where they differ.
`apart` is there for the bound (`overlap_bound`): synchronous, a device each. `SERVED` asks a
service for its verdicts, which keeps none of them waiting for another (`verdict_service`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flows.config.run_config import RunConfig
from flows.experiments.ablation_variants import SYNC, TAIL, Variant
from flows.experiments.overlap_bound import Overlap
from flows.experiments.verdict_service import PORT
from tasks.cluster.devices import device_map

A_DEVICE_EACH = ("cluster.roles=rollout: 0, learner: 1",)
ASYNCHRONOUS = ("scheduling.kind=asynchronous",)
IN_TURN = (*ASYNCHRONOUS, "scheduling.at_update=pause")
SPECULATIVE = ("scheduling.response_overprovision=1.125",)  # as the presets' tail batching has it

ASYNCHRONY: Mapping[str, Variant] = {
    "sync": Variant(label="sync: both devices generate, then train", over="", settings=SYNC),
    "tail": Variant(label="tail batching", over="sync", settings=(*TAIL, *SPECULATIVE)),
    "apart": Variant(
        label="sync, a device each for rollout and learner",
        over="sync",
        settings=(*SYNC, *A_DEVICE_EACH),
    ),
    "async-half": Variant(
        label="asynchronous, α ½, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=0.5", *A_DEVICE_EACH),
    ),
    "async-one": Variant(
        label="asynchronous, α 1, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1", *A_DEVICE_EACH),
    ),
    "async-two": Variant(
        label="asynchronous, α 2, a device each",
        over="apart",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=2", *A_DEVICE_EACH),
    ),
    "async-colocated": Variant(
        label="asynchronous, α 1, both devices do both",
        over="sync",
        settings=(*ASYNCHRONOUS, "scheduling.async_ratio=1"),
    ),
    "in-turn": Variant(
        label="asynchronous, α 1, both devices generate and train in turn",
        over="sync",
        settings=(*IN_TURN, "scheduling.async_ratio=1"),
    ),
    "in-turn-late": Variant(
        label="asynchronous, α 1, in turn, what takes long up to two steps later",
        over="sync",
        settings=(*IN_TURN, "scheduling.async_ratio=1", "scheduling.extra_lag=2"),
    ),
    "tail-async": Variant(
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
SERVED: Mapping[str, Variant] = {
    name: replace(ASYNCHRONY[name], settings=(*ASYNCHRONY[name].settings, *ASKED))
    for name in ("sync", "apart", "async-one", "async-two", "in-turn-late")
}


def overlap_of(config: RunConfig) -> Overlap | None:
    """How far the steps of a run overlap; None if they do not, or if it trains other answers than a
    synchronous one."""
    algebra = config.scheduling.algebra(config.batch)
    shape = algebra.ordinary
    if not algebra.overlaps or shape.launch_per_prompt > shape.accept_per_prompt:
        return None
    placed = device_map(config.cluster)
    is_shared = set(placed["rollout"]) == set(placed["learner"])
    return Overlap(async_ratio=algebra.mean_lag, is_shared=is_shared)
