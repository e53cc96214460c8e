"""The speeds and sizes of devices: one table of constants, each with its source (`SOURCES`).

A data sheet gives a rate, `reaches` the share of it that the work at hand gets. What an engine's
process takes (`host_s`, `host_s_per_sequence`) was measured on an H200; one number was calibrated
on a published figure, `process_s`. All are the same for every model, size and batch. Leaves out
what depends on a model (`roofline`, `machine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The shares of a data sheet's rates that programs reach, 0..1."""

    memory: float  # of the memory's bandwidth: weights and KV cache are read
    matrix: float  # of the arithmetic, in an engine's matrix products
    training: float  # of the arithmetic, in the forward and backward passes of long micro-batches
    links: float  # of every link's bandwidth
    cache: float  # of the memory, that weights and KV cache of an engine may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator in its host; rates are those of the data sheet, in one direction."""

    name: str
    memory_bytes_per_s: float
    flops: float  # a second, dense bf16
    memory_bytes: float
    nvlink_bytes_per_s: float  # to the other devices of its host
    network_bytes_per_s: float  # to devices of other hosts
    host_bytes_per_s: float  # to the memory of its host
    launch_s: float  # of a kernel in a captured graph, its ramp up and down
    host_s: float  # of an engine's step, in which the device waits for its process
    host_s_per_sequence: float  # of that step, for each sequence in it
    sort_s_per_logit: float  # of a sampler that sorts the vocabulary, for each logit of a sequence
    process_s: float  # of that step, when several processes hold the engine and wait for each other
    eager_s: float  # of an operation that no graph captures, as in a learner
    collective_s: float  # of an exchange within a host, however small
    # of states that leave the device: their host memory is taken and pinned anew every time
    offload_bytes_per_s: float
    onload_bytes_per_s: float  # of states that come back from the host
    refit_bytes_per_s: float  # of new weights into an engine: gathered, sent and loaded in buckets
    # of a batch between the process that drives the steps and a host's workers
    batch_bytes_per_s: float
    reaches: Reached

    @property
    def read_bytes_per_s(self) -> float:
        """Bytes a second that a kernel reads from memory."""
        return self.memory_bytes_per_s * self.reaches.memory

    @property
    def matrix_flops(self) -> float:
        """Floating-point operations a second in the matrix products of an engine."""
        return self.flops * self.reaches.matrix

    @property
    def training_flops(self) -> float:
        """Floating-point operations a second of a learner."""
        return self.flops * self.reaches.training

    @property
    def cache_bytes(self) -> float:
        """Bytes of memory that weights and KV cache of an engine may take."""
        return self.memory_bytes * self.reaches.cache

    def link_bytes_per_s(self, is_one_host: bool) -> float:
        """Bytes a second to a device of the same host or of another one."""
        link = self.nvlink_bytes_per_s if is_one_host else self.network_bytes_per_s
        return link * self.reaches.links

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes a second to and from the host's memory."""
        return self.host_bytes_per_s * self.reaches.links


H800 = Device(
    name="h800",
    memory_bytes_per_s=3.35e12,
    flops=989e12,
    memory_bytes=80e9,
    nvlink_bytes_per_s=200e9,
    network_bytes_per_s=50e9,
    host_bytes_per_s=64e9,
    launch_s=2.5e-6,
    host_s=3.0e-3,
    host_s_per_sequence=6.2e-5,
    sort_s_per_logit=1.43e-10,
    process_s=1e-3,
    eager_s=1.56e-5,
    collective_s=15e-6,
    offload_bytes_per_s=2.8e9,
    onload_bytes_per_s=5.7e9,
    refit_bytes_per_s=3.9e9,
    batch_bytes_per_s=0.25e9,
    reaches=Reached(memory=0.8, matrix=0.6, training=0.34, links=0.7, cache=0.85),
)
H100 = replace(H800, name="h100", nvlink_bytes_per_s=450e9)
H200 = replace(H100, name="h200", memory_bytes_per_s=4.8e12, memory_bytes=141e9)
A100 = replace(
    H800,
    name="a100",
    memory_bytes_per_s=2.039e12,
    flops=312e12,
    nvlink_bytes_per_s=300e9,
    network_bytes_per_s=25e9,
    host_bytes_per_s=32e9,
)
CORE = Device(
    name="core",
    memory_bytes_per_s=12e9,
    flops=200e9,
    memory_bytes=12e9,
    nvlink_bytes_per_s=10e9,
    network_bytes_per_s=1e9,
    host_bytes_per_s=10e9,
    launch_s=2.5e-5,
    host_s=5e-3,
    host_s_per_sequence=5e-5,
    sort_s_per_logit=2e-9,
    process_s=2e-3,
    eager_s=2e-5,
    collective_s=2e-4,
    offload_bytes_per_s=7e9,
    onload_bytes_per_s=7e9,
    refit_bytes_per_s=7e8,
    batch_bytes_per_s=0.25e9,
    reaches=Reached(memory=0.8, matrix=0.75, training=0.65, links=0.7, cache=0.3),
)

DEVICES: Mapping[str, Device] = {device.name: device for device in (H800, H100, H200, A100, CORE)}

# real runs that the constants of a device were compared with (docs/experiments.md)
COMPARED_WITH: Mapping[str, str] = {"h200": "one H200 run"}

SHEET = "data sheet"
MEASURED = "measured (research/results/h200_run)"
SHARED = "assumed: shared memory"
# of every constant; a device's own beside its name
SOURCES: Mapping[str, Mapping[str, str]] = {
    "memory_bytes_per_s": {
        "h800": f"{SHEET} of the H100 SXM, of which it is the chip: 3.35 TB/s",
        "h100": f"{SHEET} of the H100 SXM: 3.35 TB/s",
        "h200": f"{SHEET} of the H200 SXM: 4.8 TB/s",
        "a100": f"{SHEET} of the A100 80 GB SXM: 2.039 TB/s",
        "core": "assumed: one core's share of a server's memory channels",
    },
    "flops": {
        "a100": f"{SHEET} of the A100: 312 TFLOP/s",
        "core": "measured (research/results/measurements.md): 190 to 200 GFLOP/s in matrix"
        " products, 150 in engines",
        "": f"{SHEET} of the H100 SXM: 989 TFLOP/s without sparsity",
    },
    "memory_bytes": {"core": "half of this machine's 24 GB", "": SHEET},
    "nvlink_bytes_per_s": {
        "h800": "400 GB/s in both directions, which is how it differs from the H100",
        "h100": f"{SHEET}: 900 GB/s in both directions",
        "h200": f"{SHEET}: 900 GB/s in both directions",
        "a100": f"{SHEET}: 600 GB/s in both directions",
        "core": SHARED,
    },
    "network_bytes_per_s": {
        "a100": "200 Gbit/s for each device, as in the maker's own hosts",
        "core": "assumed: 10 Gbit/s",
        "": "400 Gbit/s for each device (RollPacker, section 6, says 400 Gbit/s; that every device"
        " has an adapter of its own is assumed)",
    },
    "host_bytes_per_s": {
        "a100": "PCIe 4, 16 lanes",
        "core": SHARED,
        "": "PCIe 5, 16 lanes",
    },
    "launch_s": {
        "core": "measured (research/results/measurements.md): a step of one response takes 40 ms,"
        " less its weights",
        "": "assumed: microseconds between dependent kernels of a captured graph",
    },
    "host_s": {
        "core": "assumed",
        "": f"{MEASURED}: a step of one sequence, 5.7 ms, less weights and launches without graphs",
    },
    "host_s_per_sequence": {
        "core": "assumed: bookkeeping in Python",
        "": f"{MEASURED}: what each further sequence adds to a step, less its arithmetic and cache",
    },
    "sort_s_per_logit": {
        "core": "assumed",
        "": "vLLM, pull request 40376: top-k and top-p of 128 x 131,072 logits in 2.4 ms",
    },
    "process_s": {
        "core": "assumed",
        "": "calibrated: RollPacker, figure 6b, long rounds of 8B/32k 10 % slower with two devices"
        " to an engine",
    },
    "eager_s": {
        "core": "assumed",
        "": "what a decode step takes longer without graphs, by the kernel: 9 us (8B on an H100,"
        " cloudai.pt/tag/cuda-graphs) and 27 us (7B on an A800, issue 7960 of vLLM-Omni); their"
        " geometric mean",
    },
    "collective_s": {
        "core": "assumed",
        "": "assumed: usual latency of a small all-reduce over NVLink",
    },
    "offload_bytes_per_s": {
        "core": SHARED,
        "": "SGLang, pull request 32032: 2.8 GB/s on an H200; also vime, 444: 2.4 GiB/s, and vLLM,"
        " 48337: 1.6 GB/s (8B asleep in 10.6 s)",
    },
    "onload_bytes_per_s": {
        "core": SHARED,
        "": "vime, pull request 444: 5.3 GiB/s; also vLLM, 48337: 7.5 GB/s (8B awake in 2.2 s)",
    },
    "refit_bytes_per_s": {
        "core": "measured (research/results/measurements.md): 135M parameters in 0.4 s",
        "": "veRL's page on its checkpoint engine: 30B without it in 15.8 s",
    },
    "batch_bytes_per_s": {
        "": "Ray, issue 42632: 200 to 300 MB/s to each host",
    },
    "reaches.memory": {"": "assumed: usual of streaming kernels"},
    "reaches.matrix": {
        "core": "measured here (research/results/measurements.md): 150 of 200 GFLOP/s",
        "": "assumed: usual of matrix products in serving",
    },
    "reaches.training": {
        "core": "measured here (research/results/measurements.md): two thirds in matrix products",
        "": f"{MEASURED}: 48,300 tokens/s of 0.95B, recomputation included, in rows of 16,384",
    },
    "reaches.links": {"": "assumed: usual of large messages"},
    "reaches.cache": {
        "core": "assumed",
        "": "RollPacker's artifact: gpu_memory_utilization 0.85",
    },
}
