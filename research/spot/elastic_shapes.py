"""What a model of the RLBoost paper takes on the hardware of its artifact, by arithmetic.

Trainer: 8 H100, four engines of two GPUs, which train, too. A worker: 2 H100. A step: 128 prompts x
8 responses of at most 14,336 tokens. Speeds follow from data sheets and three efficiencies that
were fixed before the first run, updates, publications and the driver's batches from the rates of
`tasks.simulation.hardware`; none is fitted to a published throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.writers import BlankWriter, LengthModel
from tasks.simulation.hardware import DEVICES
from tasks.simulation.machine import BATCH_MOVES, OPTIMIZER_BYTES, POSITION_BYTES, WAKE_S
from tasks.simulation.shapes import BF16_BYTES
from tasks.simulation.workloads import WORKLOADS, Workload

BYTES_PER_S = 3.35e12  # memory of an H100
FLOPS = 989e12  # of an H100, dense bf16
GPU_BYTES = 80e9
READS = 0.6  # of the bandwidth that decoding reaches
PREFILLS = 0.4  # of the FLOPs that prefilling reaches
TRAINS = 0.35  # of the FLOPs that training reaches
OVERHEAD_S = 0.003  # of a decode step: launches, sampling, the exchange between two GPUs
CONTEXT_TOKENS = 2500  # that a decoded sequence has in the cache, on average
CACHE_SHARE = 0.6  # of the memory that engine weights and cache may take (the artifact's)
# forward and backward 6, forward again for the checkpoints 2, log-probabilities under the old
# policy 2 and under the reference 2: times the parameters, a token
FLOPS_PER_PARAMETER = 12
MAX_BATCH = 256  # sequences of an engine (the artifact's)
LINK_BYTES_PER_S = 50e9 / 8 * 0.7  # of a worker: 50 Gbit/s, of which 70 % are reached
LONGEST_PROMPT, LONGEST_RESPONSE = 512, 14_336  # tokens, to which the artifact pads
GPUS_PER_HOST = 8
H100 = DEVICES["h100"]
LENGTHS = LengthModel(median_tokens=3000, sigma=0.8)  # of responses before the bound cuts them


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotShape:
    """A model on engines of two GPUs each, a learner rank beside each of the trainer's."""

    parameters: float
    cache_bytes: float  # of a token: layers x key-value heads x head size x 2 x 2 bytes
    num_own: int = 4  # engines of the trainer
    gpus: int = 2  # of an engine, of a rank and of a worker
    num_prompts: int = 128
    responses_per_prompt: int = 8
    longest_tokens: int = LONGEST_RESPONSE
    prompt_tokens: int = 200
    lengths: LengthModel = LENGTHS
    workload: Workload | None = None  # whose responses are as long as they are; None: `lengths`
    update_s: float = 5.0  # the optimizer step, whose states lie in the hosts' memory
    publish_s: float = 3.0  # the trainer's own engines take the weights over
    move_s: float = 0.0  # of the driver's process, which hands a padded response to the learners
    build_s: float = 90.0  # from the start of a worker to an engine without weights
    load_s: float = 3.0  # weights from a worker's memory into its engine
    report_tokens: int = 0  # decode steps between two token reports of an engine; 0 for none

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def transfer_s(self) -> float:
        """From a publication until a worker has the weights."""
        return self.weight_bytes / LINK_BYTES_PER_S + self.load_s

    @property
    def train_s_per_token(self) -> float:
        """Seconds that a learner rank takes for a token."""
        return FLOPS_PER_PARAMETER * self.parameters / (self.gpus * FLOPS * TRAINS)

    def engine(self, seed: int) -> SimulatedEngineConfig:
        reads = self.gpus * BYTES_PER_S * READS
        compute_s = 2 * self.parameters / (self.gpus * FLOPS * PREFILLS)
        room = self.gpus * GPU_BYTES * CACHE_SHARE - self.weight_bytes
        return SimulatedEngineConfig(
            step_s=self.weight_bytes / reads + OVERHEAD_S,
            step_s_per_sequence=self.cache_bytes * CONTEXT_TOKENS / reads + compute_s,
            prefill_s_per_token=compute_s,
            kv_capacity_tokens=int(room / self.cache_bytes),
            max_batch=MAX_BATCH,
            lengths=self.lengths.model_copy(update={"seed": seed}),
            report_tokens=self.report_tokens,
        )

    def replica(self, name: str, seed: int) -> SimulatedEngine:
        """An engine of this name."""
        lengths = None if self.workload is None else self.workload.writer(1, seed)
        writer = None if lengths is None else BlankWriter(lengths)
        return SimulatedEngine(name, self.engine(seed), writer=writer)

    def with_lengths(self, law: str) -> SpotShape:
        """With responses as long as those of `LENGTH_LAWS` under this name."""
        return replace(self, workload=LENGTH_LAWS[law](self.longest_tokens))


# our guess at RLBoost's responses, whose longest are five medians; and mathematics of RollPacker,
# whose longest are twenty-five and more
LENGTH_LAWS: Mapping[str, Callable[[int], Workload | None]] = {
    "rlboost": lambda longest_tokens: None,
    "rollpacker": WORKLOADS["math"],
}


def _shape(parameters: float, num_layers: int, num_hosts: int = 1) -> SpotShape:
    """A model whose optimizer states come from the host for an update and go back, and whose new
    weights are loaded into the own engines, as in the artifact's veRL."""
    states = OPTIMIZER_BYTES * parameters / (GPUS_PER_HOST * num_hosts)
    moved = BATCH_MOVES * POSITION_BYTES * (LONGEST_PROMPT + LONGEST_RESPONSE)
    return SpotShape(
        parameters=parameters,
        cache_bytes=num_layers * 8 * 128 * 4,
        num_own=4 * num_hosts,
        update_s=states / H100.onload_bytes_per_s + states / H100.offload_bytes_per_s,
        publish_s=WAKE_S + BF16_BYTES * parameters / H100.refit_bytes_per_s,
        move_s=moved / num_hosts / H100.batch_bytes_per_s,
    )


SHAPES: Mapping[str, SpotShape] = {
    "8b": _shape(8.19e9, 36),
    "14b": _shape(14.77e9, 40),
    "32b": _shape(32.76e9, 64, num_hosts=2),  # as the paper has it
}
