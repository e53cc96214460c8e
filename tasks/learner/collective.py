"""A step on all ranks of the learner: gradients of a round's accepted groups, or of its records
again, and the update. In a step of several updates the groups are scored instead, and the gradients
belong to the updates (`several_updates`).

    round ── Group, ScaleDown ──▶ accumulate_round ─▶ sums on every rank ─▶ update_all
    records of the step ────────▶ replay_gradients ─┘

Advantages that compare rewards with the last steps' read the moments of those steps from disk
(`baseline_moments`), where each step leaves its own before its round is closed (`record_moments`):
a step that is replayed has the same advantages.
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
from tasks.learner.reports import GradientReport, UpdateReport
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
from tasks.scheduling.stream_training import ScaleDown


async def accumulate_round(
    learners: Sequence[RemoteLearner],
    stream: AsyncIterator[Group | ScaleDown],
    store: Store,
    config: LearnerConfig,
    *,
    step: int,
    versions: range,
    num_groups: int,
) -> GradientReport:
    """Train on a round's accepted groups as far as the gradients, until the stream of them ends;
    learners that a ScaleDown frees begin before that.

    Follows the split of an earlier attempt if there is one, else makes one: as the groups come, or
    of all of them where advantages span the step or it makes several updates. Sums of a lost
    attempt are dropped. versions: weight versions whose tokens may be trained. num_groups: groups
    that the round will accept.
    """
    ranks = await _fresh_ranks(learners, step)
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

    async def record(made: Split) -> None:
        await asyncio.to_thread(write_split, store, step, made)

    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(
            ranks, tasks, num_groups, config.max_tokens_per_microbatch, config.flat_groups_cost
        )
        async for item in checked:
            if isinstance(item, ScaleDown):
                for name in item.learners:
                    accumulation.free(places[name])
            else:
                await accumulation.offer([item])
        reports = await accumulation.finish(record)
    return GradientReport(ranks=reports, num_groups_streamed=accumulation.num_streamed)


async def _checked(
    stream: AsyncIterator[Group | ScaleDown], step: int, versions: range
) -> AsyncIterator[Group | ScaleDown]:
    """The stream, its groups checked: the one way into training but for a replay. ValueError for a
    token of weights that the round does not allow."""
    async for item in stream:
        for response in item.responses if isinstance(item, Group) else ():
            found = {span.version for span in sampled_versions(response.generated)}
            if found <= set(versions):
                continue
            name = response.generated.response_id
            raise ValueError(
                f"step {step} must train tokens of weight versions {[*versions]} alone, "
                f"response {name} has versions {sorted(found)}; delete "
                f"{layout.round_file(step)} and {layout.split_file(step)} in the run's folder, "
                "then resume: it is made again"
            )
        yield item


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
    moments = baseline_moments(groups, store, step, config)
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


def baseline_moments(
    groups: Sequence[Group], store: Store, step: int, config: LearnerConfig
) -> Moments | None:
    """The moments that the rewards of a step are compared with; None for an advantage that needs
    none. Raises FileNotFoundError when those of an earlier step in the window are not there."""
    own = moments_of(groups, config.advantage, config.overlong)
    if own is None or not isinstance(config.advantage, ReinforcePlusPlusAdvantage):
        return None
    first = max(1, step - config.advantage.window + 1)
    earlier = [read_moments(store, before) for before in range(first, step)]
    return Moments.together([*earlier, own]) if earlier else own


def record_moments(groups: Sequence[Group], store: Store, step: int, config: LearnerConfig) -> None:
    """Keep a step's own moments for the steps after it, if they will be asked for."""
    advantage = config.advantage
    if not isinstance(advantage, ReinforcePlusPlusAdvantage) or advantage.window == 1:
        return
    own = moments_of(groups, advantage, config.overlong)
    if own is not None:
        store.keep(layout.moments_file(step), json.dumps(asdict(own)).encode())


def read_moments(store: Store, step: int) -> Moments:
    """The moments of a step's rewards. Raises FileNotFoundError where none are kept."""
    name = layout.moments_file(step)
    try:
        return store.parsed(name, lambda data: Moments(**json.loads(data)), PLAY_AGAIN)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"the moments of step {step} must be in {store.url}/{name}, which is not there;"
            f" {PLAY_AGAIN}"
        ) from None
