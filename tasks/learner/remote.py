"""A learner rank in a Dask worker: the actor that holds it, and the rank that callers see.

    collective ─▶ RemoteLearner ─▶ bytes over Dask ─▶ LearnerActor ─▶ LearnerRank

The actor's long methods run in the worker's one actor thread; ping and version answer while they
run. Methods that change the policy are idempotent: called again for a step that is done, they
return its report, so that a task that runs twice cannot update twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributed import get_worker

from artifacts.records import WeightsRef, pack, unpack
from artifacts.weights import reuse
from tasks.cluster.actors import Remote
from tasks.cluster.cards import exhausted, is_out_of_memory
from tasks.cluster.dask_cluster import pin_process
from tasks.cluster.ports import LOOPBACK, reach_ranks_by
from tasks.engines.base import Attestation
from tasks.engines.transports.base import OfferedWeights, TransferPlan
from tasks.learner.dealing import GroupPart
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.memory import learner_memory, model_size
from tasks.learner.ranks import meeting_point
from tasks.learner.reports import AccumulateReport, UpdateReport
from tasks.learner.samples import TrainingSet
from tasks.learner.trainer import LearnerRank

RENDEZVOUS_S = 30.0  # deadline of `rendezvous`, which finds a free port on an idle rank
KEPT_VERSIONS = 2  # published weight files that exist at once
JOINED_WITHIN_S = 10.0  # seconds that a call to join may take beyond the group's own deadline


def _file_of(directory: str, version: int) -> str:
    return f"{directory}/{version:05d}.safetensors"


def _here() -> tuple[str, str | None]:
    """This worker's address and directory; the loopback and None outside a worker."""
    try:
        worker = get_worker()
    except ValueError:
        return LOOPBACK, None
    return urlsplit(worker.address).hostname or LOOPBACK, str(worker.local_directory)


class LearnerActor:
    """Holds one rank of the learner in a Dask worker."""

    def __init__(
        self,
        config: LearnerConfig,
        model_path: str,
        rank: int,
        world_size: int,
        core_ids: tuple[int, ...],
        device: str,
        temperature: float = 1.0,
        per_machine: int = 0,
    ) -> None:
        pin_process(core_ids)
        self._config, self._model = config, Path(model_path)
        self._name, self._num_ranks = f"learner-{rank}", world_size
        self._per_machine = per_machine or world_size
        self._version = 0
        self._update_report = b""
        self._saving: Future[None] | None = None  # the shard that was begun last
        with self._memory_explained("loading the model"):
            self._rank = LearnerRank(
                config, model_path, rank, world_size, device, temperature, per_machine
            )

    async def ping(self) -> None:
        """Return while the worker lives; raises PeerLost when its group has lost another rank."""
        self._rank.check_peers()

    async def version(self) -> int:
        """The last step that this rank has updated in; 0 before the first."""
        return self._version

    async def rendezvous(self) -> str:
        """The address where the ranks meet, on this worker's host; called on rank 0."""
        return meeting_point(*_here())

    def join(self, meeting_point: str, deadline_s: float) -> None:
        """Enter the group of all ranks. Collective."""
        reach_ranks_by(_here()[0])
        with self._memory_explained("loading the model"):
            self._rank.join(meeting_point, deadline_s)

    def discard(self) -> None:
        """Drop the gradients accumulated so far in this step."""
        self._rank.discard()

    def accumulate(self, step: int, payload: bytes) -> bytes:
        """Add the gradients of these groups or parts of groups, and return the packed report; empty
        bytes if this step has been updated already."""
        if step <= self._version:
            return b""
        with self._memory_explained(f"training of step {step}"):
            return pack(self._rank.accumulate(payload))

    def update(self, step: int) -> bytes:
        """Make the step's updates and return the packed report. Collective; all ranks must be at
        the same version. Raises ValueError for a step that does not follow this rank's version."""
        if step <= self._version:
            return self._update_report
        if step != self._version + 1:
            raise ValueError(
                f"update of step {step} must follow version {step - 1}, the learner is at"
                f" {self._version}; replay the steps between"
            )
        with self._memory_explained(f"the update of step {step}"):
            self._update_report = pack(self._rank.update(step))
        self._rank.give_memory_back()
        self._version = step
        return self._update_report

    def export_weights(self, directory: str) -> WeightsRef | None:
        """On rank 0, write this version where engines can read it, over the oldest file, which they
        read no longer. Collective where ranks work in step, like the methods below."""
        target = _file_of(directory, self._version)
        # every rank tries to reuse the old file: the first one finds it
        reuse(_file_of(directory, self._version - KEPT_VERSIONS), target)
        return self._rank.export_weights(self._version, target)

    def offer_weights(self, directory: str, plan: TransferPlan) -> bytes:
        """Hold this version ready for engines; returns the packed `OfferedWeights`, or None."""
        path = _file_of(directory, self._version)
        return pack(self._rank.offer_weights(self._version, path, plan, _here()[0]))

    def send_weights(self) -> None:
        """On rank 0, send what is offered to all engines; returns when all have it."""
        self._rank.send_weights()

    async def withdraw_weights(self) -> None:
        """Let go of what is offered, also while it is being sent."""
        self._rank.withdraw_weights()

    def attest(self, probes: bytes) -> bytes:
        """The packed attestation: of the version, its tensors and the probes."""
        tokens: Sequence[tuple[int, ...]] = unpack(probes)
        with self._memory_explained("the weight check"):
            attested = Attestation(
                version=self._version,
                fingerprints=self._rank.fingerprints(),
                probe_logprobs=self._rank.probe(tokens),
                base_logprobs=self._rank.probe_base(tokens),
                adapters=self._config.lora.names,
            )
            return pack(attested)

    async def begin_checkpoint(self, path: str) -> None:
        """Begin to write this rank's shard as it is now, beside whatever else the rank does; later
        updates wait for it."""
        self._saving = self._rank.begin_checkpoint(path, self._version)

    async def end_checkpoint(self) -> None:
        """Wait until the shard that was begun last is written; raises what made it fail."""
        assert self._saving is not None, "a checkpoint was begun"
        await asyncio.wrap_future(self._saving)

    def load_checkpoint(self, path: str) -> int:
        """Restore this rank's shard bit by bit; returns its version."""
        self._version = self._rank.load_checkpoint(path)
        self._update_report = b""
        return self._version

    def close(self) -> None:
        """Leave the group."""
        self._rank.close()

    @contextmanager
    def _memory_explained(self, doing: str) -> Iterator[None]:
        """Within the block, an exhausted GPU raises DeviceMemoryExhausted. It ends the run: with
        smaller rows sums would have other bits than those that the run would be replayed with."""
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            row_tokens = self._config.max_tokens_per_microbatch
            size = model_size(self._model)
            memory = learner_memory(
                self._config, size, self._num_ranks, row_tokens, self._per_machine
            )
            cure = "resume the run with a smaller engine.gpu_memory_utilization, or begin one with"
            if not self._config.recompute_layers:
                cure += " learner.recompute_layers=true, or with"
            cure += f" learner.max_tokens_per_microbatch below {row_tokens}"
            raise exhausted(self._name, doing, error, {**memory.held, **memory.row}, cure) from None


class RemoteLearner:
    """A learner rank, called through its actor; the actor's methods have the details. Raises
    ActorLost when the worker is gone, TimeoutError when it does not answer in time."""

    def __init__(self, remote: Remote, deadline_s: float) -> None:
        self.name = remote.name
        self._remote = remote
        self._deadline_s = deadline_s

    @classmethod
    def connect(cls, run_id: str, name: str, deadline_s: float) -> RemoteLearner:
        """Connect to a rank's current generation. Raises ActorLost if it is gone."""
        return cls(Remote.connect(run_id, name), deadline_s)

    async def version(self) -> int:
        return int(await self._call("version"))

    async def rendezvous(self) -> str:
        return str(await self._remote.call("rendezvous", deadline_s=RENDEZVOUS_S))

    async def join(self, meeting_point: str, deadline_s: float) -> None:
        """deadline_s: for joining the group."""
        await self._remote.call(
            "join", meeting_point, deadline_s, deadline_s=deadline_s + JOINED_WITHIN_S
        )

    async def discard(self) -> None:
        await self._call("discard")

    async def accumulate(self, step: int, data: tuple[TrainingSet, ...]) -> AccumulateReport:
        """The report is all zero if the step has been updated already."""
        answer: bytes = await self._call("accumulate", step, pack(data))
        return unpack(answer) if answer else AccumulateReport()

    async def update(self, step: int) -> UpdateReport:
        report: UpdateReport = unpack(await self._call("update", step))
        return report

    async def export_weights(self, directory: str) -> WeightsRef | None:
        """Returns None for every rank but the first, called only where ranks work in step."""
        weights: WeightsRef | None = await self._call("export_weights", directory)
        return weights

    async def offer_weights(self, directory: str, plan: TransferPlan) -> OfferedWeights | None:
        """Returns None for a rank that the plan needs nothing of."""
        offered: OfferedWeights | None = unpack(await self._call("offer_weights", directory, plan))
        return offered

    async def send_weights(self) -> None:
        await self._call("send_weights")

    async def withdraw_weights(self) -> None:
        await self._call("withdraw_weights")

    async def attest(self, probes: tuple[tuple[int, ...], ...]) -> Attestation:
        attested: Attestation = unpack(await self._call("attest", pack(probes)))
        return attested

    async def begin_checkpoint(self, path: str) -> None:
        await self._call("begin_checkpoint", path)

    async def end_checkpoint(self) -> None:
        await self._call("end_checkpoint")

    async def load_checkpoint(self, path: str) -> int:
        return int(await self._call("load_checkpoint", path))

    async def _call(self, method: str, *args: object) -> Any:  # Any: as in Remote.call
        return await self._remote.call(method, *args, deadline_s=self._deadline_s)


@dataclass(frozen=True, slots=True)
class LearnerAtStep:
    """A learner rank that accumulates for one step (`GradientRank`)."""

    learner: RemoteLearner
    step: int
    config: LearnerConfig

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        """Send the samples of these parts alone: the other responses of their groups only count
        for the advantages, which are computed here."""
        return await self.learner.accumulate(self.step, self.config.training_sets(parts))
