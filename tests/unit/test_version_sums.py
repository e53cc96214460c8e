"""Sums of tokens by the weights that sampled them: they add up over rows and ranks, and say the
same together as the sums over all tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learner_factories import make_model, random_groups

from artifacts.records import Group, VersionSpan, pack
from tasks.learner.dealing import GroupPart
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.reports import AccumulateReport, token_means
from tasks.learner.trainer import LearnerRank
from tasks.learner.version_sums import (
    MAX_LAG,
    TokenSums,
    VersionSums,
    figures_by_lag,
    read_sums,
    sums_by_version,
    version_places,
)


def of_versions(group: Group) -> Group:
    """The same, the second half of every response sampled by version 3, the first by 1."""

    def spans(num_tokens: int) -> tuple[VersionSpan, ...]:
        counts = {1: num_tokens // 2, 3: num_tokens - num_tokens // 2}
        return tuple(
            VersionSpan(version=version, num_tokens=count)
            for version, count in counts.items()
            if count
        )

    responses = tuple(
        replace(
            response,
            generated=replace(
                response.generated, versions=spans(len(response.generated.token_ids))
            ),
        )
        for response in group.responses
    )
    return replace(group, responses=responses)


def test_every_token_counts_for_the_version_that_sampled_it() -> None:
    counts = ((4, 2), (5, 1), (4, 1))
    spans = [VersionSpan(version=version, num_tokens=count) for version, count in counts]
    versions, places = version_places(spans)
    sums = sums_by_version(
        torch.from_numpy(places),
        len(versions),
        is_cut=torch.tensor([True, False, True, False]),
        importance=torch.tensor([2.0, 1.0, 3.0, 0.5]),
        mismatch_k3=torch.tensor([0.25, 0.0, 1.0, 0.5]),
    )
    found = read_sums(versions, sums.flatten().tolist())
    newer = TokenSums(
        num_tokens=1,
        num_tokens_cut=1,
        importance_sum=3.0,
        importance_square_sum=9.0,
        mismatch_k3_sum=1.0,
    )
    older = TokenSums(
        num_tokens=3,
        num_tokens_cut=1,
        importance_sum=3.5,
        importance_square_sum=5.25,
        mismatch_k3_sum=0.75,
    )
    assert found == VersionSums({4: older, 5: newer})
    assert (found + found).of[4].num_tokens == 6
    assert (found + VersionSums({6: newer})).of == {4: older, 5: newer, 6: newer}


def test_figures_are_told_by_lag_and_old_tokens_together() -> None:
    one = TokenSums(
        num_tokens=4,
        num_tokens_cut=1,
        importance_sum=4.0,
        importance_square_sum=8.0,
        mismatch_k3_sum=0.5,
    )
    sums = VersionSums({20: one, 19: one, 20 - MAX_LAG: one, 2: one})
    figures = figures_by_lag(sums, 20, may_drop_gradients=True)
    assert figures["lag/tokens_fraction_at_0"] == 0.25
    assert figures["lag/cut_fraction_at_1"] == 0.25
    assert figures["lag/mismatch_k3_at_1"] == 0.125
    assert figures["lag/effective_sample_fraction_at_1"] == 0.5
    assert figures[f"lag/tokens_fraction_at_{MAX_LAG}"] == 0.5
    assert len(figures) == 4 * 3
    assert not [
        name for name in figures_by_lag(sums, 20, may_drop_gradients=False) if "cut" in name
    ]
    assert figures_by_lag(VersionSums(), 20, may_drop_gradients=True) == {}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(Path(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    "given",
    [
        {"loss": {"kind": "icepop", "mask_low": 0.1}},
        {"sequence_mask": {"kind": "drift", "statistic": "geometric", "bound": 2.5}},
    ],
    ids=["masked", "gated"],
)
def test_versions_add_up_over_rows_and_ranks_to_the_sums_of_all_tokens(
    model_path: str, given: dict[str, object]
) -> None:
    groups = [of_versions(group) for group in random_groups(9, num_groups=5)]

    def learner(row_tokens: int) -> LearnerRank:
        config = {"compute": "fp32", "max_tokens_per_microbatch": row_tokens, **given}
        return LearnerRank(LearnerConfig.model_validate(config), model_path, 0, 1)

    one = learner(4096).accumulate(pack(tuple(groups)))
    parts = [
        tuple(GroupPart(group=group, places=places) for group in groups)
        for places in ((0,), (1, 3), (2,))
    ]
    ranks = [learner(37).accumulate(pack(part)) for part in parts]
    total = sum(ranks, AccumulateReport())
    assert set(total.by_version.of) == {1, 3}
    for version, sums in one.by_version.of.items():
        other = total.by_version.of[version]
        assert (other.num_tokens, other.num_tokens_cut) == (sums.num_tokens, sums.num_tokens_cut)
        assert other.importance_sum == pytest.approx(sums.importance_sum, rel=1e-4)
        assert other.mismatch_k3_sum == pytest.approx(sums.mismatch_k3_sum, rel=1e-4)
    together = sum(one.by_version.of.values(), TokenSums())
    assert 0 < together.num_tokens_cut < together.num_tokens
    assert together.num_tokens_cut == one.num_tokens_clipped + one.num_tokens_dropped
    assert together.num_tokens == one.num_tokens_scored
    assert together.importance_square_sum == pytest.approx(one.importance_square_sum)
    assert together.mismatch_k3_sum == pytest.approx(one.mismatch_k3_sum)
    cut = token_means(one)["train/cut_fraction"]
    assert cut == pytest.approx(together.num_tokens_cut / together.num_tokens)


def test_a_step_of_several_updates_has_the_effective_sample_of_the_tokens_it_scored() -> None:
    """Four tokens, scored once and clipped in two updates: more cuts than tokens."""
    looked = AccumulateReport(
        num_tokens_scored=4, importance_sum=4 * 2.0, importance_square_sum=4 * 4.0
    )
    passed = AccumulateReport(num_tokens_passed=4, num_tokens_clippable=4, num_tokens_clipped=3)
    told = token_means(looked + passed + passed)
    assert told["train/effective_sample_fraction"] == 1.0
    assert told["train/cut_fraction"] == told["train/clip_fraction"] == 0.75
