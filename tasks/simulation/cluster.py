"""The devices of a simulated run, by name, and the engines that they hold at present.

devices: gpu:0 ...             generate and train, unless some are for training alone
engines: engine-0 ...          each over neighbouring devices of one host; rebuilt by a relayout
ranks:   learner-0 ...         each over one device, or over some that compute together
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.records import Running, Span, WeightsRef
from tasks.engines.base import EngineStats
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.writers import BlankWriter, Lengths
from tasks.scheduling.parallelism import device_groups
from tasks.scheduling.stream_training import DeviceGroup, separable_groups
from tasks.simulation.protocols import MachineCosts, RunWork

PROMPT_ROOM = 4096  # tokens of the longest prompt that an engine takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices of each role. ValueError where some are left over or none generates."""

    num_devices: int
    num_learner: int = 0  # the last but the reserved ones, which train alone; 0: all do both
    num_reserved: int = 0  # the last ones, which neither generate nor train: a judge's
    devices_per_rank: int = 1  # that compute together, and are freed together

    def __post_init__(self) -> None:
        if not self.rollout or len(self.learner) % self.devices_per_rank:
            raise ValueError(
                "some devices must generate, and those that train be a multiple of"
                f" devices_per_rank, got {self}; change learner_devices or reserved_devices"
            )

    @property
    def rollout(self) -> range:
        """The devices that generate."""
        return range(self.num_devices - self.num_reserved - self.num_learner)

    @property
    def learner(self) -> range:
        """The devices that train."""
        end = self.num_devices - self.num_reserved
        return range(end - self.num_learner, end) if self.num_learner else self.rollout

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that generate or train."""
        return device_names(sorted({*self.rollout, *self.learner}))

    @property
    def is_colocated(self) -> bool:
        """True if a device must stop generating before it trains."""
        return not self.num_learner

    @property
    def ranks(self) -> Mapping[str, tuple[str, ...]]:
        """The devices of every learner rank."""
        names = device_names(self.learner)
        starts = range(0, len(names), self.devices_per_rank)
        return {
            f"learner-{rank}": names[start : start + self.devices_per_rank]
            for rank, start in enumerate(starts)
        }


class StepLengths:
    """The lengths of the step that is played."""

    def __init__(self, now: Lengths) -> None:
        self.now = now

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        return self.now.tokens(prompt_id, index, noise)


class Cluster:
    """Engines and devices of one run."""

    def __init__(self, machine: MachineCosts, work: RunWork, placement: Placement) -> None:
        self.placement = placement
        self.size = 0  # devices of an engine
        self.engines: list[SimulatedEngine] = []
        self.devices: Mapping[str, tuple[str, ...]] = {}  # by engine
        self.groups: tuple[DeviceGroup, ...] = ()  # that may be freed by themselves
        self._machine, self._work = machine, work
        self._lengths: StepLengths | None = None
        self._closed_tokens = 0  # that engines generated which are no more

    def open_step(self, step: int, seed: int) -> None:
        """Give responses that begin from now on the lengths of this step."""
        lengths = self._work.writer(step, seed)
        if self._lengths is None:
            self._lengths = StepLengths(lengths)
        self._lengths.now = lengths

    async def rebuild(self, size: int, version: int) -> None:
        """Replace the engines by ones of this size, with weights of this version."""
        self._closed_tokens = await self.tokens_generated()
        places = device_groups(self.placement.rollout, size, self._machine.devices_per_host)
        config = self._machine.engine(size)
        config = config.model_copy(
            update={"max_model_len": PROMPT_ROOM + self._work.longest_tokens}
        )
        assert self._lengths is not None, "a step is open"
        writer = BlankWriter(self._lengths)
        self.size = size
        self.devices = {
            f"engine-{place}": device_names(devices) for place, devices in enumerate(places)
        }
        self.engines = [
            SimulatedEngine(name, config, version=version, writer=writer) for name in self.devices
        ]
        self.groups = self._groups()

    async def load(self, version: int, running: Running) -> None:
        """Load new weights into every engine."""
        weights = WeightsRef(version=version, path="", digest="")
        await asyncio.gather(
            *(engine.load_weights(weights, (), running) for engine in self.engines)
        )

    async def readings(self) -> list[EngineStats]:
        return [await engine.stats() for engine in self.engines]

    async def tokens_generated(self) -> int:
        """Tokens that all engines of the run have generated, those before a relayout included."""
        return self._closed_tokens + sum(
            reading.tokens_generated for reading in await self.readings()
        )

    def _groups(self) -> tuple[DeviceGroup, ...]:
        ranks = self.placement.ranks
        return separable_groups(
            {engine: frozenset(devices) for engine, devices in self.devices.items()},
            {rank: frozenset(devices) for rank, devices in ranks.items()},
            [(rank,) for rank in ranks],
        )


def device_names(devices: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"gpu:{device}" for device in devices)


def spans_on(
    devices: Sequence[str], actor: str, kind: str, start_s: float, end_s: float
) -> tuple[Span, ...]:
    """Spans of the same work on every device."""
    return tuple(
        Span(device=device, actor=actor, kind=kind, start_s=start_s, end_s=end_s)
        for device in devices
    )
