"""The publication of a weight version: from the learner to the engines, and the weight check.

    rank 0 ── file ──▶ all engines ── load, attest ──▶ weight check
    all other ranks ───────── attest ─────────────────▶

    all ranks ── offer ──▶ all engines ── load, attest ──▶ weight check
             └─────────────── attest ────────────────────▶

A version that is offered (`tasks.engines.transports`) has no file. Who needs one (an elastic
worker, the export) asks rank 0 for it (`written`), beside the rounds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from artifacts.models.importing import building_model
from artifacts.records import Running, WeightsRef
from artifacts.weights import digest_of, read_weights
from tasks.engines.base import Attestation, Engine, Probes, load_all
from tasks.engines.transports.base import BY_FILE, TransferPlan
from tasks.learner.architecture import model_class, read_config
from tasks.learner.remote import KEPT_VERSIONS, RemoteLearner
from tasks.learner.reports import PublishReport
from tasks.learner.weight_check import WeightCheckConfig, check_tensors, check_weights

logger = logging.getLogger(__name__)


async def publish_version(
    learners: Sequence[RemoteLearner],
    engines: Sequence[Engine],
    directory: Path,
    *,
    check: WeightCheckConfig,
    probes: Probes,
    ranks_in_step: bool,
    running: Running = Running.DROP,
    plan: TransferPlan = BY_FILE,
) -> PublishReport:
    """Publish the learner's version: write or offer it, load it into all engines, check the
    weights. Without probes the check is off. Sharded ranks export together, and all of them attest;
    of replicated ranks the others, whose devices are free, attest while the first one writes. Where
    nothing is written all ranks attest while engines load. Raises WeightCheckFailed with the
    tensor's name."""

    async def export_and_load() -> tuple[WeightsRef, dict[str, Attestation]]:
        weights = await _exported(learners[:1], directory)
        return weights, await load_all(engines, weights, probes, running)

    # the last rank alone computes probes: ranks with equal tensors compute the same
    no_probes: list[Probes] = [()] * (len(learners) - 1)
    if plan.kind != "file":
        weights, loaded, attested = await _transferred(
            learners,
            engines,
            directory,
            plan,
            [probes] * len(learners) if ranks_in_step else [*no_probes, probes],
            running,
        )
    elif ranks_in_step:
        weights = await _exported(learners, directory)
        loaded, attested = await asyncio.gather(
            load_all(engines, weights, probes, running),
            _attestations(learners, [probes] * len(learners)),
        )
    else:
        others = learners[1:] or learners[:1]
        (weights, loaded), attested = await asyncio.gather(
            export_and_load(), _attestations(others, [*no_probes, probes][-len(others) :])
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


async def _transferred(
    learners: Sequence[RemoteLearner],
    engines: Sequence[Engine],
    directory: Path,
    plan: TransferPlan,
    probes: Sequence[Probes],
    running: Running,
) -> tuple[WeightsRef, dict[str, Attestation], dict[str, Attestation]]:
    """Offer the version, and have all engines load it while all ranks attest; returns its
    reference, and the attestations of engines and of ranks. probes: those of each rank."""
    offers = await asyncio.gather(
        *(learner.offer_weights(str(directory), plan) for learner in learners)
    )
    made = [offer for offer in offers if offer is not None]
    sources = {key: source for offer in made for key, source in offer.sources.items()}
    offered = replace(made[0], sources=sources)

    async def send() -> None:
        if plan.kind == "broadcast":
            await learners[0].send_weights()

    # rank 0 does one thing after the other: engines wait for what it sends, so that comes first
    try:
        _, loaded, attested = await asyncio.gather(
            send(), load_all(engines, offered, probes[-1], running), _attestations(learners, probes)
        )
    finally:  # a learner that is gone has nothing to withdraw
        ended = (learner.withdraw_weights() for learner in learners)
        await asyncio.gather(*ended, return_exceptions=True)
    held = attested.get(learners[-1].name)
    if held is None:  # the check is off
        held = (await asyncio.gather(*(learner.attest(()) for learner in learners)))[-1]
    digest = digest_of(held.fingerprints, offered.shapes)
    return (
        WeightsRef(version=offered.version, path=offered.path, digest=digest),
        loaded,
        attested,
    )


async def written(
    learners: Sequence[RemoteLearner], weights: WeightsRef, *, ranks_in_step: bool
) -> WeightsRef:
    """Write the file of a version that was only offered; returns its reference. A rank
    writes between two of its other calls, so that the file is whole, but of the version that it
    holds by then: if the learner has moved on, the reference is of the newer one. Where ranks work
    in step nothing else may be asked of them meanwhile."""
    return await _exported(learners if ranks_in_step else learners[:1], Path(weights.path).parent)


def write_mixture(base: Path, weights: WeightsRef, folder: Path) -> None:
    """Write a mixture's weights under the names of the architecture's checkpoints, which vLLM
    reads, with the buffers of the model that the run started from, which no version has. folder:
    has the configuration already. Holds the model in host memory."""
    with building_model():
        model = model_class(read_config(base)).from_pretrained(
            base, dtype="bfloat16", local_files_only=True
        )
    model.load_state_dict(dict(read_weights(weights.path)), strict=False)
    config = (folder / "config.json").read_bytes()
    model.save_pretrained(folder)
    (folder / "config.json").write_bytes(config)


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
