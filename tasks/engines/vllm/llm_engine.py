"""vLLM's LLMEngine: pin the thread to cores, build the engine, submit requests, attest to weights.

Token ids go in and come out, so that a step costs none of our Python per token. Log-probabilities
are those of the distribution that was sampled from (after temperature and top_p); for greedy
decoding, the model's own. Relied on, in vLLM 0.32: the scheduler schedules the requests in
`running` and `waiting` and no others, counts its free blocks, and can be made to preempt a request,
which then waits.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from artifacts.models.importing import importing_transformers
from artifacts.prompt_ids import asked_of
from artifacts.records import Request, ShownPicture
from tasks.cluster.ports import LOOPBACK, reach_ranks_by
from tasks.engines.base import pictures_of
from tasks.engines.vllm.picture_inputs import PictureInputs
from tasks.engines.vllm.worker_patches import allow_tiles, leave_out_ranks, rotate_every_head

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

PROBE = "probe"


def pin_this_thread(cpu_ids: tuple[int, ...] | None, num_ranks: int) -> None:
    """Bind this thread, and the compute threads started from here, to the cores; size torch's
    thread pool to the number of cores. VLLM_CPU_OMP_THREADS_BIND has no effect on an engine in
    process; the ranks of a tensor-parallel replica take their cores from it, or want a NUMA node
    each. OpenMP reads its environment once, so the thread count is set before torch is imported,
    where that is still possible."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if num_ranks > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = cores_of_ranks(cpu_ids or (), num_ranks)
    if cpu_ids is None:
        return
    os.sched_setaffinity(0, cpu_ids)
    if "torch" not in sys.modules:
        os.environ["OMP_NUM_THREADS"] = str(len(cpu_ids))
    import torch

    torch.set_num_threads(len(cpu_ids))


def cores_of_ranks(cpu_ids: Sequence[int], num_ranks: int) -> str:
    """The cores of each rank in vLLM's notation, "0,1|2,3"; "nobind" if shares would differ."""
    share, rest = divmod(len(cpu_ids), num_ranks)
    if not share or rest:
        return "nobind"
    return "|".join(
        ",".join(map(str, cpu_ids[rank * share : (rank + 1) * share])) for rank in range(num_ranks)
    )


def build_llm_engine(arguments: dict[str, Any]) -> LLMEngine:  # Any: EngineArgs are of many types
    """Import vLLM and build an engine in the calling thread, which must already be pinned.
    arguments: of vLLM's EngineArgs. Raises ValueError for arguments that vLLM refuses."""
    reach_ranks_by(LOOPBACK)  # no engine spans two machines
    with importing_transformers():
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

    if on_cpu():
        # latent attention head by head: vLLM's backend for it keeps products of the weights alone,
        # which no later version can be loaded into, and on some cores has no fp32
        os.environ["VLLM_MLA_DISABLE"] = "1"
    try:
        engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    except ValidationError as error:  # which does not pickle
        faults = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise ValueError(
            f"vLLM refuses this engine: {faults}; change the engine's fields, or the model"
        ) from None
    if on_cpu():
        allow_tiles(engine, arguments["dtype"])
        leave_out_ranks(engine)
        rotate_every_head(engine)
    return engine


def on_cpu() -> bool:
    """True if vLLM's backend is that of the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def response_params(
    request: Request,
    stop_ids: Sequence[int],
    seed: Mapping[str, Any],  # Any: vLLM's arguments are of many types
) -> SamplingParams:
    """The sampling parameters of one response (n = 1), continued after its kept tokens; seed: the
    arguments that seed its noise."""
    return _params(
        max_tokens=request.max_new_tokens - len(request.kept_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        stop_token_ids=list(stop_ids),
        logprobs=0,
        **seed,
    )


def _params(**arguments: Any) -> SamplingParams:  # Any: as above
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        **arguments,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The cache salt, adapter and picture inputs that the requests of one weight version share."""

    salt: str | None = None  # requests share KV cache only if they have the same
    adapter: Any = None  # Any: vLLM's LoRARequest; None for the model alone
    name: str = ""  # of the adapter, where there are several
    inputs: PictureInputs | None = None  # of a model that takes pictures


def enter(
    engine: LLMEngine,
    request_id: str,
    tokens: list[int],
    params: SamplingParams,
    entry: Entry,
    pictures: Sequence[ShownPicture] = (),
) -> str:
    """Submit a request to vLLM; returns vLLM's internal id of the request. pictures: that the
    tokens show."""
    from vllm.inputs.engine import tokens_input

    if pictures:
        assert entry.inputs is not None, "a model of text alone is shown no pictures"
        prompt = entry.inputs.prompt(tokens, pictures, entry.salt)
    else:
        prompt = tokens_input(tokens, cache_salt=entry.salt)
    internal_id: str = engine.add_request(request_id, prompt, params, lora_request=entry.adapter)
    return internal_id


def agreed(prints: Sequence[dict[str, int]]) -> dict[str, int]:
    """Merge the ranks' fingerprints into one per tensor. Where ranks differ, the result equals none
    of theirs, so that the weight check fails."""
    return {name: reduce(xor, {rank[name] for rank in prints}) for name in prints[0]}


def disputed(prints: Sequence[dict[str, int]]) -> dict[str, tuple[int, ...]]:
    """Every rank's fingerprint, of the tensors about which they differ."""
    of_ranks = {name: tuple(rank[name] for rank in prints) for name in prints[0]}
    return {name: found for name, found in of_ranks.items() if len(set(found)) > 1}


def check_probes(probes: Sequence[tuple[int, ...]], max_model_len: int) -> None:
    """Raises ValueError for a probe of fewer than two tokens, or without room for one more."""
    for probe in probes:
        if not 2 <= len(probe) < max_model_len:
            raise ValueError(
                f"a probe needs 2 to {max_model_len - 1} tokens, got {len(probe)}; choose another"
                " probe prompt"
            )


@contextmanager
def alone(scheduler: Any) -> Iterator[None]:  # Any: vLLM's scheduler
    """Within the block, vLLM schedules none of the running and waiting requests, so that only
    probes run; the requests keep their blocks and tokens."""
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    scheduler.running = []
    scheduler.waiting.clear()
    yield
    scheduler.running = [request for request in running if not request.is_finished()]
    scheduler.waiting.extend(waiting)


def make_room(scheduler: Any, block_size: int, probes: Sequence[tuple[int, ...]]) -> None:
    """Preempt the most recent running requests until there is room for the probes: free blocks and,
    in vLLM's second model runner, a slot for each, which every running request keeps even in steps
    that do not schedule it."""
    num_needed = sum(len(probe) // block_size + 1 for probe in probes)
    blocks = scheduler.kv_cache_manager.block_pool
    max_running = scheduler.max_num_running_reqs
    if scheduler.use_v2_model_runner:
        max_running -= len(probes)
    while scheduler.running and (
        blocks.get_num_free_blocks() < num_needed or len(scheduler.running) > max_running
    ):
        scheduler._preempt_request(scheduler.running.pop(), time.monotonic())


def prompt_logprobs(
    engine: LLMEngine, probes: Sequence[tuple[int, ...]], entry: Entry
) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of each probe's tokens after its first, computed in one batch."""
    params = _params(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    asked = asked_of(PROBE, entry.name)
    for index, probe in enumerate(probes):
        enter(engine, f"{asked}:{index}", list(probe), params, entry, pictures_of(probe))
    found: dict[str, tuple[float, ...]] = {}
    while len(found) < len(probes):
        found |= {
            output.request_id: tuple(output.prompt_logprobs.logprobs) for output in engine.step()
        }
    return tuple(found[f"{asked}:{index}"] for index in range(len(probes)))
