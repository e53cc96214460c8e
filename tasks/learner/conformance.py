"""Checks that a loss and an advantage keep what the learner relies on, over random batches.

    check_loss         random responses ─▶ token_loss ─▶ shapes, gradients, tokens by themselves
    check_advantage    random groups ─▶ group_advantages ─▶ groups by themselves, order, sums

Leaves out the learner: its sums, rows and updates are the same for every loss.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from artifacts.conformance import RuleBroken, RuleCheck, RuleFindings, shown
from tasks.learner.advantage import Advantage, group_advantages
from tasks.learner.objective import Objective
from tasks.learner.token_loss import PolicyLoss, TokenBatch, TokenLoss

STEP = 1e-6  # of a finite difference, in nats
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # of a derivative and its finite difference
FAR = (0.0, 1.0, 30.0, 89.0, 700.0, 1e4)  # nats between two policies; exp overflows at 88.7


class LossRule(StrEnum):
    """The rules of a loss, in the order in which they are reported."""

    SHAPES = "token_loss gives a number and two flags per token"
    RATIO_ONE = "on tokens of the policy itself loss and gradient are finite"
    GRADIENT = "the gradient is that of finite differences"
    ALONE = "a token's loss is the same in any row and order"
    WEIGHT = "the weight of a token is left to the learner"
    NO_ADVANTAGE = "a token without an advantage has no gradient"
    CLIPPED = "a clipped token has no gradient, and clips says if there are any"
    FAR = "however far apart the policies are, loss and gradient are finite"


class AdvantageRule(StrEnum):
    """The rules of an advantage within a group, likewise."""

    VALUES = "of gives a finite number for each reward"
    ALONE = "a group's advantages do not depend on other groups"
    ORDER = "the order of the responses changes no advantage"
    FLAT = "equal rewards have no advantage, if leaves_flat_groups_out"
    ZERO_SUM = "the advantages of a group sum to zero, if zero_sum"


class _ConstantsHeld(TorchFunctionMode):
    """Records what `detach` and blocks without gradients return, and returns the same again: to a
    gradient these are constants, and so they must be to a finite difference."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []  # Any: what torch's functions return
        self._place: int | None = None

    def again(self) -> _ConstantsHeld:
        self._place = 0
        return self

    def __torch_function__(
        self,
        func: Callable[..., Any],  # Any: torch's functions
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        is_constant = name == "detach" or (not torch.is_grad_enabled() and "grad" not in name)
        if not is_constant:
            return func(*args, **(kwargs or {}))
        if self._place is None:
            self._kept.append(func(*args, **(kwargs or {})))
            return self._kept[-1]
        self._place += 1
        return self._kept[self._place - 1]


def check_loss(loss: PolicyLoss, num_batches: int = 16) -> tuple[RuleCheck, ...]:
    """Check a loss on so many random batches of responses, with and without a proximal policy."""
    findings = RuleFindings(LossRule)
    for seed in range(num_batches):
        rng = random.Random(seed)
        logp, batch = _random_batch(loss, rng, is_first=seed % 2 == 0)
        with findings.trying(LossRule.SHAPES):
            _check_shapes(logp, loss.token_loss(logp, batch))
        if findings.is_broken(LossRule.SHAPES):
            break
        for rule, check in (
            (LossRule.RATIO_ONE, _check_ratio_one),
            (LossRule.GRADIENT, _check_gradient),
            (LossRule.ALONE, partial(_check_alone, rng=rng)),
            (LossRule.WEIGHT, _check_weight),
            (LossRule.NO_ADVANTAGE, _check_no_advantage),
            (LossRule.CLIPPED, _check_clipped),
            (LossRule.FAR, partial(_check_far, rng=rng)),
        ):
            with findings.trying(rule):
                check(loss, logp, batch)
    return findings.checks


def _random_batch(
    loss: PolicyLoss, rng: random.Random, is_first: bool
) -> tuple[Tensor, TokenBatch]:
    """Responses of random lengths in one row, fp64, the policies some tenths of a nat apart.
    is_first: without a proximal policy, as in a step of one update."""
    lengths = tuple(rng.randint(1, 6) for _ in range(rng.randint(2, 5)))
    made = torch.Generator().manual_seed(rng.getrandbits(31))

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(sum(lengths), generator=made, dtype=torch.float64)

    def per_response(values: Sequence[float]) -> Tensor:
        tokens = [
            value for value, length in zip(values, lengths, strict=True) for _ in range(length)
        ]
        return torch.tensor(tokens, dtype=torch.float64)

    logp = -0.01 - normal(1.5).abs()
    batch = TokenBatch(
        sampling_logp=logp + normal(0.4),
        advantage=per_response([rng.gauss(0, 1) for _ in lengths]),
        reward=per_response([rng.choice((0.0, 0.5, 1.0)) for _ in lengths]),
        weight=torch.ones_like(logp),
        num_tokens=per_response([float(length) for length in lengths]),
        reference=None,
        mean_log_ratio=None,
        proximal=None if is_first else logp + normal(0.3),
    )
    return logp, Objective(loss=loss).completed(logp, batch, lengths)


def _loss_and_slope(loss: PolicyLoss, logp: Tensor, batch: TokenBatch) -> tuple[TokenLoss, Tensor]:
    leaf = logp.detach().clone().requires_grad_()
    found = loss.token_loss(leaf, batch)
    (slope,) = torch.autograd.grad(
        found.loss.sum(), leaf, allow_unused=True, materialize_grads=True
    )
    return found, slope


def _check_shapes(logp: Tensor, found: object) -> None:
    if not isinstance(found, TokenLoss):
        raise RuleBroken(f"token_loss must return a TokenLoss, got {shown(found)}; make one")
    for name, is_flag in (("loss", False), ("truncated", True), ("clipped", True)):
        values = getattr(found, name)
        is_right = isinstance(values, Tensor) and values.shape == logp.shape
        if not is_right or (values.dtype == torch.bool) is not is_flag:
            told = (
                f"{values.dtype} {tuple(values.shape)}"
                if isinstance(values, Tensor)
                else shown(values)
            )
            raise RuleBroken(
                f"{name} must be a tensor of {'flags' if is_flag else 'numbers'} of the shape of"
                f" logp {tuple(logp.shape)}, got {told}; keep one value per token, sum nothing"
            )


def _check_finite(found: TokenLoss, slope: Tensor, where: str, cure: str) -> None:
    for name, values in (("loss", found.loss), ("gradient", slope)):
        if not values.isfinite().all():
            raise RuleBroken(f"the {name} must be finite {where}, got {_rounded(values)}; {cure}")


def _check_ratio_one(loss: PolicyLoss, logp: Tensor, batch: TokenBatch) -> None:
    own = replace(
        batch,
        sampling_logp=logp,
        proximal=None if batch.proximal is None else logp,
        mean_log_ratio=None if batch.mean_log_ratio is None else torch.zeros_like(logp),
    )
    where = "where engine and learner agree (ratio 1)"
    _check_finite(
        *_loss_and_slope(loss, logp, own), where, "look for a division by 0 or a log of 0"
    )


def _check_gradient(loss: PolicyLoss, logp: Tensor, batch: TokenBatch) -> None:
    leaf, constants = logp.detach().clone().requires_grad_(), _ConstantsHeld()
    with constants:
        total = loss.token_loss(leaf, batch).loss.sum()
    if not total.requires_grad:
        raise RuleBroken(
            "the loss must have a gradient by logp, it has none; do not detach logp everywhere"
        )
    (slope,) = torch.autograd.grad(total, leaf)
    for place in range(len(logp)):
        sums = []
        for sign in (1, -1):
            moved = logp.detach().clone()
            moved[place] += sign * STEP
            with constants.again():
                found = loss.token_loss(moved.requires_grad_(), batch).loss
            sums.append(found.detach().sum().item())
        difference = (sums[0] - sums[1]) / (2 * STEP)
        derivative = slope[place].item()
        if not math.isclose(derivative, difference, rel_tol=CLOSE["rtol"], abs_tol=CLOSE["atol"]):
            raise RuleBroken(
                f"the derivative by a token's logp must be its finite difference {difference:.6g},"
                f" autograd gives {derivative:.6g}; differentiate what you compute, and"
                " hold weights constant by detach"
            )


def _check_alone(loss: PolicyLoss, logp: Tensor, batch: TokenBatch, *, rng: random.Random) -> None:
    whole = loss.token_loss(logp, batch).loss
    order = torch.tensor(rng.sample(range(len(logp)), len(logp)))
    for places in (order, order[: len(order) // 2], order[:1]):
        part = loss.token_loss(logp[places], batch.take(places)).loss
        if not torch.allclose(part, whole[places], rtol=1e-9, atol=1e-12):
            raise RuleBroken(
                f"a token's loss must not depend on the tokens beside it, {_rounded(whole[places])}"
                f" became {_rounded(part)} in another row; take no mean, sum or deviation over"
                " tokens: responses are packed as they fit (needs_whole_responses gives"
                " mean_log_ratio)"
            )


def _check_weight(loss: PolicyLoss, logp: Tensor, batch: TokenBatch) -> None:
    once = loss.token_loss(logp, batch).loss
    if not torch.equal(once, loss.token_loss(logp, replace(batch, weight=3 * batch.weight)).loss):
        raise RuleBroken(
            "the loss must not depend on batch.weight, it does; leave it out: the learner"
            " multiplies by it"
        )


def _check_no_advantage(loss: PolicyLoss, logp: Tensor, batch: TokenBatch) -> None:
    _, slope = _loss_and_slope(loss, logp, replace(batch, advantage=0 * batch.advantage))
    if slope.any():
        raise RuleBroken(
            f"a token of advantage 0 must have no gradient, got {_rounded(slope)}: dropped"
            " responses and groups whose rewards agree would be trained; multiply by"
            " batch.advantage, and put other terms into learner.kl_coefficient or"
            " learner.entropy_coefficient"
        )


def _check_clipped(loss: PolicyLoss, logp: Tensor, batch: TokenBatch) -> None:
    found, slope = _loss_and_slope(loss, logp, batch)
    if slope[found.clipped].any():
        raise RuleBroken(
            "a token in `clipped` must have no gradient, some has one; put tokens whose weight is"
            " bounded into `truncated`"
        )
    if batch.proximal is None and not loss.clips and found.clipped.any():
        raise RuleBroken(
            "clips must be True for a loss that clips in a step of one update, got False; set it"
        )


def _check_far(loss: PolicyLoss, logp: Tensor, batch: TokenBatch, *, rng: random.Random) -> None:
    apart = torch.tensor([rng.choice((1, -1)) * rng.choice(FAR) for _ in logp])
    single: dict[str, Any] = {  # Any: a tensor, or None where the batch has none
        each.name: None if (values := getattr(batch, each.name)) is None else values.float()
        for each in fields(batch)
    }
    given = replace(TokenBatch(**single), sampling_logp=logp.float() - apart)
    given = replace(given, mean_log_ratio=None if given.mean_log_ratio is None else apart)
    _check_finite(
        *_loss_and_slope(loss, logp.float(), given),
        f"for log-probabilities {_rounded(apart)} apart in fp32",
        "take ratio, weighted_logp and finite of tasks.learner.log_ratios in place of torch.exp",
    )


def _rounded(values: Tensor) -> str:
    return shown([float(f"{value:.4g}") for value in values.tolist()])


def check_advantage(advantage: Advantage, num_groups: int = 64) -> tuple[RuleCheck, ...]:
    """Check an advantage on so many random groups. Raises ValueError for a kind whose groups have
    no advantage by themselves."""
    if advantage.spans_step:
        raise ValueError(
            "an advantage can be checked if a group has it by itself, got kind"
            f" {advantage.kind!r}, which waits for all rewards of the step; check another one"
        )
    findings, rng = RuleFindings(AdvantageRule), random.Random(0)
    before: list[tuple[list[float], list[float]]] = []
    for _ in range(num_groups):
        rewards = [rng.choice((0.0, 0.5, 1.0, rng.gauss(0, 2))) for _ in range(rng.randint(2, 9))]
        with findings.trying(AdvantageRule.VALUES):
            before.append((rewards, _advantages(advantage, rewards)))
            _advantages(advantage, rewards[:1])
        if findings.is_broken(AdvantageRule.VALUES):
            break
        values = before[-1][1]
        with findings.trying(AdvantageRule.ORDER):
            order = rng.sample(range(len(rewards)), len(rewards))
            moved = _advantages(advantage, [rewards[place] for place in order])
            _same(moved, [values[place] for place in order], "another order of the same rewards")
        with findings.trying(AdvantageRule.FLAT):
            flat = advantage.of([rewards[0]] * len(rewards), None)
            if advantage.leaves_flat_groups_out and any(abs(value) > 1e-9 for value in flat):
                raise RuleBroken(
                    f"equal rewards must have no advantage, of({[rewards[0]] * 2}...) gave"
                    f" {shown(flat)}; subtract the mean, or set leaves_flat_groups_out = False"
                )
        with findings.trying(AdvantageRule.ZERO_SUM):
            _check_sum(advantage, values)
    for rewards, values in before:
        with findings.trying(AdvantageRule.ALONE):
            _same(_advantages(advantage, rewards), values, "the same rewards, after other groups")
    return findings.checks


def _advantages(advantage: Advantage, rewards: Sequence[float]) -> list[float]:
    found = group_advantages([*rewards, None], advantage)
    assert found[-1] is None, "what has no verdict has no advantage"
    return [value for value in found if value is not None]


def _same(found: Sequence[float], expected: Sequence[float], given: str) -> None:
    pairs = zip(found, expected, strict=True)
    if not all(math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) for one, other in pairs):
        raise RuleBroken(
            f"{given} must give the same advantages, {shown(expected)} became {shown(found)};"
            " compute from `rewards` alone, and keep nothing between calls"
        )


def _check_sum(advantage: Advantage, values: Sequence[float]) -> None:
    total, claims = math.fsum(values), getattr(advantage, "zero_sum", False)
    if claims and abs(total) > 1e-6 * max(1.0, *map(abs, values)):
        raise RuleBroken(
            f"the advantages of a group must sum to zero, {shown(list(values))} sum to {total:.4g};"
            " subtract the mean, or leave zero_sum out"
        )
