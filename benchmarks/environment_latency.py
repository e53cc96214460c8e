"""What slow and failing environments cost a step, and what gives it back: turns in lock step, every
episode at its own pace, redundant environments, tail batching over episodes.

    python -m benchmarks.environment_latency --plot docs/images/environment_latency.png

A step trains 32 groups of 8 episodes on 8 simulated engines, whose turns of about 64 tokens take
about as long as an environment: a reset or a step takes a normal time, mean 0.5 s, deviation 0.5 s,
cut at 0. One in twenty takes ten times as long; 2 % of the episodes come to a step that never
returns, which is given up after 30 s, and 2 % to one that crashes; a second table is without these.
Failed episodes are replaced. An episode that is played again meets the same latencies and the same
failure again: tail batching gets no second throw. Episodes have 1 to 10 turns (the bound of ROLL's
asynchronous frozen-lake example; the law within it, log-normal with a median of 5, is ours).

Every line trains the same number of episodes. Redundancy launches a quarter more: groups, of which
the surplus is given up for good, as ROLL does, or members. Tail batching plays the surplus groups
in long rounds. Training takes no time; `roll_flash_environments` has whole steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from artifacts.reports.canvas import DOTS_PER_INCH, INK, plain, png
from benchmarks.episode_rounds import EpisodeRun, Fate, Outcome, play
from benchmarks.slow_environments import Conditions
from flows.experiments.ablation_figures import markdown_table
from tasks.scheduling.batch import BatchAlgebra, BatchConfig
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import Policy, Turn
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig

BATCH = BatchConfig(prompts_per_step=32, responses_per_prompt=8)
STEP_EPISODES = BATCH.prompts_per_step * BATCH.responses_per_prompt
NUM_STEPS = 5  # of tail batching: four short rounds and the long one of what they put off
CONDITIONS: Mapping[str, Conditions] = {
    "slow steps and failures": Conditions(slow_share=0.05, hang_share=0.02, crash_share=0.02),
    "normal latencies alone": Conditions(),
}
COLUMNS = (
    "seconds a step",
    "times lock step",
    "trained episodes a second",
    "share of environment seconds wasted",
    "turns, trained to started",
)


@dataclass(frozen=True, slots=True)
class RedundantGroups:
    """Short rounds alone: a group that is not among the first is given up for good."""

    inner: TailBatchingConfig

    @property
    def kind(self) -> str:
        return self.inner.kind

    def algebra(self, batch: BatchConfig) -> BatchAlgebra:
        return self.inner.algebra(batch)

    def plan_round(self, turn: Turn) -> RoundPlan | None:
        return self.inner.plan_round(replace(turn, state=replace(turn.state, queue=())))

    def scheduler(self, plan: RoundPlan) -> RoundScheduler:
        return self.inner.scheduler(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is compared."""

    name: str
    policy: Policy
    is_lock_step: bool = False

    def run(self, conditions: Conditions, seed: int) -> EpisodeRun:
        return EpisodeRun(
            policy=self.policy,
            conditions=conditions,
            batch=BATCH,
            num_steps=NUM_STEPS,
            is_lock_step=self.is_lock_step,
            seed=seed,
        )


LOCK_STEP = Line(name="turns in lock step", policy=SyncConfig(), is_lock_step=True)
OWN_PACE = Line(name="each episode at its own pace", policy=SyncConfig())
LINES = (
    LOCK_STEP,
    OWN_PACE,
    Line(
        name="+ redundant members",
        policy=TailBatchingConfig(prompt_overprovision=1.0, response_overprovision=1.25),
    ),
    Line(name="+ redundant groups, given up", policy=RedundantGroups(TailBatchingConfig())),
    Line(name="+ tail batching", policy=TailBatchingConfig()),
    Line(
        name="+ tail batching, redundant members",
        policy=TailBatchingConfig(response_overprovision=1.25),
    ),
)
Runs = Mapping[Line, Sequence[Outcome]]  # an outcome for every seed, in the same order


def step_s(outcome: Outcome) -> float:
    """Seconds for as many trained episodes as a step trains."""
    return outcome.seconds * STEP_EPISODES / outcome.trained


def speedups(runs: Runs, line: Line) -> list[float]:
    """Over lock step, seed by seed."""
    pairs = zip(runs[LOCK_STEP], runs[line], strict=True)
    return [step_s(before) / step_s(after) for before, after in pairs]


def told(values: Sequence[float], form: str = "{:.1f}") -> str:
    """The median, and the range in brackets."""
    low, middle, high = (form.format(value) for value in (min(values), median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def row(runs: Runs, line: Line) -> tuple[str, ...]:
    found = runs[line]
    return (
        told([step_s(outcome) for outcome in found]),
        told(speedups(runs, line), "{:.2f}"),
        told([outcome.trained / outcome.seconds for outcome in found]),
        told([outcome.wasted_s / outcome.busy_s for outcome in found], "{:.0%}"),
        told([outcome.turn_bias for outcome in found], "{:+.1%}"),
    )


def measure(
    conditions: Conditions, lines: Sequence[Line], num_seeds: int, tell: Callable[[str], None]
) -> Runs:
    """Every line with every seed."""
    runs: dict[Line, list[Outcome]] = {line: [] for line in lines}
    for seed in range(num_seeds):
        for line in lines:
            outcome = play(line.run(conditions, seed))
            runs[line].append(outcome)
            fates = " ".join(f"{fate}={outcome.fates[fate]}" for fate in Fate)
            tell(f"seed={seed} line={line.name!r} step_s={step_s(outcome):.1f} {fates}")
    return runs


def picture(measured: Mapping[str, Runs]) -> bytes:
    """Seconds a step by line, a panel for each of the conditions; the median of the seeds as a bar,
    their range as a whisker, the speed-up over lock step in figures."""
    figure = Figure(figsize=(10.0, 3.0), dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(1, len(measured), sharey=True, squeeze=False)[0]
    for axes, (name, runs) in zip(panels, measured.items(), strict=True):
        seconds = [[step_s(outcome) for outcome in found] for found in runs.values()]
        middles = [median(each) for each in seconds]
        whiskers = [
            [middle - min(each) for middle, each in zip(middles, seconds, strict=True)],
            [max(each) - middle for middle, each in zip(middles, seconds, strict=True)],
        ]
        places = range(len(runs))
        axes.barh(places, middles, xerr=whiskers, color="#4477aa", ecolor=INK, height=0.6)
        for place, line in enumerate(runs):
            text = f" {median(speedups(runs, line)):.1f}×"
            axes.text(max(seconds[place]), place, text, va="center", fontsize=8, color=INK)
        axes.set_yticks(places, [line.name for line in runs])
        axes.set_xlim(0, 1.15 * max(map(max, seconds)))
        axes.set(xlabel="seconds a step", title=name)
        axes.title.set_fontsize(9)
        plain(axes)
        axes.tick_params(labelsize=8)
    panels[0].invert_yaxis()
    return png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="where to draw the seconds of a step")
    arguments = parser.parse_args()
    measured: dict[str, Runs] = {}
    for name, conditions in CONDITIONS.items():
        runs = measured[name] = measure(conditions, LINES, arguments.seeds, print)
        rows = [(line.name, *row(runs, line)) for line in LINES]
        print(markdown_table((name, *COLUMNS), rows), flush=True)
    if arguments.plot:
        arguments.plot.write_bytes(picture(measured))


if __name__ == "__main__":
    main()
