"""A version of the weights on its way to the engines, and through the gate.

rank 0 ── file ──▶ all engines ── load, attest ──▶ gate
all other ranks ───────── attest ─────────────────▶ gate
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.records import Running, WeightsRef
from tasks.engines.base import Attestation, Engine
from tasks.engines.loading import load_all
from tasks.learner.remote import KEPT_VERSIONS, RemoteLearner
from tasks.learner.weight_check import WeightCheckConfig, check_tensors, check_weights

logger = logging.getLogger(__name__)

Probes = tuple[tuple[int, ...], ...]
# the file; what engines attest that have loaded it; what ranks attest, by name
HandedOver = tuple[WeightsRef, dict[str, Attestation], dict[str, Attestation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The version that the engines sample with now."""

    weights: WeightsRef
    # mean absolute difference of the probes' log-probabilities, engines against learner; None
    # where no gate compares them
    probe_difference_nats: float | None
    attested: Attestation | None  # what the gate expects of engines; None where it is off
    gate_s: float  # the comparison; learner and engines attest while the engines load
    drained_s: float  # longest that an engine finished what it ran before it loaded


async def publish_version(
    learners: Sequence[RemoteLearner],
    engines: Sequence[Engine],
    directory: Path,
    *,
    gate: WeightCheckConfig,
    probes: Probes,
    ranks_in_step: bool,
    running: Running = Running.DROP,
) -> Publication:
    """The learner's version -> file -> all engines -> gate, which is off without probes.

    The first rank writes the file, which the engines read back; the gate sees every other rank, or
    all of them. Raises GateFailed with the tensor's name.
    """
    hand_over = _in_step if ranks_in_step else _side_by_side
    weights, loaded, attested = await hand_over(learners, engines, directory, probes, running)
    expected = attested.get(learners[-1].name)
    gate_started_s = time.time()
    if expected is not None:
        for name, held in attested.items():
            check_tensors(name, held, expected)
    difference = None if expected is None else _passed(gate, loaded, expected)
    _keep_last_versions(directory, weights.version)
    gate_s = time.time() - gate_started_s
    return Publication(
        weights=weights,
        probe_difference_nats=difference,
        attested=expected,
        gate_s=gate_s,
        drained_s=max((held.drained_s for held in loaded.values()), default=0.0),
    )


async def _side_by_side(
    learners: Sequence[RemoteLearner],
    engines: Sequence[Engine],
    directory: Path,
    probes: Probes,
    running: Running,
) -> HandedOver:
    """The first rank writes, and engines load, while all others, whose devices are free, attest.

    The last rank alone is asked the probes: ranks with equal tensors compute the same.
    """
    asked = learners[1:] or learners[:1]
    (weights, loaded), attested = await asyncio.gather(
        _handed_over(learners[0], engines, directory, probes, running),
        _attestations([*((learner, ()) for learner in asked[:-1]), (asked[-1], probes)]),
    )
    return weights, loaded, attested


async def _handed_over(
    learner: RemoteLearner,
    engines: Sequence[Engine],
    directory: Path,
    probes: Probes,
    running: Running,
) -> tuple[WeightsRef, dict[str, Attestation]]:
    """The version that this rank writes, and what every engine attests that has loaded it."""
    weights = await _exported([learner], directory)
    return weights, await load_all(engines, weights, probes, running)


async def _in_step(
    learners: Sequence[RemoteLearner],
    engines: Sequence[Engine],
    directory: Path,
    probes: Probes,
    running: Running,
) -> HandedOver:
    """All ranks export, of which the first one writes; all attest while engines load."""
    weights = await _exported(learners, directory)
    loaded, attested = await asyncio.gather(
        load_all(engines, weights, probes, running),
        _attestations([(learner, probes) for learner in learners]),
    )
    return weights, loaded, attested


def _passed(
    gate: WeightCheckConfig, loaded: Mapping[str, Attestation], expected: Attestation
) -> float | None:
    """Have every engine pass the gate; the largest difference of the probes, None if no engine
    computes any."""
    differences = {
        name: check_weights(name, held, expected, gate.tolerance_nats)
        for name, held in loaded.items()
    }
    silent = [name for name, difference in differences.items() if difference is None]
    if silent:
        names = ",".join(silent)
        logger.info("gate compared tensors alone: no log-probabilities from engines=%s", names)
    told = [difference for difference in differences.values() if difference is not None]
    return max(told, default=None)


async def _exported(learners: Sequence[RemoteLearner], directory: Path) -> WeightsRef:
    """The file of the version, which the first of these ranks writes."""
    files = await asyncio.gather(*(learner.export_weights(str(directory)) for learner in learners))
    assert files[0] is not None, f"{learners[0].name} is not the rank that writes the weights"
    return files[0]


async def _attestations(
    asked: Sequence[tuple[RemoteLearner, Probes]],
) -> dict[str, Attestation]:
    """What each rank holds, by name, and what it gives its probes; nothing if nobody has any."""
    if not any(probes for _, probes in asked):
        return {}
    attested = await asyncio.gather(*(learner.attest(probes) for learner, probes in asked))
    return {learner.name: held for (learner, _), held in zip(asked, attested, strict=True)}


def _keep_last_versions(directory: Path, version: int) -> None:
    """Delete handed-over versions that no engine can ask for any more."""
    for path in directory.glob("*.safetensors"):
        if path.stem.isdigit() and int(path.stem) <= version - KEPT_VERSIONS:
            path.unlink(missing_ok=True)
