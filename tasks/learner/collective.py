"""A step on all ranks of the learner: gradients of what a round accepts, or of its records again,
and the update. In a step of several updates the groups are looked at instead, and the gradients
belong to the updates (several_updates).

    round ── Group, ScaleDown ──▶ accumulate_round ─▶ sums on every rank ─▶ update_all
    records of the step ────────▶ replay_gradients ─┘
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from artifacts import layout
from artifacts.records import Group, sampled_versions
from artifacts.store import Store
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.remote import LearnerAtStep, RemoteLearner
from tasks.learner.reports import AccumulateReport, UpdateReport
from tasks.learner.reward_moments import compared_with
from tasks.learner.split import (
    GradientRank,
    Split,
    accumulate_split,
    in_mini_batches,
    one_shot,
    read_split,
    write_split,
)
from tasks.learner.streaming import StreamedAccumulation
from tasks.scheduling.stream_training import ScaleDown


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundToTrain:
    """What training knows of a round before it begins."""

    step: int  # the step it belongs to
    versions: range  # weight versions whose tokens may be trained
    num_groups: int  # groups that it will accept


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated:
    """What the ranks did; the gradients stay with them."""

    ranks: tuple[AccumulateReport, ...]  # by rank; all zero if the step had been updated before
    num_groups_streamed: int = 0  # groups trained before the round was closed


async def accumulate_round(
    learners: Sequence[RemoteLearner],
    stream: AsyncIterator[Group | ScaleDown],
    store: Store,
    planned: RoundToTrain,
    config: LearnerConfig,
) -> Accumulated:
    """Train on a round's accepted groups as far as the gradients, until the stream of them ends;
    learners that a ScaleDown frees begin before that.

    Follows the split of an earlier attempt if there is one, else makes one: as the groups come, or
    of all of them where advantages span the step or it makes several updates. What a lost attempt
    accumulated is dropped.
    """
    ranks = await _fresh_ranks(learners, planned.step)
    checked = _checked(stream, planned)
    split = read_split(store, planned.step)
    if split is not None or config.advantage.spans_step or config.scores_first:
        groups = [item async for item in checked if isinstance(item, Group)]
        if split is None:
            split = _split_of(groups, len(ranks), planned.step, config)
            await asyncio.to_thread(write_split, store, planned.step, split)
        moments = compared_with(groups, store, planned.step, config)
        return Accumulated(ranks=await accumulate_split(ranks, groups, split, moments))
    places = {learner.name: rank for rank, learner in enumerate(learners)}

    async def record(made: Split) -> None:
        await asyncio.to_thread(write_split, store, planned.step, made)

    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(
            ranks,
            tasks,
            planned.num_groups,
            config.max_tokens_per_microbatch,
            config.flat_groups_cost,
        )
        async for item in checked:
            if isinstance(item, ScaleDown):
                for name in item.learners:
                    accumulation.free(places[name])
            else:
                await accumulation.offer([item])
        reports = await accumulation.finish(record)
    return Accumulated(ranks=reports, num_groups_streamed=accumulation.num_streamed)


async def _checked(
    stream: AsyncIterator[Group | ScaleDown], planned: RoundToTrain
) -> AsyncIterator[Group | ScaleDown]:
    """The stream, its groups checked: the one way into training but for a replay."""
    async for item in stream:
        if isinstance(item, Group):
            _check_versions(item, planned)
        yield item


def _check_versions(group: Group, planned: RoundToTrain) -> None:
    """ValueError for a token that weights sampled which the round does not allow."""
    for response in group.responses:
        found = {span.version for span in sampled_versions(response.generated)}
        if not found <= set(planned.versions):
            step, name = planned.step, response.generated.response_id
            raise ValueError(
                f"step {step} must train tokens of weight versions {[*planned.versions]} alone, "
                f"response {name} has versions {sorted(found)}; delete "
                f"{layout.round_file(step)} and {layout.split_file(step)} in the run's folder, "
                "then resume: it is made again"
            )


async def replay_gradients(
    learners: Sequence[RemoteLearner],
    groups: Sequence[Group],
    store: Store,
    step: int,
    config: LearnerConfig,
) -> None:
    """The gradients of a recorded step again, bit by bit: every rank gets what it got then, call by
    call."""
    ranks = await _fresh_ranks(learners, step)
    split = read_split(store, step) or _split_of(groups, len(ranks), step, config)
    moments = compared_with(groups, store, step, config)
    await accumulate_split(ranks, groups, split, moments)


def _split_of(groups: Sequence[Group], num_ranks: int, step: int, config: LearnerConfig) -> Split:
    """How all groups of a step are dealt at once."""
    if not config.scores_first:
        return one_shot(groups, num_ranks, config.flat_groups_cost)
    return in_mini_batches(groups, step, config.mini_batches, num_ranks, config.flat_groups_cost)


async def _fresh_ranks(learners: Sequence[RemoteLearner], step: int) -> list[GradientRank]:
    """The ranks, with nothing accumulated for this step."""
    await asyncio.gather(*(learner.discard() for learner in learners))
    return [LearnerAtStep(learner, step) for learner in learners]


async def update_all(learners: Sequence[RemoteLearner], step: int) -> list[UpdateReport]:
    """The step's updates on every rank together; every rank reports the same numbers."""
    return list(await asyncio.gather(*(learner.update(step) for learner in learners)))
