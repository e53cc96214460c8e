"""The sync gate: what passes, and what the failure names."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from tasks.engines.base import Attestation
from tasks.learner.weight_check import WeightCheckFailed, check_weights, mean_difference

TENSORS = {"embed.weight": 11, "layers.0.q.weight": 22, "norm.weight": 33}
PROBES = ((-1.0, -2.0), (-0.5,))


def attest(
    version: int = 7,
    tensors: dict[str, int] | None = None,
    probes: tuple[tuple[float, ...], ...] | None = PROBES,
) -> Attestation:
    return Attestation(
        version=version, fingerprints=TENSORS if tensors is None else tensors, probe_logprobs=probes
    )


def failure(
    attested: Attestation, expected: Attestation | None = None, tolerance_nats: float = 0.1
) -> str:
    with pytest.raises(WeightCheckFailed) as caught:
        check_weights("engine-3", attested, expected or attest(), tolerance_nats)
    return str(caught.value)


def test_equal_attestations_pass_without_difference() -> None:
    assert check_weights("engine-3", attest(), attest(), 0.1) == 0.0


def test_a_difference_within_the_tolerance_passes_and_is_told() -> None:
    assert check_weights(
        "engine-3", attest(probes=((-1.1, -2.0), (-0.7,))), attest(), 0.11
    ) == pytest.approx(0.1)


def test_an_engine_that_computes_no_logprobs_is_judged_by_its_tensors_alone() -> None:
    assert check_weights("engine-3", attest(probes=None), attest(), 0.1) is None
    stale = attest(tensors=TENSORS | {"norm.weight": 0}, probes=None)
    assert "must hold the learner's norm.weight" in failure(stale)


def test_another_version_fails_first() -> None:
    assert (
        failure(attest(version=6, tensors={}))
        == "engine-3 must hold version 7, it holds 6; its loading was skipped"
    )


def test_a_missing_tensor_is_named() -> None:
    told = failure(attest(tensors={"embed.weight": 11, "norm.weight": 33}))
    assert "layers.0.q.weight never reached it" in told


def test_stale_tensors_are_named_and_counted() -> None:
    told = failure(attest(tensors=TENSORS | {"layers.0.q.weight": 0}))
    assert "must hold the learner's layers.0.q.weight of version 7" in told
    assert told.endswith("tensors that differ: 1")


def test_tensors_that_only_the_engine_has_do_not_matter() -> None:
    assert (
        check_weights("engine-3", attest(tensors=TENSORS | {"rotary.cache": 5}), attest(), 0.1)
        == 0.0
    )


def test_other_log_probabilities_fail_with_the_difference() -> None:
    told = failure(attest(probes=((-1.0, -2.0), (-1.1,))))
    assert "within 0.1 nats, they differ by 0.200 on average" in told
    assert "weight_check.tolerance_nats" in told


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_fails(wrong: float) -> None:
    assert failure(attest(probes=((-1.0, wrong), (-0.5,)))).startswith(
        "engine-3 must give the probes"
    )


def test_not_a_number_on_both_sides_fails_too() -> None:
    sick = attest(probes=((math.nan,),))
    assert "differ by nan" in failure(sick, sick)


def test_without_probes_the_tensors_alone_decide() -> None:
    assert check_weights("engine-3", attest(probes=()), attest(probes=()), 0.1) == 0.0
    assert mean_difference((), ()) == 0.0


def adapted(shift: float, share: float, noise: float = 0.02) -> tuple[Attestation, Attestation]:
    """What an engine and the learner attest to an adapter that moves 40 tokens by +-shift, of which
    the engine's moves `share`; its numbers have noise."""
    base = tuple(-1.0 - number % 5 for number in range(40))
    signs = [1 if number % 3 else -1 for number in range(40)]
    noises = [noise * (1 if number % 2 else -1) for number in range(40)]
    made = []
    for part, noisy in ((share, noises), (1.0, [0.0] * 40)):
        moved = tuple(
            alone + part * shift * sign + each
            for alone, sign, each in zip(base, signs, noisy, strict=True)
        )
        made.append(replace(attest(probes=(moved,)), base_logprobs=(base,)))
    return made[0], made[1]


def test_an_adapter_must_move_the_engine_as_far_as_the_learner() -> None:
    """Long before its whole effect exceeds the tolerance."""
    assert check_weights("engine-3", *adapted(0.04, 1.0), 0.15) is not None
    said = failure(*adapted(0.04, 0.0), tolerance_nats=0.15)
    assert "as the learner's adapter of version 7 does, it moves them" in said
    assert "another scale" in failure(*adapted(0.04, 2.0), tolerance_nats=0.15)
    check_weights("engine-3", *adapted(0.01, 0.0), 0.15)  # too little to be told from noise
    engine, learner = adapted(0.04, 0.0)
    check_weights("engine-3", replace(engine, base_logprobs=None), learner, 0.15)


@pytest.mark.parametrize("seed", range(20))
def test_rounding_alone_is_no_mismatch_of_an_adapter(seed: int) -> None:
    """In bf16 every log-probability is off by a twentieth of a nat, in engine and learner, with an
    adapter and without: what that hides is not judged, and what it does not hide is."""
    rounding = Random(seed)

    def told(shift: float, share: float) -> tuple[Attestation, Attestation]:
        moves = [rounding.gauss(0.0, shift) for _ in range(80)]
        made = []
        for part in (share, 1.0):
            with_it, without = (
                tuple(size * move + rounding.gauss(0.0, 0.05) for move in moves)
                for size in (part, 0.0)
            )
            made.append(replace(attest(probes=(with_it,)), base_logprobs=(without,)))
        return made[0], made[1]

    for small in (0.0, 0.02, 0.04, 0.1):
        check_weights("engine-3", *told(small, 1.0), 0.5)
    check_weights("engine-3", *told(0.3, 1.0), 0.5)
    assert "times as far" in failure(*told(0.3, 0.0), tolerance_nats=0.5)
    assert "times as far" in failure(*told(0.3, 2.0), tolerance_nats=0.8)
