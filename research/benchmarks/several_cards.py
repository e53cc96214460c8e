"""What takes two cards: one engine over both, and two learner ranks whose gradients meet.

    python -m research.benchmarks.several_cards --device cuda --out FOLDER

Replicated ranks reduce and gather once a step, sharded ones layer by layer, by NCCL; every version
reaches an engine beside rank 0, which checks the weights, in the ranks' own memory. Broadcast to an
engine on a card of its own is in the part "publication". On cores gloo takes NCCL's place.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch

from research.benchmarks.update_and_publication import updates_and_publications
from research.gpu.decode_throughput import measured
from research.gpu.figures import Figure, not_measured
from research.gpu.long_tail import SHAPES, make_model
from tasks.learner.learner_config import LearnerConfig, Placement

CARDS = (0, 1)
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
VOCABULARY = 32000  # of the groups that are trained
REPEATS = 3  # of an update and its publication


def main() -> int:
    """Print a figure for each, or why there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.device == "cuda" and torch.cuda.device_count() < len(CARDS):
        why = "it takes two GPUs, this machine has one"
        not_measured("decode steps of an engine over two cards", why)
        for placement in PLACEMENTS:
            not_measured(f"update of two {placement} ranks", why)
        return 0
    tiny = replace(SHAPES["tiny"], vocabulary=VOCABULARY)
    shape = SHAPES["1.5b"] if options.device == "cuda" else tiny
    model = str(make_model(options.out / "model", shape, mean_tokens=1e9, device="cpu"))
    _tell_ranks(model, options.device)
    _tell_engine(model, options.device)
    return 0


def _tell_ranks(model: str, device: str) -> None:
    for placement in PLACEMENTS:
        config = LearnerConfig(parameters=placement)
        parts = asyncio.run(
            updates_and_publications(model, CARDS[:1], CARDS, REPEATS, config, device, ["ipc"])
        )
        for part in ("update", "publication"):
            Figure(
                name=f"{part} of two {placement} ranks",
                value=statistics.median(parts[part]),
                unit="s",
            ).print()


def _tell_engine(model: str, device: str) -> None:
    on_gpu = device == "cuda"
    way = argparse.Namespace(
        running=(64, 256) if on_gpu else (4,),
        new_tokens=128 if on_gpu else 16,
        dtype="bfloat16" if on_gpu else "float32",
        cores=[],
        graphs=on_gpu,
        devices=len(CARDS),
        report_tokens=0,
        spread=0.0,
    )
    for row in measured("engine", model, way):
        name = f"decode step, {row['running']} responses, engine over two cards"
        Figure(name=name, value=row["step_ms"], unit="ms").print()


if __name__ == "__main__":
    sys.exit(main())
