"""DESIGN invariants 4 and 5: an update's gradient does not depend on how its groups are cut, packed, ordered or streamed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from learner_factories import make_model, random_groups

from artifacts.records import Group, pack
from tasks.learner.advantage import DrGrpoAdvantage, GrpoAdvantage
from tasks.learner.loss import ConstantLength, SequenceMean, TokenMean
from tasks.learner.packing import balance
from tasks.learner.trainer import LearnerConfig, LearnerRank

KINDS = [
    (GrpoAdvantage(), TokenMean()),
    (GrpoAdvantage(), SequenceMean()),
    (DrGrpoAdvantage(), ConstantLength(length_tokens=32)),
]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def accumulated(rank: LearnerRank, parts: list[tuple[Group, ...]]) -> tuple[torch.Tensor, float, float]:
    """Gradient sum, normaliser and loss sum after these calls."""
    rank.discard()
    reports = [rank.accumulate(pack(part)) for part in parts]
    gradient = rank._policy.flat.gradients.clone()
    return gradient, sum(report.normaliser for report in reports), sum(report.loss_sum for report in reports)


@pytest.mark.parametrize(("advantage", "normalisation"), KINDS)
def test_streamed_gradients_equal_one_shot_gradients(
    model_path: str, advantage: GrpoAdvantage | DrGrpoAdvantage, normalisation: TokenMean | SequenceMean | ConstantLength
) -> None:
    def learner(max_tokens: int) -> LearnerRank:
        config = LearnerConfig(compute="fp32", advantage=advantage, normalisation=normalisation, max_tokens_per_microbatch=max_tokens)
        return LearnerRank(config, model_path, 0, 1)

    by_size = {max_tokens: learner(max_tokens) for max_tokens in (1, 37, 100_000)}

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 1000), st.permutations(range(5)), st.integers(1, 4), st.sampled_from(sorted(by_size)))
    def holds(seed: int, order: list[int], num_parts: int, max_tokens: int) -> None:
        groups = random_groups(seed, num_groups=5)
        expected = accumulated(by_size[100_000], [groups])
        shuffled = tuple(groups[index] for index in order)
        for parts in ([shuffled[start::num_parts] for start in range(num_parts)], list(balance(shuffled, num_parts))):
            gradient, normaliser, loss = accumulated(by_size[max_tokens], parts)
            torch.testing.assert_close(gradient, expected[0], rtol=1e-3, atol=1e-4)
            assert normaliser == pytest.approx(expected[1])
            assert loss == pytest.approx(expected[2], rel=1e-4, abs=1e-4)

    holds()
