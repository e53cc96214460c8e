"""Whole runs of a model whose responses have geometric lengths, by schedule, at equal answers.

    sync · tail batching · RollPacker (with the stream trainer) · in turn · asynchronous

All draw with one seed while the weights hardly move, so a response is the same in every run: what
differs is the order in which responses are computed and which are waited for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from research.gpu.figures import Figure, not_measured
from research.gpu.long_tail import SHAPES, make_model, write_questions
from research.gpu.runs import FinishedRun, device_settings, orchestration, play

NUM_STEPS = 5
SCHEDULES = {
    "sync": ("scheduling.kind=sync",),
    "tail batching": ("scheduling.kind=tail_batching",),
    "RollPacker": ("scheduling.kind=tail_batching", "stream_trainer.enabled=true"),
    "in turn": (
        "scheduling.kind=asynchronous",
        "scheduling.at_update=pause",
        "scheduling.extra_lag=2",
    ),
    "asynchronous": ("scheduling.kind=asynchronous",),
}
ON_TWO_DEVICES = ("RollPacker", "asynchronous")  # that need a device to free, or one each


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What the runs generate and train."""

    shape: str
    mean_tokens: float
    max_tokens: int
    prompts: int
    responses: int
    preset: str
    gpu_share: float = 0.4


SIZES = {
    "cuda": Size(
        shape="1b", mean_tokens=250.0, max_tokens=2048, prompts=32, responses=8, preset="one-gpu"
    ),
    "cpu": Size(
        shape="tiny", mean_tokens=20.0, max_tokens=96, prompts=4, responses=4, preset="tiny-sync"
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, choices=[*SIZES])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    options = parser.parse_args()
    size = SIZES[options.device]
    folder = options.out / "model"
    make_model(folder, SHAPES[size.shape], size.mean_tokens, options.device)
    if options.device == "cuda":
        torch.cuda.empty_cache()
    given = (*_settings(size, options.out), f"num_steps={options.steps}")
    devices = torch.cuda.device_count() if options.device == "cuda" else 2
    plain: FinishedRun | None = None
    for name, settings in SCHEDULES.items():
        if devices == 1 and name in ON_TWO_DEVICES:
            not_measured(name, "it needs two GPUs, this machine has one")
            continue
        placed = device_settings(options.device, size.gpu_share)
        run = name.replace(" ", "-").lower()
        made = play(options.out, run, *placed, *given, *settings, preset=size.preset)
        rate = _rate(made)
        Figure(name=f"{name}: trained tokens", value=rate, unit="/s").print()
        if name == "sync":
            plain = made
        elif plain is not None:
            bound = 1.5 if name == "tail batching" and options.device == "cuda" else None
            times = rate / _rate(plain)
            Figure(name=f"{name}: times sync", value=times, at_least=bound).print()
        exposed = statistics.median(step["time/publish_s"] for step in made.metrics)
        Figure(name=f"{name}: publication", value=exposed, unit="s").print()
        orchestration(made, options.device, f"{name}: ").print()
    return 0


def _settings(size: Size, out: Path) -> tuple[str, ...]:
    questions = write_questions(out / "questions.jsonl")
    reward = {"*": {"kind": "custom", "path": "research.gpu.long_tail:reward"}}
    return (
        'model.kind="path"', f'model.path="{out / "model"}"',
        'task.kind="files"', f'task.path="{questions}"',
        f"rewards={json.dumps(reward)}",
        f"batch.prompts_per_step={size.prompts}",
        f"batch.responses_per_prompt={size.responses}",
        f"sampling.max_response_tokens={size.max_tokens}",
        f"engine.max_model_len={size.max_tokens + 512}",
        f"engine.max_num_seqs={2 * size.prompts * size.responses}",
        "learner.optimizer.learning_rate=1e-9",
        "evaluation.num_prompts=4", "evaluation.responses_per_prompt=1",
        "keep.checkpoint_every_steps=1000",
    )  # fmt: skip


def _rate(run: FinishedRun) -> float:
    """Trained tokens a second of all steps but the first, in which code is compiled."""
    later = run.metrics[1:]
    tokens = sum(step["ledger/trained_tokens"] for step in later)
    return tokens / sum(step["time/step_s"] for step in later)


if __name__ == "__main__":
    sys.exit(main())
