"""Tokens a second, and CPU microseconds a token, of one engine beside bare vLLM, with a model of no
size: what a token costs besides the model.

    python -m research.gpu.decode_throughput --running 64 256 1024 --pairs 3 --json FILE

    llm        vllm.LLM.generate
    async_llm  vllm.v1 AsyncLLM, its engine core in a process of its own
    engine     VllmEngine: submit and collect, on an event loop
    path, path_reports    a round over Dask (`decode_path`), without and with reports of new tokens

Each measurement is a fresh process, which takes all numbers of running responses in order; the
kinds take turns, and the order turns too. All have the same prompts, lengths and settings; the bare
ones return final outputs with flat log-probabilities and no text, their cheapest. CPU time is that
of all processes of a kind. Leaves out rewards and records (`path_throughput`), and
bfloat16 on CPUs, which may ask for tile registers. `--against FOLDER` measures Rollflow's kinds in
another checkout with this module, too, in turns with all others.
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
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from artifacts.new_tokens import split_news
from artifacts.records import Request
from research.gpu.decode_path import opened_path
from research.gpu.long_tail import SHAPES, make_model
from tasks.cluster.deaths import manner
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.engines.vllm.llm_engine import on_cpu

MARK = "RESULT "
SEED = 11
PROMPT_TOKENS = 16
ENDS_WITHIN_S = 600.0  # a process

Row = dict[str, Any]  # Any: JSON values


def main() -> None:
    options = _parser().parse_args()
    if options.kind:
        if options.cores:
            os.sched_setaffinity(0, options.cores)
        KINDS[options.kind](options)
        return
    with tempfile.TemporaryDirectory(prefix="rollflow-decode-") as folder:
        rows = _rows(options, options.model or _tiny_model(Path(folder)))
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="", help="folder; one of no size is made without it")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--running", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3, help="how often to measure every kind")
    parser.add_argument("--cores", nargs="*", type=int, default=[], help="to pin to")
    parser.add_argument("--spread", type=float, default=0.0, help="of lengths, share of that")
    parser.add_argument("--report-tokens", type=int, default=8, help="of path_reports")
    parser.add_argument("--against", default="", help="folder of another checkout")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--graphs", action="store_true", help="compile, and capture CUDA graphs")
    parser.add_argument("--devices", type=int, default=1, help="over which an engine is spread")
    parser.add_argument("--json", default="", help="file for the medians")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    return parser


def _tiny_model(folder: Path) -> str:
    return str(make_model(folder, SHAPES["tiny"], mean_tokens=1e9, device="cpu"))


def _rows(options: argparse.Namespace, model: str) -> list[Row]:
    """The median of every kind and number of running responses."""
    found: dict[tuple[int, str], list[Row]] = {}
    ways = [(kind, "") for kind in options.kinds]
    if options.against:
        ways += [(kind, options.against) for kind in options.kinds if kind not in BARE]
    for pair in range(options.pairs):
        turn = pair % len(ways)
        for kind, checkout in (*ways[turn:], *ways[:turn]):
            for row in measured(kind, model, options, checkout):
                name = f"{kind} there" if checkout else kind
                found.setdefault((row["running"], name), []).append(row)
                _print({"pair": pair, "kind": name} | row)
    rows = []
    for (running, kind), results in sorted(found.items()):
        median: Row = {"running": running, "kind": kind}
        for name in ("tokens_per_s", "step_ms", "cpu_us_per_token", "cpu_us_per_token_own"):
            median[name] = round(statistics.median(result[name] for result in results), 2)
        rows.append(median)
        _print({"median_of": len(results)} | median)
    return rows


def _print(row: Row) -> None:
    named = (f"{name}={round(each, 2) if isinstance(each, float) else each}"
             for name, each in row.items())  # fmt: skip
    print(" ".join(named), flush=True)


def measured(kind: str, model: str, options: argparse.Namespace, checkout: str = "") -> list[Row]:
    """Measure one kind in a process of its own, in this checkout or another one. RuntimeError, with
    its last words, if it died."""
    python = str(Path(checkout, ".venv/bin/python")) if checkout else sys.executable
    command = [
        python, "-m", "research.gpu.decode_throughput", "--kind", kind,
        "--model", model, "--running", *map(str, options.running),
        "--new-tokens", str(options.new_tokens), "--dtype", options.dtype,
        "--cores", *map(str, options.cores), *(["--graphs"] if options.graphs else []),
        "--report-tokens", str(options.report_tokens), "--spread", str(options.spread),
        "--devices", str(options.devices),
    ]  # fmt: skip
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(kind == "async_llm")),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        command, env=environment, cwd=checkout or None,
        capture_output=True, text=True, timeout=ENDS_WITHIN_S,
    )  # fmt: skip
    rows = [json.loads(line.removeprefix(MARK)) for line in done.stdout.splitlines()
            if line.startswith(MARK)]  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{kind} {manner(done.returncode)}:\n{done.stderr[-3000:]}")
    return rows


def _config(options: argparse.Namespace) -> VllmEngineConfig:
    return VllmEngineConfig(
        max_num_seqs=max(options.running),
        max_model_len=max(128, PROMPT_TOKENS + 2 * options.new_tokens),
        max_batched_tokens=max(4096, max(options.running)),
        kv_cache_gb=0.5,
        dtype=options.dtype,
        enforce_eager=not options.graphs,
        tensor_parallel_size=options.devices,
    )


def _prompts(running: int) -> list[tuple[int, ...]]:
    draw = random.Random(f"{SEED}/{running}")
    return [tuple(draw.randrange(3, 500) for _ in range(PROMPT_TOKENS)) for _ in range(running)]


def _lengths(options: argparse.Namespace, running: int) -> list[int]:
    """Tokens of every response: evenly spread about --new-tokens, the longest first."""
    most = options.new_tokens * (1 + options.spread / 2)
    step = options.new_tokens * options.spread / running
    return [round(most - step * (place + 0.5)) for place in range(running)]


class Clock:
    """Wall and CPU seconds since its start; CPU of this process and of its children."""

    def __init__(self) -> None:
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        own = time.process_time()
        children = psutil.Process().children(recursive=True)
        others = sum(sum(child.cpu_times()[:2]) for child in children)
        return time.perf_counter(), own, own + others

    def tell(self, running: int, num_tokens: int) -> None:
        """Print the rates of this many tokens since the start, for `measured`."""
        wall, own, both = (now - then for now, then in zip(self._now(), self._began, strict=True))
        row = {
            "running": running,
            "tokens_per_s": num_tokens / wall,
            "step_ms": wall * 1e3 * running / num_tokens,
            "cpu_us_per_token": both * 1e6 / num_tokens,
            "cpu_us_per_token_own": own * 1e6 / num_tokens,
        }
        print(MARK + json.dumps(row), flush=True)


def _bare_arguments(options: argparse.Namespace) -> dict[str, Any]:  # Any: of many types
    """An engine's own arguments, less what Rollflow adds to vLLM's workers."""
    arguments = _config(options).vllm_arguments(options.model, SEED, on_cpu=on_cpu())
    return {name: value for name, value in arguments.items() if name != "worker_extension_cls"}


def _llm(options: argparse.Namespace) -> None:
    from vllm import LLM

    llm = LLM(**_bare_arguments(options))

    def generate(lengths: Sequence[int]) -> int:
        inputs = [{"prompt_token_ids": [*prompt]} for prompt in _prompts(len(lengths))]
        outputs = llm.generate(inputs, [*map(_params, lengths)], use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    for running in options.running:
        generate([4] * (running + 1))
        clock = Clock()
        clock.tell(running, generate(_lengths(options, running)))


def _params(new_tokens: int) -> Any:  # Any: vLLM's SamplingParams
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=new_tokens, stop_token_ids=[2], logprobs=0, flat_logprobs=True,
        detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip


def _async_llm(options: argparse.Namespace) -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    async def one(llm: AsyncLLM, name: str, prompt: tuple[int, ...], new_tokens: int) -> int:
        tokens = 0
        params = _params(new_tokens)
        async for output in llm.generate({"prompt_token_ids": [*prompt]}, params, name):
            tokens = len(output.outputs[0].token_ids)
        return tokens

    async def generate(llm: AsyncLLM, lengths: Sequence[int]) -> int:
        asked = zip(_prompts(len(lengths)), lengths, strict=True)
        every = [
            one(llm, f"{len(lengths)}/{at}", prompt, length)
            for at, (prompt, length) in enumerate(asked)
        ]
        return sum(await asyncio.gather(*every))

    async def run() -> None:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**_bare_arguments(options)))
        for running in options.running:
            await generate(llm, [4] * (running + 1))
            clock = Clock()
            clock.tell(running, await generate(llm, _lengths(options, running)))
        llm.shutdown()

    asyncio.run(run())


def _engine(options: argparse.Namespace) -> None:
    engine = VllmEngine(_config(options), options.model, "engine-0", options.cores or None, SEED)
    engine.start()

    async def generate(lengths: Sequence[int]) -> int:
        asked = zip(_prompts(len(lengths)), lengths, strict=True)
        requests = [
            Request(
                prompt_id=f"{len(lengths)}/{at}", index=0, prompt_tokens=prompt,
                max_new_tokens=length, temperature=1.0, top_p=1.0, seed=SEED + at,
            )
            for at, (prompt, length) in enumerate(asked)
        ]  # fmt: skip
        await engine.submit(requests)
        num_tokens = num_done = 0
        while num_done < len(requests):
            over, _ = split_news(await engine.collect(60))
            num_done += len(over)
            num_tokens += sum(len(generated.token_ids) for generated in over)
        return num_tokens

    async def run() -> None:
        for running in options.running:
            await generate([4] * (running + 1))
            clock = Clock()
            clock.tell(running, await generate(_lengths(options, running)))

    asyncio.run(run())
    engine.close()


def _path(options: argparse.Namespace, report_tokens: int = 0) -> None:
    config = _config(options).model_copy(update={"report_tokens": report_tokens})
    with opened_path(config, options.model, SEED) as generate:
        for running in options.running:
            generate(_prompts(running + 1), [4] * (running + 1))
            clock = Clock()
            clock.tell(running, generate(_prompts(running), _lengths(options, running)))


KINDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "llm": _llm,
    "async_llm": _async_llm,
    "engine": _engine,
    "path": _path,
    "path_reports": lambda options: _path(options, options.report_tokens),
}
BARE = ("llm", "async_llm")


if __name__ == "__main__":
    main()
