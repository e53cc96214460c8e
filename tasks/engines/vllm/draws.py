"""How vLLM's workers draw tokens: from noise that belongs to the response (`noise`).

vLLM has two model runners, and the worker's config says which one runs:

* the second one, the default on GPUs, hashes (seed of the request, position, token) in its
  sampling kernel: a request carries its seed as `SamplingParams.seed`, and that is all;
* the first one, which the CPU backend runs, keeps a generator per request. It has to rewind it
  after a part of a prefill, which a CPU generator cannot, and a continued response would begin
  with its first noise. So requests carry their seed in `extra_args`, vLLM makes no generator, and
  `ResponseDraws` takes the place of the method with which vLLM's sampler chooses tokens.

Relied on, in vLLM 0.32, and guarded by `tests/engine/test_vllm_draws.py`: `TopKTopPSampler.forward`
is looked up on the instance; row i of the logits is request i of the runner's input batch, whose
state counts its tokens; `fused_gumbel_argmax` adds to row i Gumbel noise of (seed i, token) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.engines.noise import row_seeds
from tasks.engines.vllm.workers import VllmWorkers

SEED = "draw_seed"  # the name of a request's seed among its extra_args

SeedArguments = Callable[[int], dict[str, Any]]  # Any: SamplingParams' arguments are of many types


def own_draws(workers: VllmWorkers) -> SeedArguments:
    """Make every worker draw from the noise of the response.

    Returns how a request says its seed: arguments of SamplingParams.
    """
    if all(workers.collective_rpc(_take_over)):
        return lambda seed: {"extra_args": {SEED: seed}}
    return lambda seed: {"seed": seed}


def _take_over(worker: Any) -> bool:  # Any: vLLM's worker
    """Whether the draws are ours now; False where vLLM's own are what they should be."""
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
        self._bound = apply_top_k_top_p
        self._choose = torch.ops._C.fused_gumbel_argmax

    def __call__(self, logits: Any, generators: Any, k: Any, p: Any) -> tuple[Any, Any]:
        """The tokens, and the log-probabilities of the distribution that they were drawn from.

        logits: R x V floats, divided by the temperature. generators: vLLM's, none here. k, p: R
        bounds each or None. Any: tensors; torch is imported only where an engine runs.
        """
        import torch

        logits = self._bound(logits, k, p)
        noise_seeds = torch.from_numpy(self._row_seeds(len(logits)))
        return self._choose(logits, noise_seeds), logits.log_softmax(dim=-1, dtype=torch.float32)

    def _row_seeds(self, num_rows: int) -> Any:  # Any: an array of int64
        names = self._runner.input_batch.req_ids
        if len(names) != num_rows:
            raise RuntimeError(
                f"a step must draw one token for each request, got {num_rows} rows of logits "
                f"and {len(names)} requests; turn speculative decoding off"
            )
        states = [self._runner.requests[name] for name in names]
        seeds = [_seed(state.sampling_params) for state in states]
        positions = [state.num_tokens for state in states]
        return row_seeds(np.array(seeds, np.uint64), np.array(positions, np.uint64))


def _seed(params: Any) -> int:  # Any: vLLM's SamplingParams
    """A greedy request needs none: what is drawn for it is thrown away."""
    if params.extra_args is None and params.temperature == 0:
        return 0
    return int(params.extra_args[SEED])
