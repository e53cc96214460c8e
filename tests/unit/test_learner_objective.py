"""What is added to a loss: gate, KL in the loss or in the reward, entropy bonus; and all of it on
packed rows, against one sequence after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from learner_factories import make_group, make_model, random_groups
from pydantic import ValidationError
from torch import Tensor

from artifacts.records import Group, pack
from research.benchmarks.naive_model import naive_logp, naive_model
from tasks.learner import head
from tasks.learner.dealing import GroupPart
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.log_ratios import ESTIMATORS, Estimator
from tasks.learner.losses.weighted import PolicyGradientLoss, ReinforceLoss
from tasks.learner.objective import DriftMask, Objective
from tasks.learner.packing import Sample, micro_batches, pack_paths
from tasks.learner.reports import AccumulateReport, token_means
from tasks.learner.samples import training_set
from tasks.learner.token_loss import TokenBatch, means, spread, sums_to_go
from tasks.learner.trainer import LearnerRank

# --- by table ---


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.0, 0.5, -0.5]),
        ("k2", [0.0, 0.125, 0.125]),
        ("k3", [0.0, math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5]),
    ],
)
def test_estimates_of_a_divergence(estimator: Estimator, expected: list[float]) -> None:
    logp = torch.tensor([-1.0, -1.0, -1.0])
    found = ESTIMATORS[estimator](logp, torch.tensor([-1.0, -1.5, -0.5]))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_estimates_average_to_the_divergence(estimator: Estimator) -> None:
    """Exactly, over all tokens of a vocabulary of three, each as often as the policy samples it."""
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.2, 0.6]).log()
    exact = float((policy.exp() * (policy - reference)).sum())
    found = (policy.exp() * ESTIMATORS[estimator](policy, reference)).sum()
    assert float(found) == pytest.approx(exact, rel=1e-5)


VALUES = torch.tensor([1.0, 3.0, 5.0, -1.0, -2.0, -6.0])


def test_quantities_of_whole_responses() -> None:
    assert means(VALUES, (2, 1, 3)).tolist() == [2.0, 5.0, -3.0]
    assert sums_to_go(VALUES, (2, 1, 3)).tolist() == [4.0, 3.0, 5.0, -9.0, -8.0, -6.0]
    spread_out = spread(torch.tensor([1.0, 2.0, 3.0]), (2, 1, 3), VALUES.device)
    assert spread_out.tolist() == [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]


# two responses, of two tokens and of one; engine - learner: 0.3, -0.1 | -0.2
LENGTHS = (2, 1)
LOGP = torch.tensor([-1.0, -2.0, -3.0])
DRIFT = torch.tensor([0.3, -0.1, -0.2])


def batch(advantages: Sequence[float], reference: Tensor | None = None) -> TokenBatch:
    by_token = torch.tensor(advantages).repeat_interleave(torch.tensor(LENGTHS))
    return TokenBatch(
        sampling_logp=LOGP + DRIFT,
        advantage=by_token,
        reward=by_token,
        weight=torch.tensor([0.5, 0.5, 1.0]),
        num_tokens=torch.tensor([2.0, 2.0, 1.0]),
        reference=reference,
        mean_log_ratio=None,
    )


@pytest.mark.parametrize(
    ("gate", "dropped"),
    [
        (DriftMask(statistic="k1", bound=0.09), [True, False]),
        (DriftMask(statistic="k1", bound=0.11), [False, False]),
        (DriftMask(statistic="geometric", bound=0.09), [True, True]),
        (DriftMask(statistic="geometric", bound=0.15), [False, True]),
        (DriftMask(statistic="k2", bound=0.024), [True, False]),  # (.045 + .005) / 2 | .02
        (DriftMask(statistic="k3", bound=0.0213), [True, True]),  # .02283 | .021403
        (DriftMask(statistic="k3", bound=0.0215), [True, False]),
        (DriftMask(statistic="geometric", bound=0.09, negative_only=True), [False, True]),
    ],
)
def test_the_gate_drops_responses_by_their_mean_drift(gate: DriftMask, dropped: list[bool]) -> None:
    objective = Objective(loss=ReinforceLoss(), sequence_mask=gate)
    given = batch([1.0, -1.0])
    assert objective.dropped(LOGP, given, LENGTHS).tolist() == dropped
    gradient = objective.by_logp(LOGP, objective.completed(LOGP, given, LENGTHS))
    plain = Objective(loss=ReinforceLoss()).by_logp(LOGP, given)
    kept = ~torch.tensor(dropped).repeat_interleave(torch.tensor(LENGTHS))
    assert torch.equal(gradient, plain * kept)


def test_a_response_of_an_infinite_drift_is_dropped_without_a_trace() -> None:
    objective = Objective(loss=ReinforceLoss(level="sequence"), sequence_mask=DriftMask())
    given = batch([1.0, -1.0])
    given = replace(given, sampling_logp=torch.tensor([-math.inf, -2.0, -3.01]))
    gradient = objective.by_logp(LOGP, objective.completed(LOGP, given, LENGTHS))
    assert gradient.tolist() == pytest.approx([0.0, 0.0, math.exp(0.01)], rel=1e-5)


def test_kl_in_the_loss_is_a_term_of_its_own() -> None:
    """k2: 0.1 x (logp - reference) more, times the token's weight."""
    objective = Objective(loss=PolicyGradientLoss(), kl_coefficient=0.1, kl_estimator="k2")
    given = batch([1.0, -1.0], reference=LOGP - torch.tensor([0.4, -0.2, 1.0]))
    assert not objective.needs_whole_responses
    assert objective.by_logp(LOGP, given).tolist() == pytest.approx(
        [0.5 * (-1.0 + 0.04), 0.5 * (-1.0 - 0.02), 1.0 + 0.1]
    )


def test_kl_in_the_reward_is_a_penalty_that_earlier_tokens_answer_for_too() -> None:
    """k1 of 0.4, -0.2 | 1.0: advantages 1 - .1 x (.4 - .2), 1 + .1 x .2 | -1 - .1."""
    objective = Objective(
        loss=PolicyGradientLoss(), kl_coefficient=0.1, kl_estimator="k1", kl_place="reward"
    )
    given = batch([1.0, -1.0], reference=LOGP - torch.tensor([0.4, -0.2, 1.0]))
    assert objective.needs_whole_responses
    completed = objective.completed(LOGP, given, LENGTHS)
    assert completed.advantage.tolist() == pytest.approx([0.98, 1.02, -1.1])
    assert objective.by_logp(LOGP, completed).tolist() == pytest.approx([-0.49, -0.51, 1.1])


def test_k1_in_the_loss_is_refused() -> None:
    with pytest.raises(ValidationError, match="kl_place=reward"):
        LearnerConfig(kl_coefficient=0.1, kl_estimator="k1")
    LearnerConfig(kl_coefficient=0.1, kl_estimator="k1", kl_place="reward")


def test_what_is_wanted_of_a_step_without_advantages() -> None:
    assert not LearnerConfig().trains_all
    assert LearnerConfig(entropy_coefficient=0.01).flat_groups_cost
    assert LearnerConfig(kl_coefficient=0.01).flat_groups_cost


# --- on packed rows ---

EVERYTHING = {
    "loss": {"kind": "gspo", "clip_low": 0.9, "clip_high": 9.0},
    "sequence_mask": {"kind": "drift", "statistic": "k1", "bound": 2.0, "negative_only": True},
    "kl_coefficient": 0.1,
    "kl_estimator": "k2",
    "kl_place": "reward",
    "entropy_coefficient": 0.05,
    "aggregation": {"kind": "sequence_mean"},
    "compute": "fp32",
}
TEMPERATURE = 0.8  # of the sampling
KINDS = {
    "everything": EVERYTHING,
    "product": EVERYTHING
    | {"loss": {"kind": "reinforce", "level": "sequence"}, "sequence_mask": {"kind": "open"}},
    "entropy alone": {"entropy_coefficient": 0.5, "compute": "fp32", "kl_coefficient": 0.0},
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model, so that reference and policy differ."""
    return make_model(tmp_path_factory.mktemp("other"), seed=1)


def configured(given: dict[str, object], max_tokens: int = 10_000) -> LearnerConfig:
    return LearnerConfig.model_validate(given | {"max_tokens_per_microbatch": max_tokens})


def learner(config: LearnerConfig, path: str, reference_path: str) -> LearnerRank:
    """A rank whose reference is another model."""
    rank = LearnerRank(config, path, 0, 1, temperature=TEMPERATURE)
    if config.kl_coefficient:
        other = LearnerRank(config, reference_path, 0, 1, temperature=TEMPERATURE)
        rank._micro_step._reference = other._micro_step._reference
    return rank


def naive_total(
    config: LearnerConfig, path: str, reference_path: str, groups: tuple[Group, ...]
) -> tuple[Tensor, dict[str, Tensor], int]:
    """Loss sum, gradients and dropped responses, one unpacked sequence after the other, by
    formulas written down once more."""
    model, reference = naive_model(path), naive_model(reference_path)
    data = training_set(groups, config.advantage, config.aggregation)
    total, num_dropped = torch.zeros(()), 0
    for sample in data.samples:
        logp, entropy = naive_logp(model, sample, TEMPERATURE)
        now, before = logp.detach(), torch.from_numpy(sample.sampling_logp)
        advantage = torch.full_like(now, sample.advantages[0])
        if config.kl_coefficient:
            with torch.no_grad():
                penalty = (now - naive_logp(reference, sample, TEMPERATURE)[0]) ** 2 / 2
            for position in range(len(now)):
                advantage[position] -= config.kl_coefficient * penalty[position:].sum()
        mean = float((now - before).mean())
        if (
            config.sequence_mask.drops
            and sample.advantages[0] < 0
            and -mean > config.sequence_mask.bound
        ):
            num_dropped += 1
            loss = 0.0 * logp
        elif config.loss.kind == "gspo":
            ratio = math.exp(mean) * torch.exp(logp - now)
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.1, 10.0) * advantage)
        elif config.loss.kind == "reinforce":
            loss = -min(math.exp(mean * len(now)), 2.0) * advantage * logp
        else:  # decoupled PPO, values and gradients
            weight = (now - before).exp().clamp(max=2.0)
            loss = -weight * advantage * torch.exp(logp - now)
        loss = loss - config.entropy_coefficient * entropy
        total = total + sample.weight * loss.sum()
    total.backward()
    return (
        total.detach(),
        {
            name: parameter.grad
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        },
        num_dropped,
    )


@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize(("max_tokens", "rows_per_chunk"), [(10_000, 1024), (10_000, 24), (40, 8)])
def test_packed_gradients_of_whole_responses_equal_naive_ones(
    model_path: str,
    other_path: str,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, object],
    max_tokens: int,
    rows_per_chunk: int,
) -> None:
    """Prompts are shared, two responses of each group are equal; rows of the head are one chunk or
    several."""
    monkeypatch.setattr(head, "ROWS_PER_CHUNK", rows_per_chunk)
    config = configured(given, max_tokens)
    rank = learner(config, model_path, other_path)
    report = rank.accumulate(pack(random_groups(3)))
    total, expected, num_dropped = naive_total(config, model_path, other_path, random_groups(3))
    assert report.loss_sum == pytest.approx(float(total), rel=1e-4)
    assert report.num_responses_dropped == num_dropped
    assert (num_dropped > 0) is config.sequence_mask.drops
    for name, gradient in expected.items():
        found = rank._policy.parameters.gradient(name)
        torch.testing.assert_close(found, gradient, rtol=1e-3, atol=2e-5)


def test_a_response_never_lies_in_two_rows() -> None:
    data = training_set(
        random_groups(5, num_groups=6),
        LearnerConfig().advantage,
        LearnerConfig().aggregation,
    )

    def told(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
        return sorted((*sample.prompt, -1, *sample.response) for sample in samples)

    for max_tokens in (1, 20, 60):
        rows = micro_batches(data.samples, max_tokens)
        assert len(rows) > 1
        assert told([each.sample for row in rows for each in row]) == told(data.samples)
        for row in rows:
            num_targets = len(pack_paths(row).targets)
            assert num_targets == sum(len(each.sample.response) for each in row)


@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS.keys())
def test_sums_and_updates_do_not_depend_on_rows_and_ranks(
    model_path: str, other_path: str, given: dict[str, object]
) -> None:
    """Three ranks with parts of groups and small rows, added up as the collective does it, against
    one rank with one row."""
    optimizer = {"optimizer": AdamWConfig(learning_rate=1e-2, epsilon=1e-4)}
    groups = random_groups(9, num_groups=5)
    alone = learner(configured(given | optimizer), model_path, other_path)
    one = alone.accumulate(pack(groups))
    parts = [
        [GroupPart(group=group, places=places) for group in groups]
        for places in ((0,), (1, 3), (2,))
    ]
    ranks = [learner(configured(given | optimizer, 37), model_path, other_path) for _ in parts]
    reports = [rank.accumulate(pack(tuple(part))) for rank, part in zip(ranks, parts, strict=True)]
    total = sum(reports, AccumulateReport())
    for field in (
        "num_tokens_scored",
        "num_tokens_truncated",
        "num_tokens_clipped",
        "num_tokens_clippable",
        "num_responses_dropped",
        "num_responses_droppable",
    ):
        assert getattr(total, field) == getattr(one, field)
    assert total.loss_sum == pytest.approx(one.loss_sum, rel=1e-4)
    assert total.normaliser == pytest.approx(one.normaliser)
    figures, expected = token_means(total), token_means(one)
    for name in expected:
        if name != "train/busy_s":
            assert figures[name] == pytest.approx(expected[name], rel=1e-4), name
    first = ranks[0]
    for other in ranks[1:]:
        first._policy.parameters.gradients += other._policy.parameters.gradients
        (normaliser, loss_sum), (more, further) = first._sums[""], other._sums[""]
        first._sums[""] = normaliser + more, loss_sum + further
    first.update(1)
    alone.update(1)
    torch.testing.assert_close(
        first._policy.parameters.values, alone._policy.parameters.values, rtol=0, atol=1e-4
    )


def test_equal_responses_of_a_row_are_gated_each_by_what_sampled_it(model_path: str) -> None:
    """They share every node of the tree, and differ in nothing but their `sampling_logp`."""
    group = make_group((1, 2, 3), [(4, 5), (4, 5), (6,)], [1.0, 1.0, 0.0])
    likely = group.responses[0].generated
    stale = replace(group.responses[1].generated, logprobs=(30.0, 30.0))
    responses = (
        group.responses[0],
        replace(group.responses[1], generated=stale),
        group.responses[2],
    )
    config = configured(
        {"sequence_mask": {"kind": "drift", "statistic": "k1", "bound": 15.0}, "compute": "fp32"}
    )
    rank = LearnerRank(config, model_path, 0, 1)
    report = rank.accumulate(pack((replace(group, responses=responses),)))
    assert likely.token_ids == stale.token_ids
    assert (report.num_responses_dropped, report.num_responses_droppable) == (1, 3)
    assert token_means(report)["train/gated_fraction"] == pytest.approx(1 / 3)


def test_the_effective_sample_falls_with_unequal_weights() -> None:
    """Weights 1, 1, 2: 16 / (3 x 6)."""
    report = AccumulateReport(
        num_tokens_scored=3, importance_sum=4.0, importance_square_sum=6.0, importance_max=2.0
    )
    assert token_means(report)["train/effective_sample_fraction"] == pytest.approx(16 / 18)
    for squares in (0.0, math.inf, math.nan):
        none = replace(report, importance_sum=squares, importance_square_sum=squares)
        assert token_means(none)["train/effective_sample_fraction"] == 0.0


def test_the_report_has_the_squares_of_the_weights(model_path: str) -> None:
    config = configured({"compute": "fp32"})
    rank = LearnerRank(config, model_path, 0, 1)
    groups = random_groups(3)
    report = rank.accumulate(pack(groups))
    weights = []
    for sample in training_set(groups, config.advantage, config.aggregation).samples:
        if sample.advantages[0]:
            with torch.no_grad():
                logp, _ = naive_logp(naive_model(model_path), sample)
            weights.append((logp - torch.from_numpy(sample.sampling_logp)).exp())
    every = torch.cat(weights).double()
    assert report.importance_square_sum == pytest.approx(float(every.square().sum()), rel=1e-3)
    expected = float(every.sum() ** 2 / (every.numel() * every.square().sum()))
    found = token_means(report)["train/effective_sample_fraction"]
    assert found == pytest.approx(expected, rel=1e-3)
