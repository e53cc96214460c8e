"""A cluster with a model on it: the seconds of each kind of work (`steps` plays rounds on it).

Rollout and training are colocated, as in RollPacker: engines and learner take turns on the same
devices, and engines of every size are kept built. The side that goes to sleep has its states copied
to its host, and back when it wakes: weights of the engine, of the learner and of the reference,
fp32 weights and moments; gradients are dropped (so do ROLL and veRL with Megatron). The process
that drives the steps gathers and hands out the batch, padded to its bounds. Short micro-batches
spread over many devices wait for the process that starts the operations and not for the arithmetic:
on eight devices a response of one thousand tokens takes 14B as long as one of two. Leaves out the
bubble of a pipeline, which hundreds of micro-batches hide, and the exchange of keys and values
between context-parallel devices, which goes on during attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.scheduling.layout_planner import ThroughputPoint, ThroughputProfile
from tasks.scheduling.parallelism import possible_sizes
from tasks.simulation.hardware import Device
from tasks.simulation.roofline import Roofline
from tasks.simulation.shapes import BF16_BYTES, ModelShape

UPDATE_PASSES = 4  # forward, recomputation, backward (twice a forward)
LOGPROB_PASSES = 1  # of each model that is asked for log-probabilities
# of a layer's pass: matrix products, norms, casts, rotations and residuals, each with what
# frameworks do around it
OPERATIONS_PER_LAYER = 60
EXCHANGES_PER_LAYER = 2  # all-reduces of a pass between tensor-parallel devices


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """The parallel sizes and micro-batches of a learner."""

    tensor: int = 1  # devices that share out each matrix
    pipeline: int = 1  # groups of layers
    context: int = 1  # devices that share out the tokens of a micro-batch
    micro_batch_tokens: int = 16_384  # prompts included
    # whether a micro-batch is one response, however long, as in RollPacker's artifact
    is_one_response: bool = False
    num_logprob_models: int = 2  # asked for log-probabilities: the old policy, a reference

    @property
    def num_passes(self) -> int:
        """Work per token, in units of one forward pass."""
        return UPDATE_PASSES + LOGPROB_PASSES * self.num_logprob_models

    @property
    def group_size(self) -> int:
        """Number of devices that work on a micro-batch together."""
        return self.tensor * self.pipeline * self.context


# RollPacker's (section 6: tensor, pipeline, context)
ROLLPACKER: Mapping[str, TrainingCost] = {
    "qwen2.5-7b": TrainingCost(tensor=2, is_one_response=True),
    "qwen2.5-14b": TrainingCost(tensor=2, pipeline=2, context=2, is_one_response=True),
    "qwen2.5-32b": TrainingCost(tensor=4, context=4, is_one_response=True),
}


def device_s_per_token(
    model: ModelShape, device: Device, training: TrainingCost, context_tokens: float
) -> float:
    """Returns the device-seconds to train a token that has context_tokens before it, in a full
    micro-batch. A step takes these seconds times its tokens, divided by the number of devices."""
    passes = training.num_passes
    flops = model.flops_per_token + model.flops_per_token_pair * context_tokens
    token_s = passes * flops / device.training_flops
    if training.tensor > 1:
        sent = 2 * (training.tensor - 1) * BF16_BYTES * model.hidden_size
        exchanges = passes * model.num_layers * EXCHANGES_PER_LAYER
        token_s += exchanges * sent / device.link_bytes_per_s(is_one_host=True)
    least_s = device_s_per_micro_batch(model, device, training)
    return (
        token_s if training.is_one_response else max(token_s, least_s / training.micro_batch_tokens)
    )


def device_s_per_micro_batch(model: ModelShape, device: Device, training: TrainingCost) -> float:
    """Returns the least device-seconds of a micro-batch: its operations are started one after the
    other while the devices compute, and every device that shares a layer waits for that."""
    waits_s = OPERATIONS_PER_LAYER * device.eager_s
    if training.tensor > 1:
        waits_s += EXCHANGES_PER_LAYER * device.collective_s
    sharers = training.tensor * training.context
    return training.num_passes * model.num_layers * sharers * waits_s


CHUNK_TOKENS = 8192  # most tokens of an engine's step (ROLL's max_num_batched_tokens)
MAX_BATCH = 1024  # most sequences of an engine's step (veRL's max_num_seqs)
MAX_MODEL_LEN = 40_960  # of Qwen3
KV_MARGIN = 0.01  # vLLM's watermark
GRADIENT_BYTES = 4  # of a parameter
# of a padded position of a batch: five int64 tensors (tokens, mask, positions, response and its
# mask) and six of fp32 (log-probabilities of policy and reference, rewards, advantages, returns)
POSITION_BYTES = 64
# of a batch between driver and workers: gathered after the rollout, handed out for the
# log-probabilities of each model and for the update
BATCH_MOVES = 4
OPTIMIZER_BYTES = 12  # of a parameter: the weight and Adam's two moments in fp32
WAKE_S = 1.0  # assumed: an engine maps its memory and empties its cache, copies apart
SLEEP_S = 0.5  # assumed: an engine gives its memory back, copies apart
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LENGTHS = (256, 1024, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices that generate with a model and train it."""

    model: ModelShape
    device: Device
    num_devices: int
    devices_per_host: int = 8
    training: TrainingCost = field(default_factory=TrainingCost)
    context_tokens: float = 1_000  # before a trained token, on average over tokens
    sorts_logits: bool = False  # whether sampling sorts the vocabulary, for top-k or top-p
    is_eager: bool = False  # whether engines launch their steps kernel by kernel
    batch_positions: int = 0  # of a step's batch: responses times prompt and response bounds

    def roofline(self, size: int) -> Roofline:
        """Returns the roofline of a replica of this tensor-parallel size."""
        return Roofline(
            model=self.model,
            device=self.device,
            size=size,
            is_one_host=size <= self.devices_per_host,
            sorts_logits=self.sorts_logits,
            is_eager=self.is_eager,
        )

    def sizes(self, num_devices: int, largest: int) -> tuple[int, ...]:
        """Returns the tensor-parallel sizes, up to `largest`, that num_devices and the model's
        heads allow and in which the weights fit."""
        heads, kv_heads = self.model.num_heads, self.model.num_kv_heads
        devices = range(num_devices)
        possible = possible_sizes(devices, self.devices_per_host, heads, kv_heads, largest)
        return tuple(size for size in possible if self.roofline(size).fits)

    def engine(self, size: int) -> SimulatedEngineConfig:
        """Returns speed and KV capacity of a replica over `size` devices. Raises ValueError if the
        weights do not fit."""
        roofline = self.roofline(size)
        per_sequence_s = roofline.sequence_s + roofline.exchange_s_per_token
        return SimulatedEngineConfig(
            tensor_parallel_size=size,
            max_model_len=MAX_MODEL_LEN,
            max_batch=MAX_BATCH,
            step_s=roofline.fixed_s + per_sequence_s,
            step_s_per_sequence=per_sequence_s,
            step_s_per_kv_token=roofline.kv_s_per_token,
            weights_s=roofline.weights_s,
            matrix_s_per_token=roofline.matrix_s_per_token,
            prefill_s_per_token=roofline.exchange_s_per_token,
            attention_share=roofline.attention_share,
            chunk_tokens=CHUNK_TOKENS,
            kv_capacity_tokens=roofline.kv_tokens // size,
            kv_margin=KV_MARGIN,
            shares_prompts=True,
        )

    def profile(self, sizes: Sequence[int]) -> ThroughputProfile:
        """Returns the profile that calibration would measure on replicas of these sizes."""
        return ThroughputProfile(
            model=self.model.name,
            device=self.device.name,
            kv_tokens={size: self.roofline(size).kv_tokens for size in sizes},
            points=tuple(point for size in sizes for point in self._points(size)),
        )

    def train_s_per_token(self) -> float:
        """Seconds of one device to train a token: log-probabilities, forward, backward."""
        return device_s_per_token(self.model, self.device, self.training, self.context_tokens)

    def train_s_per_response(self) -> float:
        """Least seconds of one device for a response that is a micro-batch by itself; 0 where
        responses share micro-batches."""
        if not self.training.is_one_response:
            return 0.0
        return device_s_per_micro_batch(self.model, self.device, self.training)

    def update_s(self) -> float:
        """Seconds from complete gradients to new weights: the moves of the batch, gradients summed
        at the owners of their parameters, the states of the optimizer from the host and back, Adam,
        and the new weights to all devices."""
        own = self.model.parameters / self.num_devices
        states_s = self._there_and_back_s(own * OPTIMIZER_BYTES)
        adam_s = own * (2 * OPTIMIZER_BYTES + GRADIENT_BYTES) / self.device.read_bytes_per_s
        sent = (GRADIENT_BYTES + BF16_BYTES) * self._learner_parameters
        return self.batch_s() + states_s + adam_s + sent / self._link_bytes_per_s

    def batch_s(self) -> float:
        """Seconds in which the driver gathers a step's batch and hands it out to all hosts."""
        moved = BATCH_MOVES * POSITION_BYTES * self.batch_positions
        num_hosts = math.ceil(self.num_devices / self.devices_per_host)
        return moved / num_hosts / self.device.batch_bytes_per_s

    def publish_s(self, size: int) -> float:
        """Seconds from new weights to engines of `size` devices that generate with them: the
        learner's weights leave the devices, those of the engines come back, and are replaced."""
        leaves_s = BF16_BYTES * self._learner_parameters / self.device.offload_bytes_per_s
        wakes_s = WAKE_S + self.model.weight_bytes / size / self.device.onload_bytes_per_s
        return leaves_s + wakes_s + self.model.weight_bytes / self.device.refit_bytes_per_s

    def relayout_s(self, old: int, new: int) -> float:
        """Seconds in which the engines switch to another tensor-parallel size; the weights of the
        new engines come from the host. 0 if the size stays."""
        if old == new:
            return 0.0
        weights = self.model.weight_bytes / new
        return SLEEP_S + WAKE_S + weights / self.device.copy_bytes_per_s

    def free_s(self, size: int) -> float:
        """Seconds in which a device of an engine of `size` devices switches from generating to
        training: the engine's weights leave, the reference's come and go, the learner's come."""
        sleeps_s = SLEEP_S + self.model.weight_bytes / size / self.device.offload_bytes_per_s
        own = BF16_BYTES * self._learner_parameters
        num_references = max(0, self.training.num_logprob_models - 1)
        references_s = num_references * self._there_and_back_s(own)
        return sleeps_s + references_s + own / self.device.onload_bytes_per_s

    def reload_s(self) -> float:
        """Seconds in which gradients come back from the host to ranks that had accumulated them
        while others generated (RollPacker keeps them there until all are summed)."""
        gradients = GRADIENT_BYTES * self._learner_parameters
        return gradients / self.device.onload_bytes_per_s

    def _there_and_back_s(self, num_bytes: float) -> float:
        """Seconds in which so many bytes come to a device and leave it again."""
        device = self.device
        return num_bytes / device.onload_bytes_per_s + num_bytes / device.offload_bytes_per_s

    @property
    def _learner_parameters(self) -> float:
        """Parameters of a learner's rank."""
        return self.model.parameters / (self.training.tensor * self.training.pipeline)

    @property
    def _link_bytes_per_s(self) -> float:
        """The slowest link between the machine's devices."""
        return self.device.link_bytes_per_s(self.num_devices <= self.devices_per_host)

    def _points(self, size: int) -> Iterator[ThroughputPoint]:
        pace = self.engine(size).pace
        for length in LENGTHS:
            for batch in BATCHES:
                work = pace.prefill_work(length)
                chunk_s = pace.base_s(0, pace.chunk_tokens)
                num_chunks = math.ceil(batch * work / pace.chunk_tokens)
                step_s = pace.steps_s(1, batch, batch * length, 0)
                yield ThroughputPoint(
                    size=size,
                    batch=batch,
                    length=length,
                    prefill_tokens_per_s=batch * length / (num_chunks * chunk_s),
                    decode_tokens_per_s=batch / step_s,
                )
