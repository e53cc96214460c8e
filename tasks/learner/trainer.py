"""One rank of the learner: accumulate gradients of groups as they come, then update together.

    accumulate(groups)*  ->  update(step)  ->  export_weights / fingerprints / probe  ->  next step
        sums of gradients,     reduce, divide once,
        normaliser, loss       clip, AdamW, gather

In a step of several updates, or with a critic, each call of `accumulate` takes a mini-batch, and
`update` makes all gradients and updates (`several_updates`). With replicated parameters ranks may
get different numbers of calls in any split (invariant 4, docs/architecture.md). With sharded ones
they work in step: every method that computes with or reads whole parameters must be called on all
ranks, equally often and in the same order. All methods but `begin_checkpoint` are called from one
thread.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import torch

from artifacts.models.picture_processor import processor_of
from artifacts.pictures import PictureFolder
from artifacts.records import Group, WeightsRef, unpack
from artifacts.store import Store
from artifacts.weights import Fingerprints, stream_weights
from tasks.engines.base import Probed, Probes, pictures_of
from tasks.engines.transports.base import (
    OfferedWeights,
    TransferPlan,
    TransportKind,
    WeightTransport,
)
from tasks.engines.transports.registry import transport_of
from tasks.learner.adapters import AdapterParameters, using
from tasks.learner.critic import FOLDER, Critic
from tasks.learner.dealing import GroupPart
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.micro_step import MicroStep
from tasks.learner.optimizer import Updater
from tasks.learner.packing import Sample, micro_batches, pack_samples
from tasks.learner.parameters import TrainedParameters, flat_weights
from tasks.learner.policy import BaseOf, Scorer, load_policy, load_reference
from tasks.learner.ranks import Ranks
from tasks.learner.reports import AccumulateReport, UpdateReport, update_report
from tasks.learner.row_report import total
from tasks.learner.rows import DeviceRow, prepared, row_of
from tasks.learner.samples import TrainingSet
from tasks.learner.several_updates import SeveralUpdates
from tasks.learner.shards import load_shards, save_shard
from tasks.learner.tower import Pictures


class LearnerRank:
    """One rank of the learner: the policy, its gradients and this rank's part of the optimizer."""

    def __init__(
        self,
        config: LearnerConfig,
        model_path: str,
        rank: int,
        world_size: int,
        device: str = "cpu",
        temperature: float = 1.0,
        per_machine: int = 0,
    ) -> None:
        """temperature: of sampling; the learner divides logits by it, too. per_machine: as for
        `Ranks`."""
        self._config, self._model_path = config, model_path
        self._temperature = temperature
        self._ranks = Ranks(rank, world_size, torch.device(device), per_machine)
        self._sums = dict.fromkeys(config.lora.names, (0.0, 0.0))
        self._transports: dict[TransportKind, WeightTransport] = {}
        self._transport: WeightTransport | None = None  # by which weights were offered last
        self._beside = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None  # the checkpoint that is being written
        # probes, and their log-probabilities without the adapter
        self._of_base: tuple[Probes, Probed] | None = None
        if not config.ranks_in_step:
            self._load()
        elif world_size == 1:
            raise ValueError(
                "learner.parameters=sharded needs two ranks or more, got 1: there is nobody to"
                " share with; give the learner role more devices, or leave it replicated"
            )

    def _load(self) -> None:
        """Load policy, optimizer, reference and critic; collective where parameters are sharded."""
        config, where = self._config, self._config.parameters
        pictures = self._pictures()
        # first, so that what its loading leaves free is there for the policy
        reference: Scorer | None = None
        if config.kl_coefficient and not config.lora.rank:
            reference = load_reference(
                self._model_path, config.compute, self._ranks, where, pictures
            )
        self._policy = load_policy(
            self._model_path,
            config.compute,
            self._ranks,
            where,
            config.recompute_layers,
            config.lora,
            pictures,
        )
        if config.kl_coefficient and config.lora.rank:
            reference = BaseOf(self._policy)
        self._updaters = {
            name: Updater(config.optimizer_of(name), self._trained(name), self._ranks)
            for name in config.lora.names
        }
        self._updater = next(iter(self._updaters.values()))
        self._micro_step = MicroStep(config.objective, self._temperature, self._policy, reference)
        self._critic: Critic | None = None
        if config.has_critic:
            self._critic = Critic(
                config.critic,
                self._model_path,
                config.compute,
                config.recompute_layers,
                self._ranks,
            )
        self._several = SeveralUpdates(
            config, self._ranks, self._micro_step, self._updater, self._critic
        )
        if self._ranks.device.type == "cuda":
            self._micro_step.warm(config.max_tokens_per_microbatch)
            if self._critic is not None:
                self._critic.warm(config.max_tokens_per_microbatch)

    def _trained(self, adapter: str) -> TrainedParameters:
        """The parameters of one adapter, or all that are trained."""
        held = self._policy.parameters
        return held.of(adapter) if isinstance(held, AdapterParameters) else held

    def _pictures(self) -> Pictures | None:
        """The pictures that prompts show, as the model sees them; None for a model of text."""
        if not self._config.pictures:
            return None
        folder = PictureFolder(Store.open(self._config.pictures))
        processor = processor_of(self._model_path)
        return Pictures(
            read=lambda content: processor.patches(folder.read(content)),
            is_trained=self._config.vision == "trained",
        )

    def join(self, meeting_point: str, deadline_s: float) -> None:
        """Enter the group of all ranks; sharded parameters are loaded here, within the deadline.
        Collective. Raises ValueError if ranks start from different weights."""
        self._ranks.join(meeting_point, deadline_s)
        with self._ranks.patient():
            if self._config.ranks_in_step:
                self._load()
            checksum = float(self._policy.parameters.checksum() % (1 << 40))
            total, count = self._ranks.sum([checksum, 1.0])
        if total != count * checksum:
            raise ValueError(
                f"all {self._ranks.world_size} ranks must start from the same weights, they differ;"
                " check model_path"
            )

    def accumulate(self, payload: bytes) -> AccumulateReport:
        """Add the gradients, loss and normaliser of groups or parts of groups (packed: a tuple, or
        the TrainingSet of each adapter), or take them as the next mini-batch. Where ranks work in
        step this is collective, and the tuple may be empty."""
        given: tuple[TrainingSet, ...] | tuple[Group | GroupPart, ...] = unpack(payload)
        sets = tuple(each for each in given if isinstance(each, TrainingSet))
        if not sets:
            sets = self._config.training_sets(
                [each for each in given if not isinstance(each, TrainingSet)]
            )
        report = AccumulateReport()
        for data in sets:
            with using(self._policy.backbone, data.adapter):
                report += self._accumulate(data)
        return report

    def _accumulate(self, data: TrainingSet) -> AccumulateReport:
        wanted = [
            sample for sample in data.samples if any(sample.advantages) or self._config.trains_all
        ]
        report = AccumulateReport(
            num_groups=data.num_groups,
            num_groups_flat=data.num_groups_flat,
            num_responses=len(data.samples),
            num_responses_excluded=data.num_responses_excluded,
            num_responses_masked=data.num_responses_masked,
            num_responses_skipped=len(data.samples) - len(wanted),
            num_tokens=sum(sample.num_sampled for sample in data.samples),
            normaliser=data.normaliser,
        )
        dealt = micro_batches(wanted, self._config.max_tokens_per_microbatch)
        rows = prepared(dealt, self._ranks.device)
        if not self._config.ranks_in_step:
            return report + self._train(rows, 0, data)
        with self._ranks.in_step():
            num_idle = self._ranks.most(len(dealt)) - len(dealt)
            return report + self._train(rows, num_idle, data)

    def _train(
        self, rows: Iterable[DeviceRow], num_idle: int, data: TrainingSet
    ) -> AccumulateReport:
        """Train these rows of the data; `num_idle` idle passes then match the rank with the most
        rows."""
        if self._config.scores_first:
            return self._several.take(rows, num_idle, data.normaliser)
        pending = [self._micro_step.run(row) for row in rows]
        for _ in range(num_idle):
            self._micro_step.idle(scores=True, trains=True)
        report = total(pending)
        normaliser, loss_sum = self._sums[data.adapter]
        self._sums[data.adapter] = normaliser + data.normaliser, loss_sum + report.loss_sum
        return report

    def discard(self) -> None:
        """Drop the sums of this step."""
        self._policy.parameters.discard()
        self._several.forget()
        self._sums = dict.fromkeys(self._sums, (0.0, 0.0))

    def update(self, step: int) -> UpdateReport:
        """Make the step's updates, once this rank's checkpoint is written. Each one reduces over
        ranks, divides once, clips and makes an AdamW step, unless `skip_reason` gives a reason not
        to. Collective."""
        if not self._wait_for_checkpoint():
            return self._update(step)
        with self._ranks.patient():  # with the others' checkpoints
            return self._update(step)

    def _update(self, step: int) -> UpdateReport:
        if self._config.scores_first:
            return self._several.make(step)
        made = {
            name: updater.make(step, *self._sums[name]) for name, updater in self._updaters.items()
        }
        self._sums = dict.fromkeys(self._sums, (0.0, 0.0))
        rates = {name: self._config.optimizer_of(name).rate(step) for name in made}
        return update_report(step, made, rates)

    def export_weights(self, version: int, path: str) -> WeightsRef | None:
        """On rank 0, write the bf16 weights under the checkpoint's names. The other ranks return
        None; they must be called only where ranks work in step."""
        parameters = self._policy.parameters
        if self._ranks.rank == 0:
            parts, shapes = parameters.exported(), parameters.exported_shapes
            return stream_weights(parts, shapes, path, version)
        if self._config.ranks_in_step:
            deque(parameters.exported(), maxlen=0)
        return None

    def offer_weights(
        self, version: int, path: str, plan: TransferPlan, host: str
    ) -> OfferedWeights | None:
        """Hold the bf16 weights ready for engines, without a file; they must not change until
        `withdraw_weights`. Sharded ones are gathered into a buffer of 2 bytes a parameter, with
        `broadcast` on rank 0 alone; the other ranks return None then. Collective where ranks work
        in step. host: address at which engines reach this rank."""
        parameters = self._policy.parameters
        if plan.kind == "broadcast" and self._ranks.rank:
            deque(parameters.exported(), maxlen=0)
            return None
        if plan.kind not in self._transports:
            self._transports[plan.kind] = transport_of(plan.kind, plan.deadline_s, host)
        self._transport = self._transports[plan.kind]
        return self._transport.offer(flat_weights(parameters), version, path, plan.members)

    def send_weights(self) -> None:
        """Send what is offered, if engines cannot take it by themselves. Raises TransferLost."""
        assert self._transport is not None, "a version is offered"
        self._transport.send()

    def withdraw_weights(self) -> None:
        """Free what was gathered to be offered."""
        if self._transport is not None:
            self._transport.withdraw()
        if self._config.ranks_in_step:
            self.give_memory_back()

    def fingerprints(self) -> dict[str, int]:
        """The fingerprint of every tensor that `export_weights` writes, by name."""
        prints = Fingerprints(self._policy.parameters.exported_shapes)
        for name, part in self._policy.parameters.exported():
            prints.add(name, part)
        return dict(prints.found)

    def probe(self, probes: Sequence[tuple[int, ...]]) -> Probed:
        """For each probe, the log-probability of each token after its first, at temperature 1; of
        several adapters, with one after the other."""
        found: Probed = ()
        for name in self._config.lora.names:
            with using(self._policy.backbone, name):
                found += self._probed(self._policy, probes)
        return found

    def probe_base(self, probes: Sequence[tuple[int, ...]]) -> Probed | None:
        """The same without the adapter, computed once; None if weights are published."""
        if self._config.lora.engine_shape is None:
            return None
        if self._of_base is None or self._of_base[0] != tuple(probes):
            self._of_base = tuple(probes), self._probed(BaseOf(self._policy), probes)
        return self._of_base[1]

    def _probed(self, scorer: Scorer, probes: Sequence[tuple[int, ...]]) -> Probed:
        samples = [
            Sample(
                prompt=np.array(ids[:1]),
                response=np.array(ids[1:]),
                sampled=(range(len(ids) - 1),),
                sampling_logp=np.empty(0, dtype=np.float32),
                advantages=(0.0,),
                reward=0.0,
                weight=0.0,
                pictures=pictures_of(ids),
            )
            for ids in probes
            if len(ids) > 1
        ]
        scored: list[float] = []
        if samples:
            row = row_of(pack_samples(samples), self._ranks.device)
            scored = scorer.score(row).logp.tolist()
        values = iter(scored)
        return tuple(tuple(next(values) for _ in ids[1:]) for ids in probes)

    def save_checkpoint(self, path: str, step: int) -> None:
        """Write this rank's shard into the directory, then return freed memory to the system."""
        self.begin_checkpoint(path, step).result()

    def begin_checkpoint(self, path: str, step: int) -> Future[None]:
        """As `save_checkpoint`, in a thread beside passes over rows, which change nothing of a
        shard; updates wait for its end. May be called while another thread computes such passes."""
        updated: torch.cuda.Event | None = None  # behind this step's update, before later passes
        if self._ranks.device.type == "cuda":
            updated = torch.cuda.current_stream(self._ranks.device).record_event()
        self._saving = self._beside.submit(self._save, Path(path), step, updated)
        return self._saving

    def _save(self, path: Path, step: int, updated: torch.cuda.Event | None) -> None:
        if updated is not None:
            updated.synchronize()
        for name, updater in self._updaters.items():
            save_shard(path / name, step, updater)
        if self._critic is not None:
            save_shard(path / FOLDER, step, self._critic.updater)
        # Rows of ever new lengths fragment the allocator's memory, by a gigabyte in twenty steps of
        # SmolLM2. Only at checkpoints, because every page has to be faulted in again afterwards.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
        if trim is not None:
            trim(0)

    def _wait_for_checkpoint(self) -> bool:
        """Wait until the checkpoint is written; returns False if none was begun since the last
        wait. Its failure is told to whoever began it."""
        saving, self._saving = self._saving, None
        if saving is None:
            return False
        wait([saving])
        return True

    def load_checkpoint(self, path: str) -> int:
        """Restore all bit by bit, and drop sums of gradients; returns the step. Collective."""
        self._wait_for_checkpoint()
        self.discard()
        with self._ranks.patient():
            steps = {
                load_shards(Path(path) / name, updater) for name, updater in self._updaters.items()
            }
            (step,) = steps
            if self._critic is not None:
                load_shards(Path(path) / FOLDER, self._critic.updater)
        return step

    def give_memory_back(self) -> None:
        """Free the GPU memory that torch keeps for later passes: an engine on the same GPU wakes up
        in it, or is built anew."""
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()

    def check_peers(self) -> None:
        """Raise PeerLost when the group of all ranks is broken. Does not wait."""
        self._ranks.check()

    def close(self) -> None:
        """Leave the group of all ranks, once a checkpoint is written."""
        self._beside.shutdown()
        self._ranks.close()
