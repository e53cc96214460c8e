"""The learner on one card: its share of the matmul ceiling by model and length of rows, and the
host's time a row beside the kernels.

    python -m research.benchmarks.learner_on_gpu --device cuda --out /tmp/learner
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from research.benchmarks.learner_host_time import host_times, shapes
from research.benchmarks.learner_throughput import ceiling_share, model_of
from research.gpu.figures import Figure, not_measured
from tasks.learner.learner_config import LearnerConfig

ROW = 16384  # tokens of the rows that have bounds
# (model, tokens of a row, whether layers are recomputed), in order of their value
ON_CUDA = (
    ("1.5b", ROW, False),
    ("1.5b", 4096, False),
    ("0.5b", ROW, False),
    ("0.5b", 4096, False),
    ("0.5b", 65536, True),
    ("1.5b", 65536, True),
)
ON_CPU = (("tiny", 256, False), ("tiny", 512, True))
SHARE, HOST_MS = 0.45, 5.0  # the bounds, of the ceiling at 1.5b and of a row's host time


def main() -> int:
    """Print a figure for each model and row length; a card that is too small leaves some out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    row_tokens = ROW if given.device == "cuda" else 512
    for name, groups in shapes(row_tokens).items():
        found = host_times(groups, row_tokens, given.device)
        bound = HOST_MS if given.device == "cuda" else None
        Figure(
            name=f"host a row of {row_tokens}, {name} responses",
            value=found["waited_for"],
            unit="ms",
            at_most=bound,
        ).print()
    for model, tokens, recompute in ON_CUDA if given.device == "cuda" else ON_CPU:
        config = LearnerConfig(recompute_layers=recompute)
        try:
            share = ceiling_share(config, model_of(f"random-{model}"), given.device, tokens)
        except torch.OutOfMemoryError as error:
            not_measured(f"learner {model}, rows of {tokens}", str(error).splitlines()[0])
            continue
        again = ", layers recomputed" if recompute else ""
        Figure(
            name=f"learner {model}, rows of {tokens}{again}",
            value=share,
            unit="of the matmul ceiling",
            at_least=SHARE if (model, tokens) == ("1.5b", ROW) else None,
        ).print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
