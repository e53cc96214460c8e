"""What each of RollPacker's parts is worth on this machine: the paper's Table 2, on the mixed math
and code task.

    python -m flows.experiments.ablation --steps 5 --repeats 3 --out runs/ablation --plot

    every run of `ablation_variants`, as a user starts it ─▶ DIR/ablation.md, DIR/ablation.png

A run that is finished in DIR is not run again: stop whenever you like, go on with the same command,
ask for more repeats later; --repeats 0 only writes the tables anew. A run that was stopped half-way
is begun anew. Times are those of the steps alone: no start, no evaluation, no drain.
`ablation_figures` says what is compared and why.

Leaves out held-out rewards: training rewards of a short round favour easy prompts until the long
round has come, so read reward curves in whole periods.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import mean

from artifacts.commit import read_commits, read_manifest
from artifacts.layout import MANIFEST
from artifacts.reports.ablation_plot import VariantCurves, ablation_plot
from artifacts.store import Store
from flows.commands.command_line import assemble
from flows.commands.demo import STOP_S, attended
from flows.commands.local_stack import interrupt
from flows.config.run_config import RunConfig
from flows.experiments.ablation_figures import (
    STAGES,
    Line,
    MeasuredRun,
    report,
    step_s,
    trained_groups,
)
from flows.experiments.ablation_variants import TAIL, VARIANTS, Job, plan

SERVER_STOP_S = 40.0  # how long the run's Prefect server may take to end after it


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        period = _period(
            RunConfig.model_validate(assemble(options.preset, "", [*options.set, *TAIL]))
        )
        if options.steps > period and options.steps % period:
            raise ValueError(
                f"--steps must be whole periods of tail batching ({period} steps), got"
                f" {options.steps}; change it"
            )
        options.out.mkdir(parents=True, exist_ok=True)
        for job in plan(
            options.preset, options.variants, options.steps, options.repeats, options.set
        ):
            if not is_finished(options.out, job):
                _run(options.preset, options.out, job)
                _report(options, period)
        _report(options, period)
    except KeyboardInterrupt:
        print("the same command goes on", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print((options.out / "ablation.md").read_text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.experiments.ablation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--preset", default="smollm2-mixed", help="what the variants change (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=5,
        help="steps of a run, whole periods of tail batching (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="runs of each variant, each with a seed of its own (default: %(default)s)",
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=list(VARIANTS),
        help="lines of the table (default: all)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="where runs are kept and figures written",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field of every variant",
    )
    parser.add_argument("--plot", action="store_true", help="draw DIR/ablation.png, too")
    return parser


def _period(config: RunConfig) -> int:
    """Steps after which tail batching has trained what it launched."""
    return config.scheduling.algebra(config.batch).period_steps


def is_finished(out: Path, job: Job) -> bool:
    """Whether DIR has all steps of this run. Raises ValueError when what it has was measured
    otherwise."""
    store = Store.open(str(out)).child(job.run_name)
    if not store.exists(MANIFEST):
        return False
    kept = RunConfig.model_validate(read_manifest(store).config)
    if kept.model_copy(update={"keep": job.config.keep}) != job.config:
        raise ValueError(
            f"--out must be a new directory for another measurement, {store.url} has other"
            " settings; change it, or remove that run"
        )
    return len(read_commits(store)) >= job.config.num_steps


def _run(preset: str, out: Path, job: Job) -> None:
    """The run from its beginning, with a Prefect server of its own; what it says goes to
    DIR/<run>.log."""
    print(f"{job.run_name} ...", flush=True)
    shutil.rmtree(out / job.run_name, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "flows.commands.demo",
        "--preset",
        preset,
        "--root",
        str(out),
        "--prefect-port",
        "0",
    ]
    log = out / f"{job.run_name}.log"
    with log.open("w") as sink:
        assignments = (word for setting in job.assignments for word in ("--set", setting))
        child = subprocess.Popen(
            [*command, *assignments],
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = attended(child, STOP_S + SERVER_STOP_S)
    if code:
        raise RuntimeError(
            f"the run {job.run_name} ended with {code}, its words are in {log}; the same command"
            " goes on"
        )


def measured(out: Path, variants: Sequence[str]) -> list[MeasuredRun]:
    """What DIR has of these variants, unfinished runs left out."""
    runs = []
    for name in variants:
        for folder in sorted(out.glob(f"{name}-r*/")):
            store = Store.open(str(folder))
            if not store.exists(MANIFEST):
                continue
            steps = read_commits(store)
            num_steps = int(read_manifest(store).config["num_steps"])
            if len(steps) >= num_steps:
                repeat = int(folder.name.removeprefix(f"{name}-r"))
                runs.append(
                    MeasuredRun(variant=name, repeat=repeat, steps=tuple(steps[:num_steps]))
                )
    return runs


def _report(options: argparse.Namespace, period: int) -> None:
    runs = measured(options.out, options.variants)
    lines = [
        Line(name=name, label=VARIANTS[name].label, over=VARIANTS[name].over)
        for name in VARIANTS
        if name in options.variants
    ]
    (options.out / "ablation.md").write_text(report(lines, runs, period))
    if options.plot and runs:
        (options.out / "ablation.png").write_bytes(
            ablation_plot([values for line in lines if (values := curves(line, runs)) is not None])
        )


def curves(line: Line, runs: Sequence[MeasuredRun]) -> VariantCurves | None:
    """What the plot needs of a variant, means over its repeats; None without a run."""
    own = [run.steps for run in runs if run.variant == line.name]
    if not own:
        return None
    groups = [accumulate(float(count) for count in trained_groups(steps)) for steps in own]
    elapsed = [accumulate(step_s(step) for step in steps) for steps in own]
    rewards = [[step.metrics["reward/mean"] for step in steps] for steps in own]
    every = [step for steps in own for step in steps]
    return VariantCurves(
        label=line.name,
        samples=[mean(values) for values in zip(*groups, strict=False)],
        elapsed_s=[mean(values) for values in zip(*elapsed, strict=False)],
        reward=[mean(values) for values in zip(*rewards, strict=False)],
        stages_s={stage: mean(step.timings[stage] for step in every) for stage in STAGES},
    )


if __name__ == "__main__":
    sys.exit(main())
