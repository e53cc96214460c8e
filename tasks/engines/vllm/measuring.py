"""A process that builds one vLLM replica, measures its throughput and prints the results, line by
line.

    python -m tasks.engines.vllm.measuring '<MeasuringOrder as JSON>'  ->  stdout: "MEASURED {...}"
    for room, point or skipped point

Every batch of random prompts is computed from scratch, then decoded to a fixed length. The fastest
of the repeats counts: disturbances only ever slow a measurement down.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from artifacts.config_parts import FrozenConfig
from artifacts.records import Request
from tasks.cluster.dask_cluster import pin_process
from tasks.engines.base import ReplicaConfig
from tasks.engines.model_files import check_model_directory, read_vocabulary_size
from tasks.engines.vllm.engine import VllmEngineConfig, build_core
from tasks.engines.vllm.llm_engine import pin_this_thread
from tasks.engines.vllm.stepping import Core
from tasks.scheduling.layout_planner import ThroughputPoint

SEED = 11
# begins the lines that carry an answer; vLLM's libraries print lines of their own
MARK = "MEASURED "


class MeasuringOrder(FrozenConfig):
    """The replica to build, and the batches to time on it."""

    model_path: str
    engine: VllmEngineConfig  # its tensor_parallel_size is the size that is measured
    cores: tuple[int, ...]  # to pin to, as indices into those of the process; empty for all
    gpus: tuple[str, ...]  # CUDA_VISIBLE_DEVICES of the replica; empty on a CPU
    batches: tuple[int, ...]  # responses that decode together
    lengths: tuple[int, ...]  # prompt tokens of each
    new_tokens: int  # decoded per response, the first included
    repeats: int


def measurable(config: ReplicaConfig) -> VllmEngineConfig:
    """Return the configuration if steps of its engine can be timed, else raise ValueError."""
    if not isinstance(config, VllmEngineConfig):
        raise ValueError(
            "engine.kind must be vllm to be measured, got another; leave it out, or write the"
            " profile of a made-up engine by hand"
        )
    return config


class MeasuredCore(Core, Protocol):
    """The part of an engine core that measuring calls."""

    @property
    def prefilling(self) -> bool: ...

    def add(self, requests: Sequence[Request]) -> None: ...


def main() -> None:
    order = MeasuringOrder.model_validate_json(sys.argv[1])
    check_model_directory(order.model_path)
    if order.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order.gpus)
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TQDM_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    pin_this_thread(pin_process(order.cores) or None, order.engine.tensor_parallel_size)
    core = build_core(order.engine, order.model_path, "measured", SEED, may_stop=False)
    vocabulary = read_vocabulary_size(order.model_path) or 1
    try:
        room = core.stats().kv_tokens
        _say({"kv_tokens": room})
        for length in order.lengths:
            for batch in order.batches:
                fits = batch * (length + order.new_tokens) <= room
                reason = f"{batch=} {length=} skipped, the KV cache holds {room} tokens"
                _say(
                    asdict(measure(core, order, batch, length, vocabulary))
                    if fits
                    else {"skipped": reason}
                )
    finally:
        core.close()


def _say(answer: dict[str, Any]) -> None:  # Any: JSON values
    print(MARK + json.dumps(answer), flush=True)


def measure(
    core: MeasuredCore, order: MeasuringOrder, batch: int, length: int, vocabulary: int
) -> ThroughputPoint:
    """Measure prefill and decode throughput of this batch, each by the fastest of the repeats."""
    draw = random.Random(f"{SEED}/{batch}/{length}")
    times = [
        _time(core, random_requests(draw, order.new_tokens, batch, length, vocabulary))
        for _ in range(order.repeats)
    ]
    return ThroughputPoint(
        size=order.engine.tensor_parallel_size,
        batch=batch,
        length=length,
        prefill_tokens_per_s=batch * length / min(prefill_s for prefill_s, _ in times),
        decode_tokens_per_s=batch * (order.new_tokens - 1) / min(decode_s for _, decode_s in times),
    )


def random_requests(
    draw: random.Random, new_tokens: int, batch: int, length: int, vocabulary: int
) -> list[Request]:
    """Requests whose random prompts share no prefix, so that nothing is found in the cache."""
    return [
        Request(
            prompt_id=f"0/{row}",
            index=0,
            prompt_tokens=tuple(draw.randrange(vocabulary) for _ in range(length)),
            max_new_tokens=new_tokens,
            temperature=1.0,
            top_p=1.0,
            seed=SEED,
        )
        for row in range(batch)
    ]


def _time(core: MeasuredCore, requests: Sequence[Request]) -> tuple[float, float]:
    """Seconds until every response has its first token, and from there to the last one's end."""
    began_s = time.perf_counter()
    core.add(requests)
    while core.prefilling:
        core.step()
    prefilled_s = time.perf_counter()
    while core.busy:
        core.step()
    return prefilled_s - began_s, time.perf_counter() - prefilled_s


if __name__ == "__main__":
    main()
