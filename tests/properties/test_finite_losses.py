"""However far learner, engine and reference are apart: every loss and every gradient is finite, and
what is finite without the bounds is the very same with them."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from tasks.learner import log_ratios
from tasks.learner.losses.registry import LossConfig
from tasks.learner.objective import Objective, SequenceMaskConfig
from tasks.learner.token_loss import PolicyLoss, TokenBatch

LOSS: TypeAdapter[PolicyLoss] = TypeAdapter(LossConfig)
GATE: TypeAdapter[Any] = TypeAdapter(SequenceMaskConfig)  # Any: either gate
LEVELS = ("token", "sequence", "geometric")
LOSSES: list[dict[str, object]] = [
    {"kind": "policy_gradient"},
    {"kind": "cispo"},
    {"kind": "cispo", "clip_low": 0.2, "clip_high": 1e30},
    {"kind": "gspo"},
    {"kind": "gspo", "clip_low": 3e-4, "clip_high": 1e30},
    {"kind": "icepop"},
    {"kind": "icepop", "mask_low": 0.0, "mask_high": 1e37},
    *(
        {"kind": "ppo_clip", "old_policy": old, "dual_clip": dual, "importance_cap": cap}
        for old, dual, cap in itertools.product(("engine", "learner"), (None, 3.0), (2.0, 1e30))
    ),
    *(
        {"kind": "reinforce", "level": level, "importance_cap": cap}
        for level, cap in itertools.product(LEVELS, (2.0, 1e37))
    ),
    *({"kind": "topr", "level": level, "positive_weight": 1e6} for level in LEVELS),
    {"kind": "custom", "path": "examples.praise_loss:PraiseLoss"},
]
GATES: list[dict[str, object]] = [
    {"kind": "open"},
    *({"kind": "drift", "statistic": name} for name in ("k1", "geometric", "k2", "k3")),
    {"kind": "drift", "negative_only": True, "bound": 50.0},
]
TERMS: list[dict[str, Any]] = [
    {},
    {"kl_coefficient": 0.1, "kl_estimator": "k3"},
    {"kl_coefficient": 1e6, "kl_estimator": "k2"},
    {"kl_coefficient": 1e6, "kl_estimator": "k3", "kl_place": "reward"},
]

FAR = [0.0, 88.0, 88.7, 88.8, 89.0, 700.0, 1e4]
apart = st.one_of(
    st.sampled_from([*FAR, *(-each for each in FAR), -math.inf]), st.floats(-1e4, 1e4)
)
near = st.floats(-20.0, 20.0)
advantages = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 2e6, -2e6]), st.floats(-5.0, 5.0, allow_subnormal=False)
)
updates = st.booleans()
gates, terms = st.sampled_from(GATES), st.sampled_from(TERMS)
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=str)


def objective_of(
    loss: dict[str, object], gate: dict[str, object], term: dict[str, Any]
) -> Objective:
    """What is minimised with these settings."""
    return Objective(
        loss=LOSS.validate_python(loss), sequence_mask=GATE.validate_python(gate), **term
    )


def row(
    differences: list[tuple[float, float, float]], advantage: float, several: bool
) -> tuple[Tensor, TokenBatch]:
    """A response, so far from which the engine, the reference and the proximal policy are. -inf:
    the learner would never sample the token."""
    logp = torch.full((len(differences),), -2.0)
    told = [torch.tensor(column) for column in zip(*differences, strict=True)]
    never = torch.stack(told).isinf().any(0)
    sampling_logp, reference, proximal = (torch.where(never, -2.0, logp - each) for each in told)
    reference = torch.where(told[1] == -math.inf, -math.inf, reference)
    logp = torch.where(told[0] == -math.inf, -math.inf, logp)

    def on_all(value: float) -> Tensor:
        return torch.full_like(logp, value)

    return logp, TokenBatch(
        sampling_logp=sampling_logp,
        advantage=on_all(advantage),
        reward=on_all(advantage),
        weight=on_all(1.0),
        num_tokens=on_all(len(logp)),
        reference=reference,
        mean_log_ratio=None,
        proximal=proximal if several else None,
    )


def played(objective: Objective, logp: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Loss and gradient of the tokens of one response."""
    completed = objective.completed(logp, batch, (len(logp),))
    return objective.weighted_loss(logp, completed), objective.by_logp(logp, completed)


def tokens_of(distance: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(distance, distance, distance), min_size=1, max_size=4)


def test_every_kind_of_loss_is_among_them() -> None:
    kinds = TypeAdapter(LossConfig).json_schema()["discriminator"]["mapping"]
    assert {loss["kind"] for loss in LOSSES} == set(kinds)


@every_loss
@settings(max_examples=60)
@given(tokens=tokens_of(apart), advantage=advantages, several=updates, gate=gates, term=terms)
def test_losses_and_gradients_are_finite_however_far_policies_are_apart(
    loss: dict[str, object],
    tokens: list[tuple[float, float, float]],
    advantage: float,
    several: bool,
    gate: dict[str, object],
    term: dict[str, Any],
) -> None:
    values, slopes = played(objective_of(loss, gate, term), *row(tokens, advantage, several))
    assert values.isfinite().all()
    assert slopes.isfinite().all()


@every_loss
@settings(max_examples=30)
@given(tokens=tokens_of(near), advantage=advantages, several=updates, gate=gates, term=terms)
def test_bounds_change_no_bit_of_what_is_finite_without_them(
    loss: dict[str, object],
    tokens: list[tuple[float, float, float]],
    advantage: float,
    several: bool,
    gate: dict[str, object],
    term: dict[str, Any],
) -> None:
    objective, given = objective_of(loss, gate, term), row(tokens, advantage, several)
    bounded = played(objective, *given)
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in {
            "LEAST_LOGP": -math.inf,
            "LARGEST_LOG_RATIO": math.inf,
            "LARGEST_WEIGHT": math.inf,
        }.items():
            patch.setattr(log_ratios, name, bound)
        plain = played(objective, *given)
    assume(all(bool((each.abs() < log_ratios.LARGEST_WEIGHT).all()) for each in plain))
    assert all(map(torch.equal, bounded, plain))


@every_loss
@settings(max_examples=30)
@given(tokens=tokens_of(near), advantage=advantages, several=updates, gate=gates, term=terms)
def test_gradients_in_single_precision_are_those_of_double(
    loss: dict[str, object],
    tokens: list[tuple[float, float, float]],
    advantage: float,
    several: bool,
    gate: dict[str, object],
    term: dict[str, Any],
) -> None:
    objective, (logp, batch) = objective_of(loss, gate, term), row(tokens, advantage, several)
    exact = replace(
        batch,
        **{
            each.name: getattr(batch, each.name).double()
            for each in fields(batch)
            if getattr(batch, each.name) is not None
        },
    )
    _, single = played(objective, logp, batch)
    _, double = played(objective, logp.double(), exact)
    # k3 of nearly equal log-probabilities is a difference of close numbers: 1e-10 of it is rounding
    largest = max(1.0, float(double.abs().max()), 1e-4 * term.get("kl_coefficient", 0.0))
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-6 * largest)
