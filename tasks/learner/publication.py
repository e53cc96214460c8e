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

from artifacts.records import WeightsRef
from tasks.engines.base import Attestation, Engine
from tasks.engines.loading import load_all
from tasks.learner.remote import KEPT_VERSIONS, RemoteLearner
from tasks.learner.weight_sync import GateConfig, check_gate, check_tensors

logger = logging.getLogger(__name__)

Probes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The version that the engines sample with now."""

    weights: WeightsRef
    # mean absolute difference of the probes' log-probabilities, engines against learner; None
    # where no gate compares them
    probe_difference_nats: float | None
    gate_s: float  # the comparison; learner and engines attest while the engines load


async def publish_version(
    learners: Sequence[RemoteLearner],
    engines: Sequence[Engine],
    directory: Path,
    *,
    gate: GateConfig,
    probes: Probes,
) -> Publication:
    """The learner's version -> file -> all engines -> gate, which is off without probes.

    The first rank writes the file, which the engines read back, while all others, whose devices
    are free, attest: so the gate sees every rank. Raises GateFailed with the tensor's name.
    """
    (weights, loaded), attested = await asyncio.gather(
        _handed_over(learners[0], engines, directory, probes), _attestations(learners, probes)
    )
    expected = attested.get(learners[-1].name)
    gate_started_s = time.time()
    if expected is not None:
        for name, held in attested.items():
            check_tensors(name, held, expected)
    difference = None if expected is None else _passed(gate, loaded, expected)
    _keep_last_versions(directory, weights.version)
    gate_s = time.time() - gate_started_s
    return Publication(weights=weights, probe_difference_nats=difference, gate_s=gate_s)


async def _handed_over(
    learner: RemoteLearner, engines: Sequence[Engine], directory: Path, probes: Probes
) -> tuple[WeightsRef, dict[str, Attestation]]:
    """The version that this rank writes, and what every engine attests that has loaded it."""
    weights = await learner.export_weights(str(directory))
    return weights, await load_all(engines, weights, probes)


def _passed(
    gate: GateConfig, loaded: Mapping[str, Attestation], expected: Attestation
) -> float | None:
    """Have every engine pass the gate; the largest difference of the probes, None if no engine
    computes any."""
    differences = {
        name: check_gate(name, held, expected, gate.tolerance_nats) for name, held in loaded.items()
    }
    silent = [name for name, difference in differences.items() if difference is None]
    if silent:
        names = ",".join(silent)
        logger.info("gate compared tensors alone: no log-probabilities from engines=%s", names)
    told = [difference for difference in differences.values() if difference is not None]
    return max(told, default=None)


async def _attestations(
    learners: Sequence[RemoteLearner], probes: Probes
) -> dict[str, Attestation]:
    """What every rank but the one that writes the file holds, by name; nothing without a gate.

    The last rank alone is asked the probes: ranks with equal tensors compute the same.
    """
    if not probes:
        return {}
    asked = learners[1:] or learners[:1]
    calls = (learner.attest(probes if learner is asked[-1] else ()) for learner in asked)
    attested = await asyncio.gather(*calls)
    return {learner.name: held for learner, held in zip(asked, attested, strict=True)}


def _keep_last_versions(directory: Path, version: int) -> None:
    """Delete handed-over versions that no engine can ask for any more."""
    for path in directory.glob("*.safetensors"):
        if path.stem.isdigit() and int(path.stem) <= version - KEPT_VERSIONS:
            path.unlink(missing_ok=True)
