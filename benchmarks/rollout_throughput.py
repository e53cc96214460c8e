"""Tokens per second of the engine against bare `vllm.LLM.generate`, on the same requests, cores and
seed.

    python -m benchmarks.rollout_throughput MODEL --cores 0 --pairs 3

Every measurement is a fresh process pinned to the same cores; the two alternate, and which goes
first alternates too. Where other processes share the cores, read the rates per CPU second: they
leave out the time spent waiting for a core. Both draw with the same seeds (`vllm.draws`), so the
same tokens are decoded; the table says if not. Leaves out everything above one engine: router,
actors, rewards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from artifacts.records import Request
from benchmarks.bare_llm import bare_llm
from tasks.cluster.deaths import manner
from tasks.engines.model_files import read_stop_ids, read_tokenizer
from tasks.engines.vllm.draws import own_draws
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.scheduling.seeds import derive_seed

_KINDS = ("bare", "engine")
_MARK = "RESULT "
_SEED = 11


def main() -> None:
    options = _parser().parse_args()
    if options.kind:
        measured = _bare(options) if options.kind == "bare" else asyncio.run(_engine(options))
        print(_MARK + json.dumps(measured), flush=True)
        return
    results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _KINDS}
    for pair in range(options.pairs):
        for kind in _KINDS if pair % 2 == 0 else _KINDS[::-1]:
            results[kind].append(_in_fresh_process(kind))
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="local model directory")
    parser.add_argument(
        "--cores",
        type=int,
        nargs="+",
        default=[0],
        help="cores that the measured process is pinned to",
    )
    parser.add_argument("--pairs", type=int, default=3, help="how often to measure both")
    parser.add_argument("--prompts", type=int, default=8, help="different prompts")
    parser.add_argument("--responses", type=int, default=8, help="responses per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument(
        "--block-size",
        type=int,
        default=VllmEngineConfig().block_size,
        help="tokens per KV block, for both",
    )
    parser.add_argument("--kind", choices=_KINDS, help=argparse.SUPPRESS)
    return parser


def _in_fresh_process(kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.rollout_throughput", *sys.argv[1:], "--kind", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise RuntimeError(
            f"the process that measured {kind} {manner(done.returncode)}:\n{done.stderr[-3000:]}"
        )
    result: dict[str, Any] = json.loads(lines[0].removeprefix(_MARK))
    return result


def _config(options: argparse.Namespace) -> VllmEngineConfig:
    length = options.prompt_tokens + options.new_tokens
    return VllmEngineConfig(
        max_num_seqs=options.prompts * options.responses,
        max_model_len=max(256, length),
        block_size=options.block_size,
    )


def _requests(options: argparse.Namespace) -> list[Request]:
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
    requests = _requests(options)
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
    requests = _requests(options)

    async def generate(chosen: Sequence[Request]) -> list[tuple[int, ...]]:
        done: dict[str, tuple[int, ...]] = {}
        await engine.submit(chosen)
        while len(done) < len(chosen):
            done |= {
                generated.response_id: generated.token_ids for generated in await engine.collect(60)
            }
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
