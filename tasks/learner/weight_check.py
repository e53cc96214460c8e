"""The weight check: after every publication learner ranks and engines must hold the same weights.

Exact checksums name the tensor that is stale, missing or transposed; log-probabilities of fixed
probe prompts show that the engine computes with the tensors that it holds. No engine samples for
training before it has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed
from tasks.engines.base import Attestation, Probed


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
    if attested.adapters != expected.adapters:
        raise WeightCheckFailed(
            f"{engine} must give the probes' log-probabilities with adapters {expected.adapters},"
            f" it gave those of {attested.adapters}; look at what it was told of them"
        )
    ours, theirs = _by_adapter(expected), _by_adapter(attested)
    differences = [mean_difference(theirs[name], ours[name]) for name in expected.adapters]
    for name, difference in zip(expected.adapters, differences, strict=True):
        if not difference <= tolerance_nats:  # not-a-number fails, too
            raise WeightCheckFailed(
                f"{engine} must give the probes the learner's log-probabilities{_with(name)} within"
                f" {tolerance_nats} nats, they differ by {difference:.3f} on average; its tensors"
                " are right, so look at what it computes (dtype, attention backend, position"
                " limits), or raise weight_check.tolerance_nats"
            )
    _check_adapters(engine, theirs, ours, expected.version)
    return max(differences)


BASE = "the base model"
LEAST_SHIFT_NATS = 0.03  # between two adapters, of which bf16 may round all away below
SURE_ERRORS = 4.0  # standard errors by which a share differs from 1 before it is a mismatch


def _with(adapter: str) -> str:
    return f" with adapter {adapter}" if adapter else ""


def _by_adapter(attested: Attestation) -> dict[str, Probed]:
    """The probes' log-probabilities of each adapter, and of the base where they are known."""
    probed, names = attested.probe_logprobs or (), attested.adapters
    number = len(probed) // len(names)
    found = {
        name: probed[place * number : (place + 1) * number] for place, name in enumerate(names)
    }
    return found if attested.base_logprobs is None else {**found, BASE: attested.base_logprobs}


def _check_adapters(
    engine: str, theirs: Mapping[str, Probed], ours: Mapping[str, Probed], version: int
) -> None:
    """Raises WeightCheckFailed unless each adapter moves the engine's log-probabilities away from
    those of the base, and of every other adapter, as it moves the learner's. Over all tokens of the
    probes, so that it is seen long before an adapter's effect exceeds the tolerance of single
    values. What rounding moves, in engine and learner, is read from the base's log-probabilities;
    an adapter that moves less than twice as much is not judged."""
    is_known = BASE in theirs and BASE in ours
    noise = _root_mean_square(_shift(theirs[BASE], ours[BASE])) if is_known else 0.0
    pairs = [(name, other) for name in ours for other in ours if name not in (other, BASE)]
    for name, other in pairs:
        if other not in theirs:
            continue
        wanted, found = _shift(ours[name], ours[other]), _shift(theirs[name], theirs[other])
        if _root_mean_square(wanted) < max(LEAST_SHIFT_NATS, 2 * noise):
            continue
        square = sum(value * value for value in wanted)
        share = sum(a * b for a, b in zip(wanted, found, strict=True)) / square
        left = [b - share * a for a, b in zip(wanted, found, strict=True)]
        error = _root_mean_square(left) / square**0.5  # standard error of the share
        if not abs(share - 1) <= max(0.5, SURE_ERRORS * error):  # not-a-number fails, too
            origin = f"{BASE}'s" if other == BASE else f"those of {other}"
            raise WeightCheckFailed(
                f"{engine} must move the probes' log-probabilities away from {origin} as the"
                f" learner's adapter{name and f' {name}'} of version {version} does, it moves them"
                f" {share:.2f} times as far; its tensors are right, so it computes without them, or"
                " with another scale or slot; look at how its requests name the adapter"
            )


def _root_mean_square(values: Sequence[float]) -> float:
    return (sum(value * value for value in values) / len(values)) ** 0.5 if values else 0.0


def _shift(probed: Probed, other: Probed) -> list[float]:
    """What is added to each log-probability."""
    return [
        value - before
        for probe, alone in zip(probed, other, strict=True)
        for value, before in zip(probe, alone, strict=True)
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
        of_ranks = enumerate(attested.of_ranks.get(wrong[0], ()))
        ranks = ", ".join(str(rank) for rank, value in of_ranks if value != wanted[wrong[0]])
        raise WeightCheckFailed(
            f"{holder} must hold the learner's {wrong[0]} of version {version},"
            f" {f'rank {ranks} of it' if ranks else 'it'} does not;"
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
