"""What a learner takes for a token: arithmetic, exchange between its devices, and the operations
that its process starts one by one.

A micro-batch goes through the layers six times (forward, its recomputation, the backward pass that
counts twice, log-probabilities under the old policy and under the reference). Short micro-batches
spread over many devices wait for the process that starts the operations and not for the arithmetic:
with a response of a thousand tokens on eight devices that is most of the time. Leaves out the
bubble of a pipeline, which hundreds of micro-batches hide, and the exchange of keys and values
between context-parallel devices, which goes on during attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.simulation.hardware import Device
from tasks.simulation.shapes import BF16_BYTES, ModelShape

UPDATE_PASSES = 4  # forward, recomputation, backward (twice a forward)
LOGPROB_PASSES = 1  # of each model that is asked for log-probabilities
# of a layer's pass: matrix products, norms, casts, rotations and residuals, each with what
# frameworks do around it
OPERATIONS_PER_LAYER = 60
EXCHANGES_PER_LAYER = 2  # all-reduces of a pass between tensor-parallel devices


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """How a learner works."""

    tensor: int = 1  # devices that share out each matrix
    pipeline: int = 1  # groups of layers
    context: int = 1  # devices that share out the tokens of a micro-batch
    micro_batch_tokens: int = 16_384  # prompts included
    num_logprob_models: int = 2  # asked for log-probabilities: the old policy, a reference

    @property
    def num_passes(self) -> int:
        """Forward passes that are as much work as what is done with a token."""
        return UPDATE_PASSES + LOGPROB_PASSES * self.num_logprob_models

    @property
    def group_size(self) -> int:
        """Devices that work on a micro-batch."""
        return self.tensor * self.pipeline * self.context


# RollPacker's (section 6: tensor, pipeline, context), one response to a micro-batch (its artifact)
ROLLPACKER: Mapping[str, TrainingCost] = {
    "qwen2.5-7b": TrainingCost(tensor=2, micro_batch_tokens=1_250),
    "qwen2.5-14b": TrainingCost(tensor=2, pipeline=2, context=2, micro_batch_tokens=1_250),
    "qwen2.5-32b": TrainingCost(tensor=4, context=4, micro_batch_tokens=1_250),
}


def device_s_per_token(
    model: ModelShape, device: Device, training: TrainingCost, context_tokens: float
) -> float:
    """Device-seconds of a token with so many before it: a step of so many tokens takes as many
    times as long, divided by the devices."""
    passes = training.num_passes
    flops = model.flops_per_token + model.flops_per_token_pair * context_tokens
    arithmetic_s = passes * flops / device.training_flops
    layer_passes = passes * model.num_layers
    waits_s = OPERATIONS_PER_LAYER * device.eager_s
    sent_s = 0.0
    if training.tensor > 1:
        waits_s += EXCHANGES_PER_LAYER * device.collective_s
        sent = 2 * (training.tensor - 1) * BF16_BYTES * model.hidden_size
        sent_s = EXCHANGES_PER_LAYER * sent / device.link_bytes_per_s(is_one_host=True)
    sharers = training.tensor * training.context  # of a layer; each waits
    return arithmetic_s + layer_passes * (sharers * waits_s / training.micro_batch_tokens + sent_s)
