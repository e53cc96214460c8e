"""The publication of a weight version: from the learner to the engines, and the weight check.

rank 0 ── file ──▶ all engines ── load, attest ──▶ weight check
all other ranks ───────── attest ─────────────────▶
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from artifacts.records import Running, WeightsRef
from tasks.engines.base import Attestation, Engine, load_all
from tasks.learner.remote import KEPT_VERSIONS, RemoteLearner
from tasks.learner.reports import PublishReport
from tasks.learner.weight_check import WeightCheckConfig, check_tensors, check_weights

logger = logging.getLogger(__name__)

Probes = tuple[tuple[int, ...], ...]


async def publish_version(
    learners: Sequence[RemoteLearner],
    engines: Sequence[Engine],
    directory: Path,
    *,
    check: WeightCheckConfig,
    probes: Probes,
    ranks_in_step: bool,
    running: Running = Running.DROP,
) -> PublishReport:
    """Publish the learner's version: write the file, load it into all engines, check the weights.
    Without probes the check is off. Sharded ranks export together, and all of them attest; of
    replicated ranks the others, whose devices are free, attest while the first one writes. Raises
    WeightCheckFailed with the tensor's name."""

    async def export_and_load() -> tuple[WeightsRef, dict[str, Attestation]]:
        weights = await _exported(learners[:1], directory)
        return weights, await load_all(engines, weights, probes, running)

    if ranks_in_step:
        weights = await _exported(learners, directory)
        loaded, attested = await asyncio.gather(
            load_all(engines, weights, probes, running),
            _attestations(learners, [probes] * len(learners)),
        )
    else:  # the last rank alone computes probes: ranks with equal tensors compute the same
        others = learners[1:] or learners[:1]
        no_probes: list[Probes] = [()] * (len(others) - 1)
        (weights, loaded), attested = await asyncio.gather(
            export_and_load(), _attestations(others, [*no_probes, probes])
        )
    began_s = time.time()
    expected = attested.get(learners[-1].name)
    difference = None
    if expected is not None:
        for name, held in attested.items():
            check_tensors(name, held, expected)
        difference = _check_engines(loaded, expected, check.tolerance_nats)
    for path in directory.glob("*.safetensors"):  # that no engine can load any more
        if path.stem.isdigit() and int(path.stem) <= weights.version - KEPT_VERSIONS:
            path.unlink(missing_ok=True)
    return PublishReport(
        weights=weights,
        probe_difference_nats=difference,
        attested=expected,
        check_s=time.time() - began_s,
        drained_s=max((held.drained_s for held in loaded.values()), default=0.0),
    )


async def _exported(learners: Sequence[RemoteLearner], directory: Path) -> WeightsRef:
    """Export the version from these ranks; returns the file that the first one wrote."""
    files = await asyncio.gather(*(learner.export_weights(str(directory)) for learner in learners))
    assert files[0] is not None, f"{learners[0].name} is not the rank that writes the weights"
    return files[0]


async def _attestations(
    learners: Sequence[RemoteLearner], probes: Sequence[Probes]
) -> dict[str, Attestation]:
    """The attestation of each rank, by name, with that rank's probes; empty without any."""
    if not any(probes):
        return {}
    attested = await asyncio.gather(
        *(learner.attest(asked) for learner, asked in zip(learners, probes, strict=True))
    )
    return {learner.name: held for learner, held in zip(learners, attested, strict=True)}


def _check_engines(
    loaded: Mapping[str, Attestation], expected: Attestation, tolerance_nats: float
) -> float | None:
    """Check every engine against the learner; returns the largest difference over the engines'
    probes, None if no engine computes log-probabilities."""
    differences = {
        name: check_weights(name, held, expected, tolerance_nats) for name, held in loaded.items()
    }
    silent = [name for name, difference in differences.items() if difference is None]
    if silent:
        names = ",".join(silent)
        logger.info("weights checked by tensors alone: no log-probabilities from engines=%s", names)
    known = [difference for difference in differences.values() if difference is not None]
    return max(known, default=None)
