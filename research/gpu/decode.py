"""Decode steps of one engine beside bare vLLM: the 1b shape on GPUs, a model of no size on CPUs.

    python -m research.gpu.decode --device cuda --out FOLDER

A process for each kind, in the order of their value: the engine with CUDA graphs, bare
`LLM.generate` with them, the engine without, bare `AsyncLLM` and the engine behind Dask with them.
A step's time is that of the whole batch, its prefill included, by the number of its steps.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

from research.gpu.decode_throughput import measured
from research.gpu.figures import Figure
from research.gpu.long_tail import SHAPES, make_model

MOST_MS, LEAST_OF_BARE = 8.0, 0.95  # of a step of 384 responses; of bare vLLM at its best
WAYS = (("engine", True), ("llm", True), ("engine", False), ("async_llm", True), ("path", True))
CPU_WAYS = (("engine", False), ("llm", False), ("path", False))
OURS = ("engine", "path")
BOUND_AT = 384


def main() -> None:
    options = _parser().parse_args()
    on_gpu = options.device == "cuda"
    shape = SHAPES["1b" if on_gpu else "tiny"]
    model = make_model(options.out / "decode-model", shape, mean_tokens=1e9, device=options.device)
    sizes = (64, 256, 384, 512) if on_gpu else (4, 16)
    new_tokens, dtype = (256, "bfloat16") if on_gpu else (16, "float32")
    step_ms: dict[tuple[str, bool, int], float] = {}
    for kind, graphs in WAYS if on_gpu else CPU_WAYS:
        way = argparse.Namespace(
            running=sizes, new_tokens=new_tokens, dtype=dtype, cores=[], graphs=graphs, devices=1,
            report_tokens=0, spread=0.0,
        )  # fmt: skip
        for row in measured(kind, str(model), way):
            step_ms[kind, graphs, row["running"]] = row["step_ms"]
            _tell(row, kind, graphs, on_gpu)
        if graphs or not on_gpu:
            _tell_ratios(step_ms, sizes, graphs, on_gpu)


def _tell(row: dict[str, Any], kind: str, graphs: bool, on_gpu: bool) -> None:  # Any: JSON
    is_bound = on_gpu and kind == "engine" and graphs and row["running"] == BOUND_AT
    Figure(
        name=f"decode step, {row['running']} responses, {kind}, {'graphs' if graphs else 'eager'}",
        value=row["step_ms"],
        unit="ms",
        at_most=MOST_MS if is_bound else None,
    ).print()


def _tell_ratios(
    step_ms: dict[tuple[str, bool, int], float], sizes: tuple[int, ...], graphs: bool, on_gpu: bool
) -> None:
    """The speed of the engine, and of the path to it, by that of the faster bare vLLM so far."""
    for running, own in product(sizes, OURS):
        bare = [
            ms for (kind, _, size), ms in step_ms.items() if kind not in OURS and size == running
        ]
        if bare and (own, graphs, running) in step_ms:
            Figure(
                name=f"{own} by bare vLLM at its best, {running} responses",
                value=min(bare) / step_ms[own, graphs, running],
                at_least=LEAST_OF_BARE if on_gpu else None,
            ).print()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    return parser


if __name__ == "__main__":
    main()
