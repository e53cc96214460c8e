"""A training step on all ranks of the learner: the gradients of a round's accepted groups, or of a
recorded step's groups, then the update.

    round ── Group, ScaleDown ──▶ accumulate_round ─▶ sums on every rank ─▶ update_all
    records of the step ────────▶ replay_gradients ─┘

In a step of several updates the groups are only scored here (`several_updates`). Advantages that
look at earlier steps read the moments of their rewards from disk, so that a replay has the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict

from artifacts import layout
from artifacts.journal import PLAY_AGAIN
from artifacts.records import Group, sampled_versions
from artifacts.store import Store
from tasks.learner.advantage import Moments, ReinforcePlusPlusAdvantage
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.remote import LearnerAtStep, RemoteLearner
from tasks.learner.reports import AccumulateReport, GradientReport, UpdateReport
from tasks.learner.samples import moments_of
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
from tasks.scheduling.stream_training import AllAccepted, ScaleDown


async def accumulate_round(
    learners: Sequence[RemoteLearner],
    stream: AsyncIterator[Group | ScaleDown | AllAccepted],
    store: Store,
    config: LearnerConfig,
    *,
    step: int,
    versions: range,
    num_groups: int,
) -> GradientReport:
    """Accumulate the gradients of a round's accepted groups until their stream ends, when the round
    is recorded; ranks that a ScaleDown frees begin while the round still runs, all of them with
    AllAccepted. Drops the sums of a lost attempt, and follows its recorded split. Else makes the
    split as the groups come, or from all groups at the end where advantages span the step or the
    step scores first; records it after the round, and before it returns. versions: weight versions
    whose tokens may be trained. num_groups: groups that the round will accept."""
    ranks = await _fresh_ranks(learners, step, config)
    checked = _checked(stream, step, versions)
    split = read_split(store, step)
    if split is not None or config.advantage.spans_step or config.scores_first:
        groups = [item async for item in checked if isinstance(item, Group)]
        if split is None:
            split = _split_of(groups, len(ranks), step, config)
            await asyncio.to_thread(write_split, store, step, split)
        moments = baseline_moments(groups, store, step, config)
        return GradientReport(ranks=await accumulate_split(ranks, groups, split, moments))
    places = {learner.name: rank for rank, learner in enumerate(learners)}

    is_recorded = asyncio.Event()  # the round, which its split must not precede

    async def record(made: Split) -> None:
        await is_recorded.wait()
        await asyncio.to_thread(write_split, store, step, made)

    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(
            ranks, tasks, num_groups, config.max_tokens_per_microbatch, config.flat_groups_cost
        )
        finishing: asyncio.Task[tuple[AccumulateReport, ...]] | None = None
        async for item in checked:
            if isinstance(item, ScaleDown):
                for name in item.learners:
                    accumulation.free(places[name])
            elif isinstance(item, AllAccepted):
                finishing = tasks.create_task(accumulation.finish(record))
            else:
                await accumulation.offer([item])
        is_recorded.set()
        reports = await (finishing or accumulation.finish(record))
    return GradientReport(ranks=reports, num_groups_streamed=accumulation.num_streamed)


async def _checked(
    stream: AsyncIterator[Group | ScaleDown | AllAccepted], step: int, versions: range
) -> AsyncIterator[Group | ScaleDown | AllAccepted]:
    """The stream with its groups checked; only a replay goes around this check. Raises ValueError
    for a token of a weight version that the round does not allow."""
    async for item in stream:
        for response in item.responses if isinstance(item, Group) else ():
            found = {span.version for span in sampled_versions(response.generated)}
            if found <= set(versions):
                continue
            name = response.generated.response_id
            raise ValueError(
                f"step {step} must train tokens of weight versions {[*versions]} alone, "
                f"response {name} has versions {sorted(found)}; delete "
                f"{layout.step_file(layout.ROUNDS, step)} and"
                f" {layout.step_file(layout.SPLITS, step)} in the run's folder, then resume: it is"
                " made again"
            )
        yield item


async def replay_gradients(
    learners: Sequence[RemoteLearner],
    groups: Sequence[Group],
    store: Store,
    step: int,
    config: LearnerConfig,
) -> None:
    """Accumulate a recorded step's gradients again, bit by bit, by the same calls."""
    ranks = await _fresh_ranks(learners, step, config)
    split = read_split(store, step) or _split_of(groups, len(ranks), step, config)
    moments = baseline_moments(groups, store, step, config)
    await accumulate_split(ranks, groups, split, moments)


def _split_of(groups: Sequence[Group], num_ranks: int, step: int, config: LearnerConfig) -> Split:
    """The split of all groups of a step, when all are known."""
    if not config.scores_first:
        return one_shot(groups, num_ranks, config.flat_groups_cost)
    return in_mini_batches(groups, step, config.mini_batches, num_ranks, config.flat_groups_cost)


async def _fresh_ranks(
    learners: Sequence[RemoteLearner], step: int, config: LearnerConfig
) -> list[GradientRank]:
    """The ranks at this step, with their accumulated sums dropped."""
    await asyncio.gather(*(learner.discard() for learner in learners))
    return [LearnerAtStep(learner, step, config) for learner in learners]


async def update_all(learners: Sequence[RemoteLearner], step: int) -> list[UpdateReport]:
    """Make the step's updates on every rank; returns the reports by rank, which agree."""
    return list(await asyncio.gather(*(learner.update(step) for learner in learners)))


def baseline_moments(
    groups: Sequence[Group], store: Store, step: int, config: LearnerConfig
) -> Moments | None:
    """The moments that a step's rewards are compared with; None for an advantage that needs none.
    Raises FileNotFoundError when the moments of an earlier step in the window are missing."""
    own = moments_of(groups, config.advantage, config.overlong)
    if own is None or not isinstance(config.advantage, ReinforcePlusPlusAdvantage):
        return None
    first = max(1, step - config.advantage.window + 1)
    earlier = [read_moments(store, before) for before in range(first, step)]
    return Moments.together([*earlier, own]) if earlier else own


def record_moments(groups: Sequence[Group], store: Store, step: int, config: LearnerConfig) -> None:
    """Store the moments of a step's rewards, if the advantage of a later step reads them."""
    advantage = config.advantage
    if not isinstance(advantage, ReinforcePlusPlusAdvantage) or advantage.window == 1:
        return
    own = moments_of(groups, advantage, config.overlong)
    if own is not None:
        store.keep(layout.step_file(layout.MOMENTS, step), json.dumps(asdict(own)).encode())


def read_moments(store: Store, step: int) -> Moments:
    """Read the stored moments of a step's rewards. Raises FileNotFoundError without any."""
    name = layout.step_file(layout.MOMENTS, step)
    try:
        return store.parsed(name, lambda data: Moments(**json.loads(data)), PLAY_AGAIN)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"the moments of step {step} must be in {store.url}/{name}, which is not there;"
            f" {PLAY_AGAIN}"
        ) from None
