"""Changes to vLLM's workers: the noise of sampling, log-probabilities without ranks, every head
rotated, and on processors with AMX the permission to use tile registers.

**Draws.** The noise of a token is a function of the response's seed and the token's position alone:

    seed of the response ──┐
                           ├──▶ row_seeds ──▶ Gumbel noise of every token ──▶ argmax
    position of the token ─┘

A position is the token's index in the whole sequence, prompt included. It is counted, not
remembered, so that a response that is computed again (in another batch or engine, after a
preemption, from its partial tokens) meets the noise that it would have met. Of vLLM's two model
runners the second one, the default on GPUs, draws so by itself, by `SamplingParams.seed`. The first
one, which the CPU backend runs, keeps a generator per request, which a continued response would
begin anew: there requests carry their seed in `extra_args`, and `ResponseDraws` takes the place of
the method with which vLLM's sampler chooses tokens.

Relied on, in vLLM 0.32, and guarded by `tests/engine/test_vllm_draws.py`: `TopKTopPSampler.forward`
is looked up on the instance; row i of the logits is request i of the runner's input batch, which
counts its tokens; `fused_gumbel_argmax` adds to row i Gumbel noise of (seed i, token) alone.

**Ranks.** vLLM counts for every token how many others are likelier, which nothing here reads: on a
CPU that is a kernel which inductor compiles in every process. Relied on, and guarded by
`tests/engine/test_unranked.py`: the sampler's `gather_logprobs` is looked up on the instance.

**Rotations.** vLLM's kernel for CPUs takes tokens x (heads * width). Latent attention gives it
tokens x heads x width, of which it rotates the first head alone: there torch computes in its place.
Relied on, and guarded by `tests/engine/test_architectures_engine.py`: `_forward_method` is looked
up on the instance.

**Tiles.** With AMX, bfloat16 attention multiplies in tile registers, which Linux gives to a process
that has asked by arch_prctl(ARCH_REQ_XCOMP_PERM); any other ends with SIGILL. vLLM's attention does
not ask (oneDNN does, at a large matrix product): `allow_tiles` asks before the first batch, in
every rank, because a program started anew does not inherit the permission.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Answer = TypeVar("Answer")


class VllmWorkers(Protocol):
    """The part of vLLM's `LLM` or `LLMEngine` that calls functions in all its workers."""

    def collective_rpc(self, method: Callable[[Any], Answer]) -> list[Answer]:  # Any: vLLM's worker
        """Call a function on every worker; returns the results by rank."""


CPUINFO = Path("/proc/cpuinfo")


def attention_path(machine: str = "", cpuinfo: Path = CPUINFO) -> str:
    """vLLM's name for the kernel of bfloat16 attention on this processor; empty for an unknown one.
    Imports neither torch nor vLLM, so that a report can call it cheaply."""
    machine = machine or platform.machine()
    if machine in ("x86_64", "AMD64"):
        flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
        return "amx" if {"amx_tile", "amx_bf16"} <= set(flags) else "vec"
    return "neon" if machine in ("aarch64", "arm64") else ""


def may_use_tiles(worker: Any = None) -> bool:  # Any: vLLM's worker
    """Ask for tile registers for this process; True if granted, or there are none."""
    import torch

    return not torch.cpu._is_amx_tile_supported() or torch.cpu._init_amx()


def allow_tiles(workers: VllmWorkers, dtype: str) -> None:
    """Ask for tile registers in every process of a CPU engine; ValueError if refused."""
    granted = workers.collective_rpc(may_use_tiles)
    if dtype == "bfloat16" and not all(granted):
        raise ValueError(
            "bfloat16 attention on a processor with AMX needs its tile registers, "
            "and the operating system refuses them; "
            "allow arch_prctl(ARCH_REQ_XCOMP_PERM) in the container, or set dtype float32"
        )


_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def row_seeds(
    seeds: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.uint64],
) -> npt.NDArray[np.int64]:
    """The seed of the next token's noise for each row of a batch, (R,), 64 bits."""
    mixed = seeds + (positions + np.uint64(1)) * _STEP  # arrays of uint64 wrap around
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST_FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND_FACTOR
    drawn: npt.NDArray[np.int64] = (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
    return drawn


SEED = "draw_seed"  # the name of a request's seed among its extra_args

SeedArguments = Callable[[int], dict[str, Any]]  # Any: SamplingParams' arguments are of many types


def own_draws(workers: VllmWorkers) -> SeedArguments:
    """Make every worker draw tokens with noise that belongs to the response. Returns a function
    from a seed to the arguments of SamplingParams that carry it."""
    if all(workers.collective_rpc(_take_draws)):
        return lambda seed: {"extra_args": {SEED: seed}}
    return lambda seed: {"seed": seed}


def _take_draws(worker: Any) -> bool:  # Any: vLLM's worker
    """Replace the worker's draws; False where vLLM's noise is the response's already."""
    if worker.vllm_config.use_v2_model_runner:
        return False
    runner = worker.model_runner
    if runner.device.type != "cpu":
        raise ValueError(
            "draws that belong to the response need vLLM's second model runner on a "
            f"{runner.device.type} device, and vLLM chose the first; "
            "install triton and unset VLLM_USE_V2_MODEL_RUNNER"
        )
    runner.sampler.topk_topp_sampler.forward = ResponseDraws(runner)
    return True


class ResponseDraws:
    """Chooses a token for each row of a batch, as vLLM's `TopKTopPSampler.forward_cpu` does."""

    def __init__(self, runner: Any) -> None:
        """runner: vLLM's model runner, which knows the request of each row."""
        import torch
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        self._runner = runner
        self._names: list[str] = []  # the requests of the last batch, by row
        self._seeds = np.zeros(0, np.uint64)  # of its rows
        self._bound = apply_top_k_top_p
        self._choose = torch.ops._C.fused_gumbel_argmax

    def __call__(self, logits: Any, generators: Any, k: Any, p: Any) -> tuple[Any, Any]:
        """Return the tokens, and the log-probabilities of the distribution that they were drawn
        from. logits: R x V floats, divided by the temperature. generators: not used. k, p: R bounds
        each or None. Any: tensors; torch is imported only where an engine runs."""
        import torch

        logits = self._bound(logits, k, p)
        noise_seeds = torch.from_numpy(self._row_seeds(len(logits)))
        return self._choose(logits, noise_seeds), logits.log_softmax(dim=-1, dtype=torch.float32)

    def _row_seeds(self, num_rows: int) -> Any:  # Any: an array of int64
        batch = self._runner.input_batch
        if len(batch.req_ids) != num_rows:
            raise RuntimeError(
                f"a step must draw one token for each request, got {num_rows} rows of logits "
                f"and {len(batch.req_ids)} requests; turn speculative decoding off"
            )
        if batch.req_ids != self._names:
            self._names = [*batch.req_ids]
            seeds = [
                self._seed(self._runner.requests[name].sampling_params) for name in self._names
            ]
            self._seeds = np.array(seeds, np.uint64)
        return row_seeds(self._seeds, batch.num_tokens_no_spec[:num_rows].astype(np.uint64))

    @staticmethod
    def _seed(params: Any) -> int:  # Any: vLLM's SamplingParams
        is_greedy = params.extra_args is None and params.temperature == 0
        return 0 if is_greedy else int(params.extra_args[SEED])  # a greedy draw is not used


def leave_out_ranks(workers: VllmWorkers) -> None:
    """Make the workers skip the ranks of log-probabilities, which are 0 from now on. For workers on
    CPUs, which run vLLM's first model runner."""
    workers.collective_rpc(_take_gathering)


def _take_gathering(worker: Any) -> None:  # Any: vLLM's worker
    worker.model_runner.sampler.gather_logprobs = gather_unranked


def rotate_every_head(workers: VllmWorkers) -> None:
    """Make workers on CPUs rotate all heads of latent attention, not the first alone."""
    workers.collective_rpc(_take_rotations)


def _take_rotations(worker: Any) -> None:  # Any: vLLM's worker
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    if not getattr(worker.model_config.hf_text_config, "kv_lora_rank", None):
        return  # its attention is not latent
    for module in worker.model_runner.get_model().modules():
        if isinstance(module, RotaryEmbedding):
            module._forward_method = module.forward_native


def gather_unranked(logprobs: Any, num_logprobs: int, token_ids: Any) -> Any:
    """Gather the log-probability of each token and of the num_logprobs likeliest tokens at its
    position, as vLLM's `LogprobsTensors` with R x (1 + num_logprobs) entries and ranks of 0.
    logprobs: R x V floats. token_ids: R integers. Any: tensors, as above."""
    import torch
    from vllm.v1.outputs import LogprobsTensors

    tokens = token_ids.unsqueeze(-1)
    likeliest = torch.topk(logprobs, num_logprobs, dim=-1)
    return LogprobsTensors(
        torch.cat((tokens, likeliest.indices), dim=1).to(torch.int32),
        torch.cat((logprobs.gather(-1, tokens), likeliest.values), dim=1),
        torch.zeros_like(token_ids),
    )
