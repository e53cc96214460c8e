"""Tokens per second of the engine against bare `vllm.LLM.generate`, on the same requests, cores and
seed.

    python -m research.benchmarks.rollout_throughput MODEL --cores 0 --pairs 3

Every measurement is a fresh process pinned to the same cores; the two alternate, and which goes
first alternates too. Where other processes share the cores, read the rates per CPU second: they
leave out the time spent waiting for a core. Both draw with the same seeds (`vllm.draws`), so the
same tokens are decoded; the table says if not. Leaves out everything above one engine: router,
actors, rewards.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from artifacts.new_tokens import split_news
from artifacts.records import Request
from research.benchmarks.bare_llm import bare_llm
from research.benchmarks.paired_processes import in_pairs, paired_parser, tell
from tasks.engines.model_files import read_stop_ids, read_tokenizer
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.engines.vllm.worker_patches import own_draws
from tasks.scheduling.prompt_stream import derive_seed

_KINDS = ("bare", "engine")
_SEED = 11


def main() -> None:
    options = _parser().parse_args()
    if options.kind:
        measured = _bare(options) if options.kind == "bare" else asyncio.run(_engine(options))
        tell(measured)
        return
    module = "research.benchmarks.rollout_throughput"
    for pair, results in enumerate(in_pairs(module, _KINDS, options.pairs)):
        same = results["bare"][-1]["checksum"] == results["engine"][-1]["checksum"]
        last = slice(-1, None)
        print(
            f"pair={pair} {_compare(results, 'seconds', last)},"
            f" {_compare(results, 'cpu_seconds', last)} same_tokens={same}",
            flush=True,
        )
    print(
        f"median {_compare(results, 'seconds', slice(None))},"
        f" {_compare(results, 'cpu_seconds', slice(None))}"
    )


def _compare(results: Mapping[str, Sequence[Mapping[str, Any]]], clock: str, which: slice) -> str:
    """Medians of both kinds and of their paired ratio, in tokens per second of this clock."""
    bare, engine = (
        [result["tokens"] / result[clock] for result in results[kind][which]] for kind in _KINDS
    )
    ratio = statistics.median(ours / theirs for theirs, ours in zip(bare, engine, strict=True))
    return (
        f"tokens per {clock[:-1]}: bare={statistics.median(bare):.1f}"
        f" engine={statistics.median(engine):.1f} ratio={ratio:.3f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = paired_parser(__doc__, _KINDS, new_tokens=64)
    parser.add_argument(
        "--block-size",
        type=int,
        default=VllmEngineConfig().block_size,
        help="tokens per KV block, for both",
    )
    return parser


def _config(options: argparse.Namespace) -> VllmEngineConfig:
    length = options.prompt_tokens + options.new_tokens
    return VllmEngineConfig(
        max_num_seqs=options.prompts * options.responses,
        max_model_len=max(256, length),
        block_size=options.block_size,
    )


def random_requests(options: argparse.Namespace) -> list[Request]:
    """Random prompts that share nothing with each other; the responses of one share all of it."""
    draw = random.Random(_SEED)
    prompts = [
        tuple(draw.randrange(100, 5000) for _ in range(options.prompt_tokens))
        for _ in range(options.prompts)
    ]
    return [
        Request(
            prompt_id=f"0/{row}", index=index, prompt_tokens=tokens,
            max_new_tokens=options.new_tokens,
            temperature=1.0, top_p=1.0, seed=derive_seed(_SEED, row, index),
        )
        for row, tokens in enumerate(prompts)
        for index in range(options.responses)
    ]  # fmt: skip


def _bare(options: argparse.Namespace) -> dict[str, Any]:
    os.environ |= {
        "OMP_NUM_THREADS": str(len(options.cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    llm = bare_llm(_config(options), options.model, _SEED, options.cores)
    from vllm import SamplingParams

    stop = read_stop_ids(options.model, read_tokenizer(options.model))
    requests = random_requests(options)
    seed_arguments = own_draws(llm)

    def generate(chosen: Sequence[Request], new_tokens: int) -> list[tuple[int, ...]]:
        params = [
            SamplingParams(
                max_tokens=new_tokens,
                logprobs=0,
                detokenize=False,
                stop_token_ids=list(stop),
                **seed_arguments(request.seed),
            )
            for request in chosen
        ]
        prompts = [{"prompt_token_ids": list(request.prompt_tokens)} for request in chosen]
        return [
            tuple(output.outputs[0].token_ids)
            for output in llm.generate(prompts, params, use_tqdm=False)
        ]

    generate(requests[:4], 4)
    began = _clocks()
    tokens = generate(requests, options.new_tokens)
    return _result(tokens, began)


async def _engine(options: argparse.Namespace) -> dict[str, Any]:
    engine = VllmEngine(_config(options), options.model, "engine-0", options.cores, _SEED)
    engine.start()
    requests = random_requests(options)

    async def generate(chosen: Sequence[Request]) -> list[tuple[int, ...]]:
        done: dict[str, tuple[int, ...]] = {}
        await engine.submit(chosen)
        while len(done) < len(chosen):
            over, _ = split_news(await engine.collect(60))
            done |= {generated.response_id: generated.token_ids for generated in over}
        return [done[request.response_id] for request in chosen]

    await generate(requests[:4])
    began = _clocks()
    tokens = await generate(requests)
    result = _result(tokens, began)
    engine.close()
    return result


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _result(tokens: Sequence[tuple[int, ...]], began: tuple[float, float]) -> dict[str, Any]:
    seconds, cpu_seconds = (now - then for now, then in zip(_clocks(), began, strict=True))
    return {
        "tokens": sum(len(response) for response in tokens),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "checksum": hash(tuple(tokens)),
    }


if __name__ == "__main__":
    main()
