"""Invariants 4 and 5 (docs/architecture.md): neither an update's gradient nor its weights depend on
how its groups are cut, packed, ordered or streamed, whether responses are episodes or not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner_factories import make_model, random_groups, with_episodes

from artifacts.records import Group, pack
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.learner.advantage import DrGrpoAdvantage, GrpoAdvantage
from tasks.learner.dealing import GroupPart, balance
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.reports import AccumulateReport
from tasks.learner.samples import ConstantLength, SequenceMean, TokenMean
from tasks.learner.split import Split, accumulate_split
from tasks.learner.streaming import StreamedAccumulation
from tasks.learner.trainer import LearnerRank

KINDS = [
    (GrpoAdvantage(), TokenMean()),
    (GrpoAdvantage(), SequenceMean()),
    (DrGrpoAdvantage(), ConstantLength(length_tokens=32)),
]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def accumulated(
    rank: LearnerRank, parts: Sequence[tuple[Group | GroupPart, ...]]
) -> tuple[torch.Tensor, float, float]:
    """Gradient sum, normaliser and loss sum after these calls."""
    rank.discard()
    reports = [rank.accumulate(pack(part)) for part in parts]
    gradient = rank._policy.parameters.gradients.clone()
    return (
        gradient,
        sum(report.normaliser for report in reports),
        sum(report.loss_sum for report in reports),
    )


@pytest.mark.parametrize(("advantage", "normalisation"), KINDS)
def test_streamed_gradients_equal_one_shot_gradients(
    model_path: str,
    advantage: GrpoAdvantage | DrGrpoAdvantage,
    normalisation: TokenMean | SequenceMean | ConstantLength,
) -> None:
    def learner(max_tokens: int) -> LearnerRank:
        config = LearnerConfig(
            compute="fp32",
            advantage=advantage,
            aggregation=normalisation,
            max_tokens_per_microbatch=max_tokens,
        )
        return LearnerRank(config, model_path, 0, 1)

    by_size = {max_tokens: learner(max_tokens) for max_tokens in (1, 37, 100_000)}

    @settings(max_examples=25, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        st.integers(0, 1000),
        st.permutations(range(5)),
        st.integers(1, 4),
        st.sampled_from(sorted(by_size)),
    )
    def holds(seed: int, order: list[int], num_parts: int, max_tokens: int) -> None:
        groups = with_episodes(random_groups(seed, num_groups=5), seed)
        expected = accumulated(by_size[100_000], [groups])
        shuffled = tuple(groups[index] for index in order)
        for parts in (
            [shuffled[start::num_parts] for start in range(num_parts)],
            list(balance(shuffled, num_parts)),
        ):
            gradient, normaliser, loss = accumulated(by_size[max_tokens], parts)
            torch.testing.assert_close(gradient, expected[0], rtol=1e-3, atol=1e-4)
            assert normaliser == pytest.approx(expected[1])
            assert loss == pytest.approx(expected[2], rel=1e-4, abs=1e-4)

    holds()


# --- the stream trainer on the real learner ---

STEP = LearnerConfig(
    compute="fp32",
    max_tokens_per_microbatch=64,
    optimizer=AdamWConfig(learning_rate=1e-2, epsilon=1e-4),
)
NUM_RANKS = 3


class TrainingRank:
    """A real learner rank whose calls take a random virtual time, so that every seed deals the
    groups differently."""

    def __init__(self, rank: LearnerRank, chance: random.Random) -> None:
        self.learner, self._chance = rank, chance

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        await asyncio.sleep(self._chance.uniform(0.1, 4.0))
        return self.learner.accumulate(pack(parts))


async def stream_round(
    ranks: Sequence[TrainingRank], groups: Sequence[Group], chance: random.Random
) -> Split:
    """A round that frees random ranks at random times; the split that came of it."""
    splits: list[Split] = []

    async def record(split: Split) -> None:
        splits.append(split)

    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(
            ranks, tasks, num_groups=len(groups), row_tokens=100, flat_costs=False
        )
        for rank in chance.sample(range(len(ranks)), chance.randint(0, len(ranks))):
            asyncio.get_running_loop().call_later(chance.uniform(0, 6), accumulation.free, rank)
        for group in groups:
            await asyncio.sleep(chance.uniform(0, 2))
            await accumulation.offer([group])
        await accumulation.finish(record)
    return splits[0]


def updated(learners: Sequence[LearnerRank], start: str) -> torch.Tensor:
    """The weights after one update from what all ranks accumulated, reduced as the collective does:
    added up, on the first rank."""
    first = learners[0]
    for other in learners[1:]:
        first._policy.parameters.gradients += other._policy.parameters.gradients
        (normaliser, loss_sum), (more, further) = first._sums[""], other._sums[""]
        first._sums[""] = normaliser + more, loss_sum + further
        other.discard()
    first.update(1)
    values = first._policy.parameters.values.clone()
    first.load_checkpoint(start)
    return values


def test_a_streamed_step_makes_the_weights_of_a_one_shot_step_and_its_replay_the_very_same(
    model_path: str, tmp_path: Path
) -> None:
    learners = [LearnerRank(STEP, model_path, 0, 1) for _ in range(NUM_RANKS)]
    start = str(tmp_path / "start")
    learners[0].save_checkpoint(start, 0)

    @settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 100_000))
    def holds(seed: int) -> None:
        chance = random.Random(seed)
        groups = with_episodes(random_groups(seed, num_groups=8), seed)
        learners[0].accumulate(pack(groups))
        expected = updated(learners[:1], start)
        split = run_virtual(
            stream_round([TrainingRank(one, chance) for one in learners], groups, chance)
        )
        streamed = updated(learners, start)
        torch.testing.assert_close(
            streamed, expected, rtol=0, atol=1e-3 * STEP.optimizer.learning_rate
        )
        run_virtual(
            accumulate_split([TrainingRank(one, chance) for one in learners], groups[::-1], split)
        )
        assert torch.equal(updated(learners, start), streamed)

    holds()
