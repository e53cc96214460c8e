"""Seconds that an engine takes to sleep and to wake, and the GPU memory that it gives back.

    python -m research.gpu.sleeping --device cuda --out FOLDER

The 1b shape with half of the card. On CPUs, whose engines give nothing back, the calls alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path

import torch

from artifacts.records import Request
from research.gpu.figures import Figure
from research.gpu.long_tail import SHAPES, make_model
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    on_gpu = options.device == "cuda"
    shape = SHAPES["1b" if on_gpu else "tiny"]
    folder = make_model(options.out / "sleep-model", shape, mean_tokens=100, device="cpu")
    config = VllmEngineConfig(
        gpu_memory_utilization=0.5, kv_cache_gb=0.05, sleep_mode=on_gpu, dtype="bfloat16"
    )
    engine = VllmEngine(config, str(folder), "engine-0", None, seed=1)
    engine.start()
    asyncio.run(_measure(engine, on_gpu))
    engine.close()


async def _measure(engine: VllmEngine, on_gpu: bool) -> None:
    first = await _answer(engine)
    for turn in ("first", "second"):
        before = _free_gib(on_gpu)
        began = time.perf_counter()
        await engine.sleep()
        asleep = time.perf_counter()
        given_back = _free_gib(on_gpu) - before
        again = await _answer(engine)
        Figure(name=f"to sleep, {turn} time", value=asleep - began, unit="s").print()
        Figure(
            name=f"to wake and answer, {turn} time", value=time.perf_counter() - asleep, unit="s"
        ).print()
        if on_gpu:
            Figure(name=f"given back, {turn} time", value=given_back, unit="GiB").print()
        Figure(name=f"same tokens after it, {turn} time", value=again == first, at_least=1).print()


async def _answer(engine: VllmEngine) -> tuple[int, ...]:
    """The tokens of one response."""
    request = Request(
        prompt_id="0/0", index=0, prompt_tokens=(5, 6, 7), max_new_tokens=16, temperature=1.0,
        top_p=1.0, seed=3,
    )  # fmt: skip
    await engine.submit([request])
    while True:
        for news in await engine.collect(60):
            return news.token_ids


def _free_gib(on_gpu: bool) -> float:
    return torch.cuda.mem_get_info()[0] / 2**30 if on_gpu else 0.0


if __name__ == "__main__":
    main()
