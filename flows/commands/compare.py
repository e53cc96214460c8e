"""rollflow compare: two training runs side by side, from what MLflow has of both: held-out rewards,
lengths, the settings that differ, then time, speed-up and cost; curves on request. It reads nothing
else, so that it works on any machine that reaches the tracking server."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from artifacts.prices import gain
from artifacts.reports.canvas import png
from artifacts.reports.command_plots import RunCurves, comparison
from artifacts.reports.device_cost import IDLE, LENT_USES, USES
from artifacts.reports.mlflow_client import open_client, sqlite_file
from artifacts.urls import TRACKING
from flows.commands.options import command

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

STEP_TIME = "time/step_s"
REWARD = "reward/mean"
LONG_ROUND = "round/is_long"
TRAINED = "ledger/trained_tokens"
DOLLARS, SECONDS = "cost/dollars", "cost/added_s"
WORKER_TIME = re.compile(r"cost/(.+)_worker_s")  # of a price class
DEFAULT_URI = "sqlite:///runs/mlflow.db"
REWARD_TAIL_STEPS = 5
LEAST_S = 0.001  # mean seconds of a stage that is shown
HELDOUT, TOKENS = "heldout/reward_mean", "rollout/response_tokens_mean"
RESULT_TAG = "mlflow.note.content"  # a run's description, whose first line is its result
ASIDE = ("keep.", "resume", "run_name", "cluster.dashboard_port")  # parameters with no effect


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """What MLflow has of one run."""

    name: str  # run name
    run_id: str  # MLflow run id
    metrics: Mapping[str, Mapping[int, float]]  # metric -> step -> value
    params: Mapping[str, str] = field(default_factory=dict)  # dotted field -> value
    result: str = ""  # the result of a run that ended, with its interval

    @property
    def steps(self) -> list[int]:
        """Training steps: those that have a step time."""
        return sorted(self.metrics.get(STEP_TIME, {}))

    def values(self, metric: str) -> list[float]:
        return [value for _, value in sorted(self.metrics.get(metric, {}).items())]


def tracked(uri: str) -> MlflowClient:
    """Open a tracking URI. ValueError for a database that is not there."""
    database = sqlite_file(uri)
    if database is not None and not database.is_file():
        raise ValueError(
            f"--tracking-uri must name a database that is there, got {uri}; give the one the"
            " runs were logged to"
        )
    return open_client(uri)


def history(client: MlflowClient, run: str, uri: str) -> RunHistory:
    """All metrics of the run with this id or name. ValueError if there is none, or no step."""
    found = None
    if "'" not in run:  # MLflow's filters cannot express the others
        attributes = ("run_id", "run_name")
        conditions = (f"attributes.{attribute} = '{run}'" for attribute in attributes)
        found = next((runs[0] for each in conditions if (runs := _latest(client, each))), None)
    if found is None:
        names = [str(other.info.run_name) for other in _latest(client, "")[:8]]
        raise ValueError(
            f"RUN must be an MLflow run id or run name at {uri}, got {run!r}; the latest"
            f" there: {', '.join(names) or 'no run at all'}"
        )
    run_id = found.info.run_id
    metrics = {
        name: {point.step: point.value for point in client.get_metric_history(run_id, name)}
        for name in found.data.metrics
    }
    made = RunHistory(
        name=found.info.run_name or run_id,
        run_id=run_id,
        metrics=metrics,
        params=found.data.params,
        result=found.data.tags.get(RESULT_TAG, "").partition("\n")[0],
    )
    if not made.steps:
        raise ValueError(
            f"run {run!r} must have at least one step ({STEP_TIME}), it has none; wait for its"
            " first step"
        )
    return made


def _latest(client: MlflowClient, condition: str) -> list[Run]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    order = ["attributes.start_time DESC"]
    return list(client.search_runs(experiments, condition, order_by=order, max_results=50))


@contextmanager
def answered(uri: str) -> Iterator[None]:
    """Turn a server that does not answer, or a file without MLflow's tables, into a ValueError."""
    from mlflow.exceptions import MlflowException  # MLflow takes seconds to import
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        raise ValueError(
            f"--tracking-uri must name an MLflow server that answers or its database, got {uri}:"
            f" {str(error).strip().splitlines()[0]}; give the one the runs were logged to"
        ) from error


def stages(first: RunHistory, second: RunHistory) -> list[str]:
    """Stages of either run that take LEAST_S or more, the first run's slowest on top, the step
    last."""
    names = {
        name
        for run in (first, second)
        for name in run.metrics
        if name.startswith("time/") and name.endswith("_s") and _mean(run.values(name)) >= LEAST_S
    }
    return [*sorted(names - {STEP_TIME}, key=lambda name: -_mean(first.values(name))), STEP_TIME]


def stage_table(first: RunHistory, second: RunHistory) -> Table:
    """Seconds per stage. Speed-ups are ratios of means: a median would hide the long rounds."""
    title = "\n".join(
        f"{letter} = {escape(run.name)} ({len(run.steps)} steps)"
        for letter, run in (("A", first), ("B", second))
    )
    table = Table(title=f"Seconds per step\n{title}", title_justify="left")
    table.add_column("stage", no_wrap=True)
    alike = not different_models(first, second)
    for heading in ("A median", "B median", "A mean", "B mean", *(["A / B"] if alike else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in stages(first, second):
        runs = (first.values(name), second.values(name))
        cells = [
            *(_cell(median(run) if run else None) for run in runs),
            *(_cell(mean(run) if run else None) for run in runs),
            *([_ratio(*runs)] if alike else []),
        ]
        table.add_row(name.removeprefix("time/"), *cells, end_section=name == STEP_TIME)
    return table


def outcome(run: RunHistory) -> Iterator[str]:
    """Sentences on what a run learned: held-out reward, training reward, and lengths."""
    heldout = run.values(HELDOUT)
    if run.result:
        yield f"{run.name}: {run.result}"
    elif heldout:
        yield f"{run.name}: held-out reward {heldout[0]:.3f} at first, {heldout[-1]:.3f} at last."
    for metric, form, name in (
        (REWARD, ".3f", "mean reward"),
        (TOKENS, ".0f", "mean response tokens"),
    ):
        if values := run.values(metric):
            start, end = values[:REWARD_TAIL_STEPS], values[-REWARD_TAIL_STEPS:]
            yield (
                f"{run.name}: {name} {mean(start):{form}} in its first {len(start)} steps,"
                f" {mean(end):{form}} in its last."
            )


def changed_settings(first: RunHistory, second: RunHistory) -> dict[str, tuple[str, str]]:
    """The values in both runs of the settings in which they differ, by dotted field; "-" where a
    run has none. Left out are those that say only where records lie."""
    names = sorted({*first.params, *second.params})
    pairs = {name: (first.params.get(name, "-"), second.params.get(name, "-")) for name in names}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b and not name.startswith(ASIDE)}


def different_models(first: RunHistory, second: RunHistory) -> bool:
    """True if the runs are known to train different models."""
    return any(field.startswith("model.") for field in changed_settings(first, second))


def settings_table(first: RunHistory, second: RunHistory) -> Table:
    """The settings that differ, a row each."""
    table = Table("setting", "A", "B", title="Settings that differ", title_justify="left")
    for name, values in changed_settings(first, second).items():
        table.add_row(name, *map(escape, values))
    return table


def verdict(first: RunHistory, second: RunHistory) -> list[str]:
    """Speed and cost in sentences, with warnings about unfair comparisons."""
    before, after = mean(first.values(STEP_TIME)), mean(second.values(STEP_TIME))
    ratio = f"{max(before, after) / min(before, after):.2f}x"
    word = "faster" if after <= before else "slower"
    gained = (
        "their models differ, so this is no speed-up."
        if different_models(first, second)
        else f"{ratio} {word}."
    )
    lines = [
        f"{second.name} takes {_cell(after)} s a step, {first.name} {_cell(before)} s: {gained}"
    ]
    if first.values(TRAINED) and second.values(TRAINED):
        rates = [sum(run.values(TRAINED)) / sum(run.values(STEP_TIME)) for run in (first, second)]
        lines.append(
            f"{second.name} trains {rates[1]:.0f} response tokens a second of its steps,"
            f" {first.name} {rates[0]:.0f}."
        )
    for run in (first, second):
        if run.values(LONG_ROUND):
            lines.append(
                f"{run.name}: {mean(run.values(LONG_ROUND)):.0%} of its {len(run.steps)} rounds"
                " were long."
            )
    lines += [line for run in (first, second) for line in use_lines(run.name, run.metrics)]
    lines += cost_verdict(*(cost_totals(run.name, run.metrics) for run in (first, second)))
    if len(first.steps) != len(second.steps):
        lines.append(
            "The runs differ in length. Answers get shorter as a model learns, and a drain's last"
            " round is smaller: compare equal lengths."
        )
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTotals:
    """Sums over the steps of a run that have a cost."""

    name: str  # name of the run
    dollars: float  # paid for these steps
    seconds: float  # that these steps added to the run
    trained_tokens: float  # response tokens trained in these steps


def cost_totals(name: str, metrics: Mapping[str, Mapping[int, float]]) -> CostTotals:
    """Sums over the steps with a cost. metrics: name -> step -> value."""
    steps = metrics.get(DOLLARS, {}).keys()

    def total(metric: str) -> float:
        return sum(metrics.get(metric, {}).get(step, 0.0) for step in steps)

    return CostTotals(
        name=name, dollars=total(DOLLARS), seconds=total(SECONDS), trained_tokens=total(TRAINED)
    )


def cost_verdict(first: CostTotals, second: CostTotals) -> list[str]:
    """Sentences on the cost of a trained token and the gain of the second run, given prices."""
    runs = (first, second)
    known = [run for run in runs if min(run.dollars, run.seconds, run.trained_tokens) > 0]
    lines = [
        f"{run.name}: {1e6 * run.dollars / run.trained_tokens:.4g} dollars a million trained"
        f" tokens, {run.trained_tokens / run.dollars:,.0f} tokens a dollar."
        for run in known
    ]
    if len(known) < 2:
        return lines
    throughput_ratio = (second.trained_tokens / second.seconds) / (
        first.trained_tokens / first.seconds
    )
    cost_ratio = (second.dollars / second.seconds) / (first.dollars / first.seconds)
    lines.append(
        f"{second.name} has R = {throughput_ratio:.3f} times the throughput of {first.name} at"
        f" 1 + N*c/C = {cost_ratio:.3f} times its dollars an hour: gain R/(1 + N*c/C) ="
        f" {gain(throughput_ratio, cost_ratio):.3f} in tokens per dollar."
    )
    return lines


def use_lines(name: str, metrics: Mapping[str, Mapping[int, float]]) -> list[str]:
    """A sentence per price class with recorded uses: seconds held, and the share of each use."""
    lines = []
    for price_class in sorted(found[1] for key in metrics if (found := WORKER_TIME.fullmatch(key))):
        used_s = {
            use: sum(metrics.get(f"cost/{price_class}_{use}_s", {}).values())
            for use in (*USES, *LENT_USES, IDLE)
        }
        total_s = sum(used_s.values())
        if not total_s:
            continue
        shares = [f"{seconds / total_s:.1%} {use}" for use, seconds in used_s.items() if seconds]
        lines.append(
            f"{name}: {price_class} devices were held for {total_s:,.0f} s: {', '.join(shares)}."
        )
    return lines


def curves(run: RunHistory) -> RunCurves:
    """What the plot needs, of the steps that have both a time and a reward."""
    times = run.metrics[STEP_TIME]
    rewards, long = run.metrics.get(REWARD, {}), run.metrics.get(LONG_ROUND, {})
    steps = [step for step in run.steps if step in rewards]
    return RunCurves(
        name=run.name,
        steps=steps,
        reward=[rewards[step] for step in steps],
        step_s=[times[step] for step in steps],
        is_long=[bool(long.get(step, 0)) for step in steps],
    )


def show(first: RunHistory, second: RunHistory, plot: Path | None) -> None:
    """Print the comparison, and draw the curves into the file `plot` if there is one."""
    console = Console(soft_wrap=True)
    for line in (*outcome(first), *outcome(second)):
        console.print(line, markup=False, highlight=False)
    if changed_settings(first, second):
        console.print(settings_table(first, second))
    console.print(stage_table(first, second))
    for line in verdict(first, second):
        console.print(line, markup=False, highlight=False)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_bytes(png(comparison(curves(first), curves(second))))
        console.print(f"plot: {plot}", markup=False, highlight=False)


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow compare",
        description="Compare two training runs by their metrics in MLflow.",
    )
    made.add_argument(
        "first", metavar="RUN", help="the run to compare with: MLflow run id or run name"
    )
    made.add_argument("second", metavar="RUN", help="the run to judge: MLflow run id or run name")
    made.add_argument(
        "--tracking-uri",
        default=DEFAULT_URI,
        help="where the runs were logged (default: %(default)s)",
    )
    made.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="also draw reward by step, reward by time and step time",
    )
    return made


def _mean(values: Sequence[float]) -> float:
    return mean(values) if values else 0.0


def _cell(value: float | None) -> str:
    """A number with three digits, without an exponent."""
    if value is None:
        return "-"
    return (
        f"{value:.0f}"
        if abs(value) >= 100
        else f"{value:.3g}"
        if abs(value) >= 0.01
        else f"{value:.3f}"
    )


def _ratio(before: Sequence[float], after: Sequence[float]) -> str:
    return f"{mean(before) / mean(after):.2f}x" if before and after and mean(after) > 0 else "-"


@command(parser)
def main(options: Namespace) -> int:
    TRACKING.check(options.tracking_uri, "--tracking-uri")
    with answered(options.tracking_uri):
        client = tracked(options.tracking_uri)
        first = history(client, options.first, options.tracking_uri)
        second = history(client, options.second, options.tracking_uri)
    show(first, second, options.plot)
    return 0
