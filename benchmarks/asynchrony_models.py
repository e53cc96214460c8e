"""Two models of asynchronous training beside the simulated system: what it ought to gain.

    python -m benchmarks.asynchrony_models --steps 100

The queueing model knows slots, a learner and the bound, and nothing of Rollflow: a program of its
own that is not kept here, whose speed-ups and lengths are written down below. The formulas bound
the time of a step (ROLL-Flash, arXiv 2510.11345, re-derived), with K slots, N responses a step of
mean and longest time mu and L, and a learner of its own that takes t_train:

    synchronous   N mu / K + L + t_train
    asynchronous  max(N mu / K + L / (async ratio + 1), t_train)

The simulated system is that of `asynchronous_simulated`: driver, policies and handover are the real
ones. L is the mean of the longest of all responses that may be under way, N (async ratio + 1).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.asynchronous_simulated import (
    BATCH,
    MEAN_S,
    RATIOS,
    SLOTS,
    TRAIN_S,
    Outcome,
    play,
)
from tasks.scheduling.asynchronous_round import AtDeadline
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.sync import SyncConfig

TAILS = {"light": 0.0, "heavy": 0.05}  # share of responses that take ten times as long
NUM_RESPONSES = BATCH.prompts_per_step * BATCH.responses_per_prompt


@dataclass(frozen=True, slots=True)
class Modelled:
    """What the queueing model says of a policy."""

    speedup: float
    length_share: float | None = None  # mean trained length over the mean sampled one


MODEL: Mapping[tuple[str, AtDeadline], Mapping[float, Modelled]] = {
    ("light", "wait"): {
        0.25: Modelled(1.36),
        0.5: Modelled(1.56),
        1: Modelled(1.85),
        2: Modelled(2.52),
        4: Modelled(3.08),
    },
    ("light", "train_anyway"): {
        0.25: Modelled(1.36),
        0.5: Modelled(1.58),
        1: Modelled(2.19),
        2: Modelled(3.04),
        4: Modelled(3.15),
    },
    ("heavy", "wait"): {
        0.25: Modelled(1.51),
        0.5: Modelled(1.53),
        1: Modelled(1.57),
        2: Modelled(2.03),
        4: Modelled(2.89),
    },
    ("heavy", "drop"): {
        0.25: Modelled(2.44, 0.79),
        0.5: Modelled(3.25, 0.72),
        1: Modelled(4.16, 0.65),
        2: Modelled(4.58, 0.66),
        4: Modelled(4.73, 0.68),
    },
    ("heavy", "park"): {
        0.5: Modelled(2.1, 1.0),
        1: Modelled(2.1, 1.0),
        2: Modelled(2.6, 1.0),
        4: Modelled(3.4, 1.0),
    },
    ("heavy", "train_anyway"): {
        0.25: Modelled(2.21),
        0.5: Modelled(2.96),
        1: Modelled(3.95),
        2: Modelled(5.34),
        4: Modelled(5.36),
    },
}


def longest_s(num_responses: int, long_share: float, num_draws: int = 10_000) -> float:
    """The mean of the longest of so many responses, seconds."""
    draws = np.random.default_rng(0)
    seconds = MEAN_S * draws.exponential(size=(num_draws, num_responses))
    seconds *= np.where(draws.random(seconds.shape) < long_share, 10, 1)
    return float(seconds.max(axis=1).mean())


def bound_s(ratio: float, long_share: float) -> float:
    """The bound on a step's seconds by the formulas."""
    mean_s = MEAN_S * (1 + 9 * long_share)
    generation = NUM_RESPONSES * mean_s / SLOTS
    longest = longest_s(round(NUM_RESPONSES * (ratio + 1)), long_share)
    if not ratio:
        return generation + longest + TRAIN_S
    return max(generation + longest / (ratio + 1), TRAIN_S)


def against_model(played: Mapping[tuple[str, str, float], Outcome]) -> Iterator[tuple[str, ...]]:
    """A row for every policy and ratio that the model has."""
    for (tail, at_deadline), by_ratio in MODEL.items():
        plain = played[tail, "sync", 0.0]
        for ratio, model in by_ratio.items():
            found = played[tail, at_deadline, ratio]
            speedup = plain.seconds / found.seconds
            length = "" if model.length_share is None else f"{model.length_share:.2f}"
            yield (
                tail,
                at_deadline,
                f"{ratio:g}",
                f"{model.speedup:.2f}",
                f"{speedup:.2f}",
                f"{speedup / model.speedup - 1:+.1%}",
                length,
                f"{found.length_share:.2f}",
                f"{found.lag_mean:.2f}",
                str(found.lag_max),
            )


def against_formulas(played: Mapping[tuple[str, str, float], Outcome]) -> Iterator[tuple[str, ...]]:
    """A row for every tail and ratio: the bound on a step's time, and the time that it took."""
    for tail, long_share in TAILS.items():
        for ratio in (0.0, *RATIOS):
            found = played[tail, "wait" if ratio else "sync", ratio].seconds
            bound = bound_s(ratio, long_share)
            yield tail, f"{ratio:g}", f"{bound:.2f}", f"{found:.2f}", f"{found / bound:.2f}"


def play_all(num_steps: int) -> dict[tuple[str, str, float], Outcome]:
    """Every run that a row needs, by tail, policy at the deadline, and ratio."""
    played = {
        (tail, "sync", 0.0): play(SyncConfig(), num_steps, share) for tail, share in TAILS.items()
    }
    for (tail, at_deadline), by_ratio in MODEL.items():
        for ratio in by_ratio:
            policy = AsynchronousConfig(async_ratio=ratio, at_deadline=at_deadline)
            played[tail, at_deadline, ratio] = play(policy, num_steps, TAILS[tail])
    return played


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    played = play_all(parser.parse_args().steps)
    console = Console(width=120)
    models = Table(
        "lengths",
        "at deadline",
        "ratio",
        "model: speedup",
        "ours",
        "ours against it",
        "model: length",
        "ours",
        "lag",
        "max",
    )
    for row in against_model(played):
        models.add_row(*row)
    console.print(models)
    formulas = Table("lengths", "ratio", "bound s a step", "ours s a step", "ours / bound")
    for row in against_formulas(played):
        formulas.add_row(*row)
    console.print(formulas)


if __name__ == "__main__":
    main()
