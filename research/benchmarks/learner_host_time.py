"""What the learner's host does for a packed row beside the model's kernels, in milliseconds a row.

    python -m research.benchmarks.learner_host_time --json out.json

sent       in the process of the flow, once a call: groups to samples, samples to bytes
first      once a call, shared by its rows: bytes to samples, samples to rows
beside     in a thread while the row before computes: packing, arrays, one copy to the device
row        between the passes: the loss's columns, its derivative, the statistics
read       once a call, shared by its rows: the statistics of all rows

launches   of these, what is left of `row` where a row has a few tokens alone: on a CPU the rest
           is arithmetic, which a GPU does

The device waits for `first`, `row` and `read`; a model of no size takes the place of the passes
over layers and vocabulary, so that what is left is the host's. Leaves out the launches of the
passes' own kernels, which a GPU works off behind the host.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from artifacts.records import Group, pack, unpack
from research.benchmarks.learner_throughput import long_tailed_groups, row_groups
from tasks.learner.head import HeadResult, LossGradient
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.micro_step import MicroStep
from tasks.learner.packing import SamplePaths, micro_batches, pack_paths
from tasks.learner.routers import Routers
from tasks.learner.row_report import total
from tasks.learner.rows import DeviceRow, row_of
from tasks.learner.samples import TrainingSet

REPEATS = 5  # of each measurement; the median counts
FEW_TOKENS = 128  # of the row whose arithmetic takes no time


class NoModel:
    """Stands in for the policy: scores every token at once, and computes no layer."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.routers = device, Routers(torch.nn.Identity())

    def score_and_backward(
        self, row: DeviceRow, temperature: float, loss_gradient: LossGradient
    ) -> HeadResult:
        """Give every token the log-probability that the engine gave it, and derive the loss."""
        logp = row.columns.sampling_logp.clone()
        loss_gradient.by_logp(row.predictions.order, logp)
        return HeadResult(logp=logp, entropy=-logp, grad_hidden=None)


def host_times(groups: tuple[Group, ...], max_tokens: int, device: str) -> dict[str, float]:
    """Milliseconds a row of each stage, by its name, with the number of rows and their tokens."""
    config = LearnerConfig(max_tokens_per_microbatch=max_tokens)
    where = torch.device(device)
    step = MicroStep(config.objective, 1.0, NoModel(where), None)  # type: ignore[arg-type]

    def sent() -> bytes:
        return pack(config.training_sets(groups))

    payload = sent()

    def first() -> list[list[SamplePaths]]:
        sets: tuple[TrainingSet, ...] = unpack(payload)
        return [row for data in sets for row in micro_batches(data.samples, max_tokens)]

    dealt = first()
    rows = [row_of(pack_paths(parts), where) for parts in dealt]
    pending = [step.run(row) for row in rows]
    total(pending)
    few = micro_batches(config.training_set(row_groups(FEW_TOKENS, 1)).samples, max_tokens)
    short = [row_of(pack_paths(parts), where) for parts in few]
    stages: dict[str, Callable[[], object]] = {
        "sent": sent,
        "first": first,
        "beside": lambda: [row_of(pack_paths(parts), where) for parts in dealt],
        "row": lambda: [step.run(row) for row in rows],
        "launches": lambda: [step.run(row) for row in short * len(rows)],
        "read": lambda: total(pending),
    }
    found = {name: _median_ms(stage, where) / len(rows) for name, stage in stages.items()}
    found["waited_for"] = found["first"] + found["row"] + found["read"]
    tokens = [len(row.batch.tokens) for row in rows]
    return found | {"rows": len(rows), "tokens": statistics.mean(tokens)}


def _median_ms(stage: Callable[[], object], device: torch.device) -> float:
    seconds = []
    for _ in range(REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        stage()
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds)


def shapes(row_tokens: int) -> dict[str, tuple[Group, ...]]:
    """Groups for about four rows of so many tokens: of long responses, and of short ones."""
    return {
        "long": row_groups(row_tokens, 4),
        "short": long_tailed_groups(max(1, 4 * row_tokens // 400), 8, seed=0),
    }


def main() -> None:
    """Print the stages of rows of both shapes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--row-tokens", type=int, default=16384)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # as a run's workers do after their imports
    found = {
        name: host_times(groups, arguments.row_tokens, arguments.device)
        for name, groups in shapes(arguments.row_tokens).items()
    }
    for name, figures in found.items():
        print(name, " ".join(f"{stage}={value:.2f}" for stage, value in figures.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
