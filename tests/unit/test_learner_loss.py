"""Losses per token: by table, with gradients checked against differences, and what all of them have
in common."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tasks.learner.losses.clipped import GspoLoss, PpoClipLoss
from tasks.learner.losses.registry import LossConfig
from tasks.learner.losses.weighted import (
    CispoLoss,
    IcePopLoss,
    PolicyGradientLoss,
    ReinforceLoss,
    ToprLoss,
)
from tasks.learner.token_loss import PolicyLoss, TokenBatch

LOSSES: dict[str, PolicyLoss] = {
    "ppo, decoupled": PpoClipLoss(),
    "ppo, engine": PpoClipLoss(old_policy="engine"),
    "ppo, dual clip": PpoClipLoss(old_policy="engine", dual_clip=3.0),
    "reinforce": ReinforceLoss(),
    "reinforce, sequence": ReinforceLoss(level="sequence"),
    "reinforce, geometric": ReinforceLoss(level="geometric"),
    "cispo": CispoLoss(),
    "topr": ToprLoss(),
    "topr, sequence": ToprLoss(level="sequence"),
    "gspo": GspoLoss(),
    "icepop": IcePopLoss(),
    "policy gradient": PolicyGradientLoss(),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def token(sampling_logp: float, advantage: float, reward: float = 1.0) -> TokenBatch:
    return response([sampling_logp], [-2.0], advantage, reward)


def response(
    sampling_logp: list[float], logp: list[float], advantage: float, reward: float = 1.0
) -> TokenBatch:
    """All tokens of one response, of which the learner thinks this, in fp64."""
    pairs = zip(logp, sampling_logp, strict=True)
    mean = sum(now - before for now, before in pairs) / len(logp)

    def on_all(value: float) -> Tensor:
        return torch.full((len(logp),), value, dtype=torch.float64)

    return TokenBatch(
        sampling_logp=torch.tensor(sampling_logp, dtype=torch.float64),
        advantage=on_all(advantage),
        reward=on_all(reward),
        weight=on_all(1.0),
        num_tokens=on_all(len(logp)),
        reference=None,
        mean_log_ratio=on_all(mean),
    )


def gradient(loss: PolicyLoss, logp: list[float], batch: TokenBatch) -> list[float]:
    leaf = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    found: list[float] = torch.autograd.grad(loss.token_loss(leaf, batch).loss.sum(), leaf)[
        0
    ].tolist()
    return found


def derivative(loss: PolicyLoss, logp: float, batch: TokenBatch) -> float:
    return gradient(loss, [logp], batch)[0]


# --- each loss by its formula ---


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 1.0, -1.0, False),
        (1.25, 1.0, -1.25, False),
        (1.5, 1.0, -1.28, True),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (0.9, -1.0, 0.9, False),
        (3.0, -1.0, 3.0, False),
    ],
)
def test_ppo_clips_only_where_the_ratio_has_gone_too_far(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    ppo = PpoClipLoss(clip_low=0.2, clip_high=0.28, old_policy="engine", importance_cap=0.5)
    result = ppo.token_loss(torch.tensor([-2.0 + math.log(ratio)]), token(-2.0, advantage))
    assert result.loss.item() == pytest.approx(loss, rel=1e-5), "the weight is 1, whatever the cap"
    assert bool(result.clipped) is clipped
    assert not bool(result.truncated)
    assert (derivative(ppo, -2.0 + math.log(ratio), token(-2.0, advantage)) == 0) is clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (2.9, -1.0, 2.9, False),
        (5.0, -1.0, 3.0, True),
        (5.0, -2.0, 6.0, True),
        (5.0, 1.0, -1.28, True),
        (0.5, -1.0, 0.8, True),
        (5.0, 0.0, 0.0, False),
    ],
)
def test_a_dual_clip_bounds_what_a_negative_advantage_may_cost(
    ratio: float, advantage: float, loss: float, clipped: bool
) -> None:
    ppo = PpoClipLoss(old_policy="engine", dual_clip=3.0)
    logp, batch = -2.0 + math.log(ratio), token(-2.0, advantage)
    result = ppo.token_loss(torch.tensor([logp], dtype=torch.float64), batch)
    assert result.loss.item() == pytest.approx(loss)
    assert bool(result.clipped) is clipped
    assert (derivative(ppo, logp, batch) == 0) is (clipped or advantage == 0)


@pytest.mark.parametrize(
    ("engine_over", "weight"),
    [(0.0, 1.0), (math.log(1.5), 1.5), (math.log(9.0), 2.0), (-1.0, math.exp(-1))],
)
def test_importance_weights_are_truncated_and_constant(engine_over: float, weight: float) -> None:
    batch = token(-2.0 - engine_over, 1.0)
    assert derivative(PpoClipLoss(), -2.0, batch) == pytest.approx(-weight, rel=1e-5)
    assert derivative(ReinforceLoss(), -2.0, batch) == pytest.approx(-weight, rel=1e-5)


def test_decoupled_ppo_of_one_update_is_truncated_importance_sampling() -> None:
    """The learner's own ratio is 1 and never clipped."""
    result = PpoClipLoss().token_loss(torch.tensor([-2.0]), token(-9.0, 1.0))
    assert result.loss.item() == -2.0, "the weight, as it was truncated, times a ratio of 1"
    assert not bool(result.clipped)
    logp, batch = [-2.0, -1.0, -0.5], response([-1.0, -3.0, -0.6], [-2.0, -1.0, -0.5], -0.7)
    assert gradient(PpoClipLoss(), logp, batch) == gradient(ReinforceLoss(), logp, batch)


@pytest.mark.parametrize("loss", [PpoClipLoss(), ReinforceLoss()])
def test_truncated_weights_are_told_whatever_the_loss(loss: PolicyLoss) -> None:
    for engine_over, truncated in ((0.0, False), (math.log(1.9), False), (math.log(2.1), True)):
        result = loss.token_loss(torch.tensor([-2.0]), token(-2.0 - engine_over, 1.0))
        assert bool(result.truncated) is truncated
        assert not bool(result.clipped)


# two tokens, u = 3 and 1/2: product 3/2, geometric mean sqrt(3/2)
NOW = [-1.0, -2.0]
BEFORE = [-1.0 - math.log(3), -2.0 + math.log(2)]


@pytest.mark.parametrize(
    ("loss", "weights", "truncated"),
    [
        (ReinforceLoss(), [2.0, 0.5], [True, False]),
        (ReinforceLoss(level="sequence"), [1.5, 1.5], [False, False]),
        (ReinforceLoss(level="sequence", importance_cap=1.2), [1.2, 1.2], [True, True]),
        (ReinforceLoss(level="geometric"), [1.5**0.5] * 2, [False, False]),
        (ReinforceLoss(level="geometric", importance_cap=1.1), [1.1, 1.1], [True, True]),
        (CispoLoss(), [3.0, 0.5], [False, False]),
        (CispoLoss(clip_low=0.1, clip_high=0.3), [1.3, 0.9], [True, True]),
        (PolicyGradientLoss(), [1.0, 1.0], [False, False]),
    ],
)
def test_a_policy_gradient_has_the_constant_weight_of_its_formula(
    loss: PolicyLoss, weights: list[float], truncated: list[bool]
) -> None:
    batch = response(BEFORE, NOW, advantage=-2.0)
    assert gradient(loss, NOW, batch) == pytest.approx([2.0 * weight for weight in weights])
    result = loss.token_loss(torch.tensor(NOW, dtype=torch.float64), batch)
    assert result.truncated.tolist() == truncated
    assert not result.clipped.any()


def test_the_product_of_a_long_response_is_a_trap_and_the_mean_is_not() -> None:
    logp = [-1.0] * 100
    batch = response([-1.0 - math.log(1.1)] * 100, logp, advantage=-1.0)
    unbounded = ReinforceLoss(level="sequence", importance_cap=1e9)
    assert gradient(unbounded, logp, batch)[0] == pytest.approx(13_780.6, rel=1e-4)
    assert gradient(ReinforceLoss(level="geometric"), logp, batch)[0] == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("reward", "advantage", "loss", "weights", "truncated"),
    [
        (1.0, 2.0, ToprLoss(), [1.0, 1.0], [False, False]),
        (0.0, -2.0, ToprLoss(), [1.0, 0.5], [True, False]),
        (0.1, -2.0, ToprLoss(), [1.0, 1.0], [False, False]),
        (-0.5, 2.0, ToprLoss(), [1.0, 0.5], [True, False]),
        (0.0, -2.0, ToprLoss(level="sequence"), [1.0, 1.0], [True, True]),
        (1.0, 2.0, ToprLoss(positive_weight=3.0, negative_weight=0.5), [3.0, 3.0], [False] * 2),
        (0.0, -2.0, ToprLoss(positive_weight=3.0, negative_weight=0.5), [0.5, 0.25], [True, False]),
    ],
)
def test_topr_tapers_by_the_sign_of_the_reward_whatever_the_advantage(
    reward: float,
    advantage: float,
    loss: ToprLoss,
    weights: list[float],
    truncated: list[bool],
) -> None:
    batch = response(BEFORE, NOW, advantage, reward)
    expected = [-advantage * weight for weight in weights]
    assert gradient(loss, NOW, batch) == pytest.approx(expected)
    result = loss.token_loss(torch.tensor(NOW, dtype=torch.float64), batch)
    assert result.truncated.tolist() == truncated


@pytest.mark.parametrize(
    ("ratio", "weight"),
    [(0.4, 0.0), (0.5001, 0.5001), (1.0, 1.0), (4.9, 4.9), (5.1, 0.0), (math.inf, 0.0)],
)
def test_icepop_masks_a_token_on_either_side_of_its_bounds(ratio: float, weight: float) -> None:
    batch = token(-2.0 - math.log(ratio), advantage=-1.0)
    assert derivative(IcePopLoss(), -2.0, batch) == pytest.approx(weight)
    result = IcePopLoss().token_loss(torch.tensor([-2.0]), batch)
    assert bool(result.clipped) is (weight == 0.0)


@pytest.mark.parametrize(
    ("log_ratios", "advantage", "ratio", "clipped"),
    [
        ([0.06, -0.02], 1.0, math.exp(0.02), False),
        ([0.06, 0.04], 1.0, 1.04, True),
        ([0.06, 0.04], -1.0, math.exp(0.05), False),
        ([-0.06, -0.04], -1.0, 0.97, True),
        ([-0.06, -0.04], 1.0, math.exp(-0.05), False),
    ],
)
def test_gspo_clips_all_tokens_of_a_response_by_their_geometric_mean(
    log_ratios: list[float], advantage: float, ratio: float, clipped: bool
) -> None:
    before = [now - log_ratio for now, log_ratio in zip(NOW, log_ratios, strict=True)]
    batch = response(before, NOW, advantage)
    result = GspoLoss().token_loss(torch.tensor(NOW, dtype=torch.float64), batch)
    assert result.loss.tolist() == pytest.approx([-ratio * advantage] * 2)
    assert result.clipped.tolist() == [clipped] * 2
    expected = 0.0 if clipped else -ratio * advantage
    assert gradient(GspoLoss(), NOW, batch) == pytest.approx([expected] * 2)


def test_gspo_has_the_gradient_of_the_published_sequence_objective() -> None:
    """-min(s A, clip(s) A) of the response itself, over its tokens' mean (equation 5), by
    differences: our tokens weigh 1/length each."""
    before = [-1.3, -0.8, -2.1]

    def published(logp: Tensor) -> Tensor:
        ratio = torch.exp((logp - torch.tensor(before, dtype=torch.float64)).mean())
        return -torch.minimum(ratio * 0.7, ratio.clamp(0.97, 1.04) * 0.7)

    for now in ([-1.31, -0.79, -2.11], [-1.0, -0.7, -2.0]):
        leaf = torch.tensor(now, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(published, leaf)
        expected = torch.autograd.grad(published(leaf), leaf)[0]
        ours = gradient(GspoLoss(), now, response(before, now, 0.7))
        assert [value / 3 for value in ours] == pytest.approx(expected.tolist())


# --- what holds for all of them ---


@every_loss
@pytest.mark.parametrize(("advantage", "reward"), [(0.8, 1.0), (-0.8, 0.0)])
def test_the_gradient_is_that_of_the_loss_with_its_weights_held_constant(
    loss: PolicyLoss, advantage: float, reward: float
) -> None:
    """In fp64, by differences of surrogates whose weights come from the loss's values alone: a loss
    of -w A logp is v / logp' logp there, one of a ratio that is 1 or constant v exp(logp - logp'),
    and nothing where it is clipped. PPO's ratio to the engine is no constant, and is taken as it
    stands."""
    now, before = [-1.0, -2.0, -0.4, -3.0], [-1.4, -1.5, -0.41, -4.9]
    batch, at = response(before, now, advantage, reward), torch.tensor(now, dtype=torch.float64)
    result = loss.token_loss(at, batch)
    values = result.loss.masked_fill(result.clipped, 0.0)

    def surrogate(logp: Tensor) -> Tensor:
        if isinstance(loss, PpoClipLoss) and loss.old_policy == "engine":
            return loss.token_loss(logp, batch).loss
        if isinstance(loss, PpoClipLoss | GspoLoss):
            return values * torch.exp(logp - at)
        return values / at * logp

    step = torch.full_like(at, 1e-6)
    differences = (surrogate(at + step) - surrogate(at - step)) / (2 * step)
    assert gradient(loss, now, batch) == pytest.approx(differences.tolist(), rel=1e-6)


@every_loss
@pytest.mark.parametrize(("advantage", "reward"), [(1.5, 1.0), (-0.5, 0.0)])
def test_on_the_policys_own_tokens_every_loss_is_the_policy_gradient(
    loss: PolicyLoss, advantage: float, reward: float
) -> None:
    batch = response(NOW, NOW, advantage, reward)
    assert gradient(loss, NOW, batch) == pytest.approx([-advantage] * 2)
    result = loss.token_loss(torch.tensor(NOW, dtype=torch.float64), batch)
    assert not (result.truncated | result.clipped).any()


def test_weighted_topr_is_the_policy_gradient_times_its_weights() -> None:
    loss = ToprLoss(positive_weight=3.0, negative_weight=0.5)
    assert derivative(loss, -2.0, token(-2.0, 1.0, reward=1.0)) == pytest.approx(-3.0)
    assert derivative(loss, -2.0, token(-2.0, -1.0, reward=0.0)) == pytest.approx(0.5)


@every_loss
def test_a_loss_says_whether_the_samplers_log_probabilities_change_its_gradient(
    loss: PolicyLoss,
) -> None:
    gradients = [
        gradient(loss, NOW, response(before, NOW, advantage, reward))
        for advantage, reward in ((1.0, 1.0), (-1.0, 0.0))
        for before in (NOW, [-1.5, -2.5], [-0.5, -1.5], [-9.0, -8.0])
    ]
    plain = [[-1.0, -1.0]] * 4 + [[1.0, 1.0]] * 4
    assert (gradients != plain) is loss.corrects_staleness
    if not loss.corrects_staleness:
        assert loss.kind == "policy_gradient"


@every_loss
def test_a_token_without_an_advantage_has_no_gradient(loss: PolicyLoss) -> None:
    assert gradient(loss, NOW, response(BEFORE, NOW, 0.0)) == [0.0, 0.0]


@every_loss
def test_a_loss_that_needs_no_whole_responses_does_not_look_at_them(loss: PolicyLoss) -> None:
    batch = response(BEFORE, NOW, 1.0, reward=0.0)
    other = TokenBatch(
        sampling_logp=batch.sampling_logp,
        advantage=batch.advantage,
        reward=batch.reward,
        weight=batch.weight,
        num_tokens=batch.num_tokens * 2,
        reference=None,
        mean_log_ratio=batch.mean_log_ratio - 1.0,  # type: ignore[operator]
    )
    same = gradient(loss, NOW, batch) == gradient(loss, NOW, other)
    assert same is not loss.needs_whole_responses


@every_loss
def test_every_loss_is_chosen_by_its_kind_and_explains_itself(loss: PolicyLoss) -> None:
    chosen: PolicyLoss = TypeAdapter(LossConfig).validate_python({"kind": loss.kind})
    assert type(chosen) is type(loss)
    assert len(loss.explain()) > 20
