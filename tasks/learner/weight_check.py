"""The weight check: after every publication learner ranks and engines must hold the same weights.

Exact checksums name the tensor that is stale, missing or transposed; log-probabilities of fixed
probe prompts show that the engine computes with the tensors that it holds. No engine samples for
training before it has passed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed
from tasks.engines.base import Attestation


class WeightCheckConfig(FrozenConfig):
    """The settings of the weight check."""

    enabled: bool = Field(
        True,
        description=(
            "Compare engines and learner after every publication and stop the run on a mismatch."
        ),
    )
    num_probes: Fixed[int] = 2  # fixed probe prompts whose log-probabilities are compared
    probe_tokens: Fixed[int] = 40  # length to which a probe prompt is cut, in tokens
    tolerance_nats: float = Field(
        0.15,
        gt=0,
        description=(
            "Largest mean absolute difference of a probe token's log-probability; bf16 noise is"
            " about 0.04."
        ),
    )


class WeightCheckFailed(RuntimeError):
    """An engine or a learner rank does not hold the learner's weights. The run must stop: rollouts,
    or a rank's gradients, would be another policy's."""


def check_weights(
    engine: str, attested: Attestation, expected: Attestation, tolerance_nats: float
) -> float | None:
    """Check an engine; returns the mean absolute difference of the probes' log-probabilities in
    nats, None if either side computes none. Raises WeightCheckFailed with the tensor's name or the
    difference."""
    check_tensors(engine, attested, expected)
    if attested.probe_logprobs is None or expected.probe_logprobs is None:
        return None
    difference = mean_difference(attested.probe_logprobs, expected.probe_logprobs)
    if not difference <= tolerance_nats:  # not-a-number fails, too
        raise WeightCheckFailed(
            f"{engine} must give the probes the learner's log-probabilities within {tolerance_nats}"
            f" nats, they differ by {difference:.3f} on average; its tensors are right, so look at"
            " what it computes (dtype, attention backend, position limits), or raise"
            " weight_check.tolerance_nats"
        )
    _check_adapter(engine, attested, expected)
    return difference


LEAST_SHIFT_NATS = 0.03  # of an adapter, below which the noise of bf16 would decide


def _check_adapter(engine: str, attested: Attestation, expected: Attestation) -> None:
    """Raises WeightCheckFailed unless the adapter moves the engine's log-probabilities away from
    the base's as it moves the learner's. Over all tokens of the probes, so that it is seen long
    before the adapter's effect exceeds the tolerance of single values."""
    ours, theirs = _shift(expected), _shift(attested)
    square = sum(value * value for value in ours)
    if not theirs or not square or (square / len(ours)) ** 0.5 < LEAST_SHIFT_NATS:
        return
    share = sum(a * b for a, b in zip(ours, theirs, strict=True)) / square
    if not 0.5 < share < 1.5:  # not-a-number fails, too
        raise WeightCheckFailed(
            f"{engine} must move the probes' log-probabilities away from the base model's as the"
            f" learner's adapter of version {expected.version} does, it moves them {share:.2f}"
            " times as far; its tensors are right, so it computes without them, or with another"
            " scale; look at how its requests name the adapter"
        )


def _shift(attested: Attestation) -> list[float]:
    """What the adapter adds to each log-probability; nothing where that is not known."""
    if attested.probe_logprobs is None or attested.base_logprobs is None:
        return []
    return [
        value - of_base
        for probe, alone in zip(attested.probe_logprobs, attested.base_logprobs, strict=True)
        for value, of_base in zip(probe, alone, strict=True)
    ]


def check_tensors(holder: str, attested: Attestation, expected: Attestation) -> None:
    """Raises WeightCheckFailed unless `holder` has every tensor of the expected version."""
    version, held, wanted = expected.version, attested.fingerprints, expected.fingerprints
    if attested.version != version:
        raise WeightCheckFailed(
            f"{holder} must hold version {version}, it holds {attested.version}; its loading was"
            " skipped"
        )
    missing = wanted.keys() - held.keys()
    if missing:
        raise WeightCheckFailed(
            f"{holder} must hold every tensor of version {version}, {min(missing)} never reached it"
        )
    wrong = [name for name, value in wanted.items() if held[name] != value]
    if wrong:
        raise WeightCheckFailed(
            f"{holder} must hold the learner's {wrong[0]} of version {version}, it does not;"
            f" tensors that differ: {len(wrong)}"
        )


def mean_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """The mean absolute difference over all probe tokens, in nats; 0 without probes."""
    pairs = [
        (a, b)
        for ours, theirs in zip(first, second, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    ]
    return sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else 0.0
