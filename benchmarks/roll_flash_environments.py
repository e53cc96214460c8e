"""What ROLL-Flash publishes of slow environments, beside what the simulated system does under
stated assumptions.

    python -m benchmarks.roll_flash_environments --seeds 3

Published (arXiv 2510.11345): with environments at their own pace a simulated step latency of N(10,
10) s takes 362 s instead of 892 s, 2.46 times less, and the more the larger the deviation; with 36
groups of 12 instead of 32 of 8, N(10, 5) s, 45 s instead of 243 s (of low confidence: read off
notes); trainings as a whole gain 1.23 (SWE) and 1.58 (ALFWorld) by the first, another 1.08 and 1.20
by the second, and with asynchronous training 1.81 and 2.72 altogether.

Assumed, because it was not readable to us: 32 groups of 8 where nothing else is said; 20 turns an
episode where latencies are N(10, .), all alike, which is about what 892 and 362 s ask for; no limit
on a step there; engines and actions as in `environment_latency`. Of whole steps ours are those of
`environment_latency`, and training takes three sevenths of a lock-step rollout, the paper's "over
70 %" of the time for rollouts. Redundancy is a quarter more groups and members, of which
asynchronous training has the members alone; it has a learner of its own and a ratio of 1, and the
first of its eight steps, which waits for a whole rollout, counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.environment_latency import (
    BATCH,
    CONDITIONS,
    LOCK_STEP,
    OWN_PACE,
    Line,
    RedundantGroups,
    step_s,
    told,
)
from benchmarks.episode_rounds import EpisodeRun, play
from benchmarks.slow_environments import Conditions
from flows.experiments.ablation_figures import markdown_table
from tasks.engines.simulation.lengths import LengthModel
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig

TURNS, DEVIATIONS_S = 20, (1.0, 5.0, 10.0)
LONG_WAITS = Conditions(
    mean_s=10.0,
    limit_s=1e6,
    turns=LengthModel(median_tokens=TURNS, sigma=0.0),
    most_turns=TURNS,
)
MANY_MORE = Line(  # 36 groups of 12
    name="36 x 12",
    policy=RedundantGroups(
        TailBatchingConfig(prompt_overprovision=1.125, response_overprovision=1.5)
    ),
)
MORE = Line(  # as many more as in `environment_latency`, of groups and of members
    name="40 x 10",
    policy=RedundantGroups(
        TailBatchingConfig(prompt_overprovision=1.25, response_overprovision=1.25)
    ),
)
TRAIN_SHARE = 3 / 7  # of a lock-step rollout
OVERLAPPED = EpisodeRun(
    policy=AsynchronousConfig(async_ratio=1.0, response_overprovision=1.25),
    conditions=LONG_WAITS,
    batch=BATCH,
    num_steps=8,
)


def seconds(line: Line, conditions: Conditions, seeds: range) -> list[float]:
    """Of a rollout, seed by seed: the first of a run."""
    runs = (line.run(conditions, seed) for seed in seeds)
    return [step_s(play(replace(run, num_steps=1))) for run in runs]


def gain_row(
    what: str, published: str, before: Sequence[float], after: Sequence[float]
) -> tuple[str, ...]:
    gains = [first / second for first, second in zip(before, after, strict=True)]
    return what, published, told(gains, "{:.2f}"), told(before), told(after)


def waits(seeds: range) -> Iterator[tuple[str, ...]]:
    """Rollouts over long waits."""
    published = dict.fromkeys(DEVIATIONS_S, "") | {10.0: "2.46 (892 to 362 s)"}
    own_pace: dict[float, list[float]] = {}
    for deviation_s in DEVIATIONS_S:
        conditions = replace(LONG_WAITS, deviation_s=deviation_s)
        lock_step = seconds(LOCK_STEP, conditions, seeds)
        own_pace[deviation_s] = seconds(OWN_PACE, conditions, seeds)
        what = f"own pace, N(10, {deviation_s:g}) s"
        yield gain_row(what, published[deviation_s], lock_step, own_pace[deviation_s])
    conditions = replace(LONG_WAITS, deviation_s=5.0)
    what = "36 × 12 for 32 × 8, N(10, 5) s"
    many = seconds(MANY_MORE, conditions, seeds)
    yield gain_row(what, "5.4 (243 to 45 s)", own_pace[5.0], many)
    conditions = replace(conditions, slow_share=0.05)
    few, many = (seconds(line, conditions, seeds) for line in (OWN_PACE, MANY_MORE))
    yield gain_row(f"{what}, 5 % ten times as long", "", few, many)


def whole_steps(name: str, conditions: Conditions, seeds: range) -> Iterator[tuple[str, ...]]:
    """Rollout and training."""
    lines = (LOCK_STEP, OWN_PACE, MORE)
    rollouts = [seconds(line, conditions, seeds) for line in lines]
    train_s = [TRAIN_SHARE * rollout_s for rollout_s in rollouts[0]]
    before, own_pace, more = (
        [rollout_s + after_s for rollout_s, after_s in zip(found, train_s, strict=True)]
        for found in rollouts
    )
    overlapped = [
        step_s(play(replace(OVERLAPPED, conditions=conditions, seed=seed, train_s=after_s)))
        for seed, after_s in zip(seeds, train_s, strict=True)
    ]
    yield gain_row(f"own pace, {name}", "1.23 SWE, 1.58 ALFWorld", before, own_pace)
    yield gain_row(f"redundancy on top, {name}", "1.08 SWE, 1.20 ALFWorld", own_pace, more)
    yield gain_row(f"asynchronous as well, {name}", "1.81 SWE, 2.72 ALFWorld", before, overlapped)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    rows: list[tuple[str, ...]] = []
    for row in waits(seeds):
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    for name, conditions in CONDITIONS.items():
        for row in whole_steps(name, conditions, seeds):
            rows.append(row)
            print(*row, sep=" | ", flush=True)
    head = ("", "published", "ours", "seconds before", "seconds after")
    print(markdown_table(head, rows))


if __name__ == "__main__":
    main()
