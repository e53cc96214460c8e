"""What it is worth that siblings compute their prompt once: rounds of the main job on one engine,
with and without, in turns.

    python -m benchmarks.shared_prompts MODEL --cores 0 --prompts 10 --responses 10 --pairs 3

A round ends as a short round does: when four in five of the prompts have four in five of their
responses, the rest is aborted. A first round says how long each response is that it finishes; the
others end it there, so that all have the same work. Each begins with an empty prefix cache, as
after new weights. Seconds are CPU seconds of the process, which leave out the time that other
processes had its core. Leaves out everything above one engine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from artifacts.new_tokens import parted
from artifacts.records import Generated, Request
from flows.config.run_config import RunConfig
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.cores import pin_this_thread
from tasks.engines.vllm.engine import build_core
from tasks.engines.vllm.measuring import measurable
from tasks.environments.single_turn import render
from tasks.prompts import task_dataset, tokenizer_of
from tasks.scheduling.seeds import derive_seed

_QUORUM = 0.8


def main() -> None:
    options = _parser().parse_args()
    pin_this_thread(tuple(options.cores), 1)
    config = RunConfig.model_validate({"preset": options.preset})
    core = build_core(measurable(config.engine), options.model, "measured", config.seed)
    requests = _requests(config, options)
    same = _same_work(requests, _play(core, requests))
    core._stop_ids = ()
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(options.pairs):
        for shares in (True, False) if pair % 2 else (False, True):
            core._siblings._can_share = shares
            seconds, num_tokens = _measure(core, same)
            times[shares].append(seconds)
            print(f"pair={pair} {shares=} cpu_s={seconds:.2f} tokens={num_tokens}", flush=True)
    core.close()
    ratios = [own / bare for own, bare in zip(times[True], times[False], strict=True)]
    print(
        f"median cpu_s: shared={statistics.median(times[True]):.2f}"
        f" computed={statistics.median(times[False]):.2f} ratio={statistics.median(ratios):.3f}"
        f" prompt_tokens={statistics.mean(len(each.prompt_tokens) for each in requests):.0f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="local model directory")
    parser.add_argument("--preset", default="smollm2", help="whose task and engine are measured")
    parser.add_argument("--cores", type=int, nargs="+", default=[0], help="cores to be pinned to")
    parser.add_argument("--prompts", type=int, default=10, help="different prompts")
    parser.add_argument("--responses", type=int, default=10, help="responses per prompt")
    parser.add_argument("--pairs", type=int, default=3, help="rounds of each kind")
    return parser


def _requests(config: RunConfig, options: argparse.Namespace) -> list[Request]:
    """The first prompts of the task's first epoch."""
    rows = task_dataset(config.task, config.seed).rows[: options.prompts]
    limit = config.engine.max_model_len - config.sampling.max_response_tokens
    prompts = [
        render(row, tokenizer_of(options.model), f"0/{number}", limit)
        for number, row in enumerate(rows)
    ]
    return [
        Request(
            prompt_id=prompt.prompt_id,
            index=index,
            prompt_tokens=prompt.token_ids,
            max_new_tokens=config.sampling.max_response_tokens,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
            seed=derive_seed(config.seed, prompt.prompt_id, index),
        )
        for prompt in prompts
        for index in range(options.responses)
    ]


def _same_work(requests: Sequence[Request], responses: Sequence[Generated]) -> list[Request]:
    """The requests again, each bounded by the tokens that its response had when it finished."""
    lengths = {
        response.response_id: len(response.token_ids)
        for response in responses
        if response.finish_reason != "aborted"
    }
    return [
        replace(request, max_new_tokens=lengths.get(request.response_id, request.max_new_tokens))
        for request in requests
    ]


def _measure(core: VllmCore, requests: Sequence[Request]) -> tuple[float, int]:
    """CPU seconds of a round, and the tokens that it generated."""
    began_s = time.process_time()
    responses = _play(core, requests)
    seconds = time.process_time() - began_s
    return seconds, sum(len(response.token_ids) for response in responses)


def _play(core: VllmCore, requests: Sequence[Request]) -> list[Generated]:
    """A round, which ends when four in five of the prompts have four in five of their responses."""
    core._engine.reset_prefix_cache()
    core.add(requests)
    asked = Counter(request.prompt_id for request in requests)
    responses: list[Generated] = []
    while _num_complete(responses, asked) < _QUORUM * len(asked):
        responses += parted(core.step())[0]
    return responses + core.abort([request.response_id for request in requests])


def _num_complete(responses: Sequence[Generated], asked: Mapping[str, int]) -> int:
    """Prompts that have enough of their responses."""
    done = Counter(response.prompt_id for response in responses)
    return sum(done[prompt] >= _QUORUM * asked[prompt] for prompt in asked)


if __name__ == "__main__":
    main()
