"""What an engine says of the weights it has loaded: one fingerprint per tensor over all ranks, and
the log-probabilities of fixed probes, which are computed alone, beside what runs.

Relied on, in vLLM 0.32: the scheduler schedules what is in `running` and `waiting` and nothing
else, counts its free blocks, and preempts a request on demand, which then waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Any

from tasks.engines.vllm.asking import enter, probe_params

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

PROBE = "probe"

# Any: vLLM's scheduler


def agreed(prints: Sequence[dict[str, int]]) -> dict[str, int]:
    """One fingerprint per tensor over all ranks; ranks that differ give one that is nobody's, so
    that the gate sees it."""
    return {name: reduce(xor, {rank[name] for rank in prints}) for name in prints[0]}


def check_probes(probes: Sequence[tuple[int, ...]], max_model_len: int) -> None:
    """ValueError when one of them has no token to attest, or no room for its one new token."""
    for probe in probes:
        if not 2 <= len(probe) < max_model_len:
            raise ValueError(
                f"a probe needs 2 to {max_model_len - 1} tokens, got {len(probe)}; choose another"
                " probe prompt"
            )


@contextmanager
def alone(scheduler: Any) -> Iterator[None]:
    """Have vLLM schedule nothing of what runs and waits in it, blocks and tokens staying as they
    are, so that probes are alone."""
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    scheduler.running = []
    scheduler.waiting.clear()
    yield
    scheduler.running = [request for request in running if not request.is_finished()]
    scheduler.waiting.extend(waiting)


def make_room(scheduler: Any, block_size: int, probes: Sequence[tuple[int, ...]]) -> None:
    """Preempt the last of what runs until there are blocks for the probes beside the rest."""
    num_needed = sum(len(probe) // block_size + 1 for probe in probes)
    blocks = scheduler.kv_cache_manager.block_pool
    while scheduler.running and blocks.get_num_free_blocks() < num_needed:
        scheduler._preempt_request(scheduler.running.pop(), time.monotonic())


def prompt_logprobs(
    engine: LLMEngine, probes: Sequence[tuple[int, ...]], salt: str | None
) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of the probes' own tokens after their first, all probes in one batch,
    nothing sampled at random."""
    params = probe_params()
    for index, probe in enumerate(probes):
        enter(engine, f"{PROBE}:{index}", list(probe), params, salt)
    found: dict[str, tuple[float, ...]] = {}
    while len(found) < len(probes):
        found |= {
            output.request_id: tuple(output.prompt_logprobs.logprobs) for output in engine.step()
        }
    return tuple(found[f"{PROBE}:{index}"] for index in range(len(probes)))
