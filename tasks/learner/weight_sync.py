"""The sync gate: after every publication, do the engines sample with the learner's weights?

Two comparisons, because each catches what the other cannot: exact checksums name the tensor that is stale, missing or transposed;
log-probabilities of fixed probe prompts show that the engine computes with what it holds. An engine samples nothing for training
before it has passed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.engines.base import Attestation


class GateFailed(RuntimeError):
    """An engine does not hold the learner's weights; the run must stop, its rollouts would come from another policy."""


def check_gate(engine: str, attested: Attestation, expected: Attestation, tolerance_nats: float) -> float:
    """The mean absolute difference of the probes' log-probabilities. Raises GateFailed with the tensor's name or the difference."""
    if attested.version != expected.version:
        raise GateFailed(f"{engine} must hold version {expected.version}, it holds {attested.version}; its loading was skipped")
    missing = expected.fingerprints.keys() - attested.fingerprints.keys()
    if missing:
        raise GateFailed(f"{engine} must hold every tensor of version {expected.version}, {min(missing)} never reached it")
    wrong = [name for name, value in expected.fingerprints.items() if attested.fingerprints[name] != value]
    if wrong:
        raise GateFailed(
            f"{engine} must hold the learner's {wrong[0]} of version {expected.version}, it does not; tensors that differ: {len(wrong)}"
        )
    difference = mean_difference(attested.probe_logprobs, expected.probe_logprobs)
    if not difference <= tolerance_nats:  # not-a-number fails, too
        raise GateFailed(
            f"{engine} must give the probes the learner's log-probabilities within {tolerance_nats} nats, they differ by "
            f"{difference:.3f} on average; its tensors are right, so look at what it computes (dtype, attention backend, position limits), "
            "or raise gate.tolerance_nats"
        )
    return difference


def mean_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Mean absolute difference over all probe tokens, nats; 0 without probes."""
    pairs = [(a, b) for ours, theirs in zip(first, second, strict=True) for a, b in zip(ours, theirs, strict=True)]
    return sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else 0.0
