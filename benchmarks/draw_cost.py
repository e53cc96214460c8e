"""What draws that belong to the response cost: decode steps with them and with vLLM's, in turns.

    python -m benchmarks.draw_cost MODEL --cores 0 --batch 64

One engine decodes one batch; every other step chooses its tokens with vLLM's own
`TopKTopPSampler.forward_cpu` and its global generator. Steps that follow each other are a pair:
same batch, same lengths, same minute. Seconds are those of the process's cores, which leave out
the time that other processes had them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from artifacts.records import Request
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.cores import pin_this_thread
from tasks.engines.vllm.engine import VllmEngineConfig, build_core

_PROMPT_TOKENS = 100


def main() -> None:
    options = _parser().parse_args()
    pin_this_thread(tuple(options.cores), 1)
    config = VllmEngineConfig(max_num_seqs=options.batch)
    core = build_core(config, options.model, "measured", 0, may_stop=False)
    core.add(_requests(options.batch, 2 * options.pairs + 8))
    while core.prefilling:
        core.step()
    ours, theirs = _times(core, options.pairs)
    core.close()
    ratio = statistics.median(own / bare for own, bare in zip(ours, theirs, strict=True))
    print(
        f"batch={options.batch} pairs={options.pairs} cpu seconds a step: "
        f"ours={statistics.median(ours):.4f} vllm={statistics.median(theirs):.4f} ratio={ratio:.4f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="local model directory")
    parser.add_argument("--cores", type=int, nargs="+", default=[0], help="cores to be pinned to")
    parser.add_argument("--batch", type=int, default=64, help="responses that decode together")
    parser.add_argument("--pairs", type=int, default=100, help="steps of each kind")
    return parser


def _requests(num: int, new_tokens: int) -> list[Request]:
    draw = random.Random(0)
    return [
        Request(
            prompt_id=f"0/{row}",
            index=0,
            prompt_tokens=tuple(draw.randrange(100, 5000) for _ in range(_PROMPT_TOKENS)),
            max_new_tokens=new_tokens,
            temperature=1.0,
            top_p=1.0,
            seed=row,
        )
        for row in range(num)
    ]


def _times(core: VllmCore, num_pairs: int) -> tuple[list[float], list[float]]:
    """CPU seconds of each step, ours and vLLM's; which of a pair goes first alternates."""
    worker: Any = core._engine.model_executor.driver_worker.worker  # Any: vLLM's worker
    sampler = worker.model_runner.sampler.topk_topp_sampler
    chosen = {"ours": sampler.forward, "theirs": sampler.forward_cpu}
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for pair in range(num_pairs):
        for kind in ("ours", "theirs") if pair % 2 else ("theirs", "ours"):
            sampler.forward = chosen[kind]
            began_s = time.process_time()
            core.step()
            times[kind].append(time.process_time() - began_s)
    return times["ours"], times["theirs"]


if __name__ == "__main__":
    main()
