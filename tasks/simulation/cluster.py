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
    """The devices of each role. Raises ValueError if no device generates, or if the number of
    training devices is no multiple of devices_per_rank."""

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


class Cluster:
    """The engines and devices of one run."""

    def __init__(self, machine: MachineCosts, work: RunWork, placement: Placement) -> None:
        self.placement = placement
        self.size = 0  # devices of an engine
        self.engines: list[SimulatedEngine] = []
        self.devices: Mapping[str, tuple[str, ...]] = {}  # by engine
        self.groups: tuple[DeviceGroup, ...] = ()  # that can be freed independently of each other
        self._machine, self._work = machine, work
        self._lengths: Lengths | None = None  # of the open step
        self._taken_tokens = 0  # generated before the last `take_generated`

    def open_step(self, step: int, seed: int) -> None:
        """Give responses that begin from now on the lengths of this step."""
        self._lengths = self._work.writer(step, seed)

    def tokens(self, prompt_id: str, index: int, noise: int = 0) -> int:
        """Returns the length of a response that begins now (`Lengths`)."""
        assert self._lengths is not None, "a step is open"
        return self._lengths.tokens(prompt_id, index, noise)

    def rebuild(self, size: int, version: int) -> None:
        """Replace all engines by engines of this tensor-parallel size and weight version."""
        self._taken_tokens = 0  # new engines count anew
        places = device_groups(self.placement.rollout, size, self._machine.devices_per_host)
        max_model_len = PROMPT_ROOM + self._work.longest_tokens
        config = self._machine.engine(size).model_copy(update={"max_model_len": max_model_len})
        writer = BlankWriter(self)
        self.size = size
        self.devices = {
            f"engine-{place}": device_names(devices) for place, devices in enumerate(places)
        }
        self.engines = [
            SimulatedEngine(name, config, version=version, writer=writer) for name in self.devices
        ]
        ranks = self.placement.ranks
        self.groups = separable_groups(
            {engine: frozenset(devices) for engine, devices in self.devices.items()},
            {rank: frozenset(devices) for rank, devices in ranks.items()},
            [(rank,) for rank in ranks],
        )

    async def load(self, version: int, running: Running) -> None:
        """Load weights of this version into every engine. running: the fate of running
        responses."""
        weights = WeightsRef(version=version, path="", digest="")
        await asyncio.gather(
            *(engine.load_weights(weights, (), running) for engine in self.engines)
        )

    async def readings(self) -> list[EngineStats]:
        return [await engine.stats() for engine in self.engines]

    async def take_generated(self) -> int:
        """Returns the tokens that engines have generated since the last call or rebuild."""
        generated = sum(reading.tokens_generated for reading in await self.readings())
        before, self._taken_tokens = self._taken_tokens, generated
        return generated - before


def device_names(devices: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"gpu:{device}" for device in devices)


def spans_on(
    devices: Sequence[str], actor: str, kind: str, start_s: float, end_s: float
) -> tuple[Span, ...]:
    """Returns one span of the same work for every device."""
    return tuple(
        Span(device=device, actor=actor, kind=kind, start_s=start_s, end_s=end_s)
        for device in devices
    )
