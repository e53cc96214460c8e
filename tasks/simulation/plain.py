"""A machine whose speeds are given as numbers: those of a recorded run (`calibration`), or of a
closed form to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.scheduling.layout_planner import ThroughputPoint, ThroughputProfile
from tasks.scheduling.parallelism import possible_sizes

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMachine:
    """Devices with given speeds; the defaults resemble a 7B model on large GPUs.

    A replica of size t has the memory of t devices minus one copy of the weights. A decode step
    takes the time to read each device's share of the weights, plus an exchange that grows with t.
    The methods are those of `Machine`.
    """

    num_devices: int = 8
    devices_per_host: int = 8
    num_heads: int = 32  # of the model; a size divides them
    fixed_s: float = 0.003  # of a decode step, whatever the size
    weights_s: float = 0.005  # of a decode step: one device reads the weights
    exchange_s: float = 0.0035  # of a decode step, for each doubling of the size
    step_s_per_sequence: float = 0.0001  # of one device
    sequence_exponent: float = 1.0  # how these seconds grow with the others of a batch
    prefill_s_per_token: float = 0.00005  # of one device
    shares_prompts: bool = False  # whether the responses to a prompt prefill it once
    device_tokens: int = 425_000  # tokens whose KV would fill a device
    weights_tokens: int = 25_000  # tokens whose KV would take the room of the weights
    max_batch: int = 256
    token_s: float = 0.0005  # of training, on one device
    updating_s: float = 0.0
    publishing_s: float = 0.0
    rebuilding_s: float = 0.0
    freeing_s: float = 0.0

    def sizes(self, num_devices: int, largest: int) -> tuple[int, ...]:
        return possible_sizes(
            range(num_devices), self.devices_per_host, self.num_heads, self.num_heads, largest
        )

    def engine(self, size: int) -> SimulatedEngineConfig:
        return SimulatedEngineConfig(
            step_s=self.fixed_s + self.weights_s / size + self.exchange_s * math.log2(size),
            step_s_per_sequence=self.step_s_per_sequence / size,
            sequence_exponent=self.sequence_exponent,
            prefill_s_per_token=self.prefill_s_per_token / size,
            shares_prompts=self.shares_prompts,
            kv_capacity_tokens=size * self.device_tokens - self.weights_tokens,
            max_batch=self.max_batch,
        )

    def profile(self, sizes: Sequence[int]) -> ThroughputProfile:
        replicas = {size: self.engine(size) for size in sizes}
        return ThroughputProfile(
            model="plain",
            device="plain",
            kv_tokens={size: replica.kv_tokens for size, replica in replicas.items()},
            points=tuple(
                ThroughputPoint(
                    size=size,
                    batch=batch,
                    length=1,
                    prefill_tokens_per_s=1 / replica.prefill_s_per_token,
                    decode_tokens_per_s=batch / replica.pace.base_s(batch, 0),
                )
                for size, replica in replicas.items()
                for batch in BATCHES
            ),
        )

    def train_s_per_token(self) -> float:
        return self.token_s

    def train_s_per_response(self) -> float:
        return 0.0

    def update_s(self) -> float:
        return self.updating_s

    def publish_s(self, size: int) -> float:
        return self.publishing_s

    def relayout_s(self, old: int, new: int) -> float:
        return self.rebuilding_s

    def reload_s(self) -> float:
        return 0.0

    def free_s(self, size: int) -> float:
        return self.freeing_s
