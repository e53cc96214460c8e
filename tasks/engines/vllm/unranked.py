"""vLLM's log-probabilities without ranks.

vLLM tells of every token how many others are likelier. Nobody here reads that, and on a CPU the
pass over the vocabulary that counts them is a kernel which torch's inductor compiles in every
process: seconds between an engine and its first token, and a compiler that must be there. So its
workers get a function of ours for the one that gathers log-probabilities; what it gathers is what
vLLM's would.

Relied on, in vLLM 0.32, and guarded by `tests/engine/test_unranked.py`: the sampler's
`gather_logprobs` is looked up on the instance, and what counts ranks is what it calls.
"""

from __future__ import annotations

from typing import Any

from tasks.engines.vllm.workers import VllmWorkers


def leave_out_ranks(workers: VllmWorkers) -> None:
    """From now on no worker counts them: they are told as 0. For workers on CPUs, which run vLLM's
    first model runner."""
    workers.collective_rpc(_take_over)


def _take_over(worker: Any) -> None:  # Any: vLLM's worker
    worker.model_runner.sampler.gather_logprobs = gather_unranked


def gather_unranked(logprobs: Any, num_logprobs: int, token_ids: Any) -> Any:
    """Of each token and the likeliest ones in its place: vLLM's `LogprobsTensors`, with
    R x (1 + num_logprobs) entries.

    logprobs: R x V floats. token_ids: R integers. Any: tensors; torch is imported only where an
    engine runs.
    """
    import torch
    from vllm.v1.outputs import LogprobsTensors

    tokens = token_ids.unsqueeze(-1)
    likeliest = torch.topk(logprobs, num_logprobs, dim=-1)
    return LogprobsTensors(
        torch.cat((tokens, likeliest.indices), dim=1).to(torch.int32),
        torch.cat((logprobs.gather(-1, tokens), likeliest.values), dim=1),
        torch.zeros_like(token_ids),
    )
