"""Variants of one preset against each other, paired and repeated.

`--comparison rollpacker` is the RollPacker paper's Table 2 on the mixed math and code task, `eta`
sweeps its over-provisioning, `asynchrony` says what steps that overlap are worth there, `service`
what they are worth where verdicts come from elsewhere, `elastic workers` what being open to elastic
workers costs a run to which none comes.

    python -m research.ablations.ablation --steps 5 --repeats 3 --out runs/ablation --plot

    every run of the comparison, as a user starts it ─▶ DIR/ablation.md, DIR/ablation.png

A run that is finished in DIR is not run again: stop whenever you like, go on with the same command,
ask for more repeats later; --repeats 0 only writes the tables anew. A run that was stopped half-way
is begun anew. Times are those of the steps alone: no start, no evaluation, no drain.
`ablation_figures` and `asynchrony_figures` say what is compared and why.

Held-out prompts are hardly asked, unless --set evaluation.num_prompts=... says so. Training rewards
of a short round favour easy prompts until the long round has come, so read reward curves in whole
periods.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import mean

from artifacts.commit import read_commits, read_manifest, seconds_added
from artifacts.layout import MANIFEST
from artifacts.store import Store
from flows.commands.demo import STOP_S, attended
from flows.commands.local_stack import stop_on_signals
from flows.config.settings_file import kept_config
from research.ablations.ablation_figures import (
    STAGES,
    MeasuredRun,
    TableLine,
    trained_groups,
)
from research.ablations.ablation_plot import VariantCurves, ablation_plot
from research.ablations.ablation_variants import TAIL, AblationVariant, Job, job_of, plan
from research.ablations.comparisons import COMPARISONS
from research.ablations.measured_run import measured
from research.ablations.validation_figures import over_time
from tasks.cluster.parent import bound_command
from tasks.cluster.process_environment import python_path

PERIOD = "period"  # name of the variant that says how long one is
SERVER_STOP_S = 40.0  # how long the run's Prefect server may take to end after it


def main() -> int:
    options = _parser().parse_args()
    stop_on_signals()
    try:
        _complete(options)
        variants = COMPARISONS[options.comparison].variants
        period = period_steps(options.preset, variants, options.set, options.variants)
        if options.steps > period and options.steps % period:
            raise ValueError(
                f"--steps must be whole periods of tail batching ({period} steps), got"
                f" {options.steps}; change it"
            )
        options.out.mkdir(parents=True, exist_ok=True)
        for job in plan(
            *(options.preset, options.variants, options.steps, options.repeats, options.set),
            variants,
        ):
            if not is_finished(options.out, job):
                with COMPARISONS[options.comparison].beside():
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
        prog="python -m research.ablations.ablation", description=(__doc__ or "").splitlines()[0]
    )
    about = "; ".join(f"{name}: {comparison.about}" for name, comparison in COMPARISONS.items())
    parser.add_argument(
        "--comparison",
        choices=COMPARISONS,
        default="rollpacker",
        help=f"{about} (default: %(default)s)",
    )
    parser.add_argument(
        "--preset", default="", help="what the variants change (default: the comparison's own)"
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
        default=[],
        help="lines of the tables (default: all of the comparison)",
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


def _complete(options: argparse.Namespace) -> None:
    """Fill in what the comparison says. ValueError for a variant that it does not have."""
    comparison = COMPARISONS[options.comparison]
    options.preset = options.preset or comparison.preset
    options.variants = options.variants or list(comparison.variants)
    options.set = [*comparison.settings, *options.set]
    unknown = [name for name in options.variants if name not in comparison.variants]
    if unknown:
        raise ValueError(
            f"--variants of the comparison {options.comparison} must be of"
            f" {', '.join(comparison.variants)}, got {unknown[0]}; change it, or --comparison"
        )


def period_steps(
    preset: str,
    variants: Mapping[str, AblationVariant],
    settings: Sequence[str],
    names: Sequence[str] = (),
) -> int:
    """Steps after which tail batching, with what else the first variant sets, has trained what it
    launched; and so has every variant that is named."""
    first = next(iter(variants.values()))
    others = [setting for setting in first.settings if not setting.startswith("scheduling.")]
    tail = replace(first, settings=(*others, *TAIL))
    known = {**variants, PERIOD: tail}
    configs = (job_of(preset, name, 1, 1, settings, known).config for name in (PERIOD, *names))
    return math.lcm(*(config.scheduling.algebra(config.batch).period_steps for config in configs))


def is_finished(out: Path, job: Job) -> bool:
    """Whether DIR has all steps of this run. Raises ValueError when what it has was measured
    otherwise."""
    store = Store.open(str(out)).child(job.run_name)
    if not store.exists(MANIFEST):
        return False
    kept = kept_config(read_manifest(store).config)
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
    words = ("--preset", preset, "--root", str(out), "--prefect-port", "0")
    command = bound_command("flows.commands.demo", *words)
    log = out / f"{job.run_name}.log"
    with log.open("w") as sink:
        assignments = (word for setting in job.assignments for word in ("--set", setting))
        child = subprocess.Popen(
            [*command, *assignments],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | python_path(),
            start_new_session=True,
        )
        code = attended(child, STOP_S + SERVER_STOP_S)
    if code:
        raise RuntimeError(
            f"the run {job.run_name} ended with {code}, its words are in {log}; the same command"
            " goes on"
        )


def _report(options: argparse.Namespace, period: int) -> None:
    comparison = COMPARISONS[options.comparison]
    runs = measured(options.out, options.variants, comparison.recorded)
    lines = [
        TableLine(name=name, label=variant.label, over=variant.over)
        for name, variant in comparison.variants.items()
        if name in options.variants
    ]
    tables = [made(lines, runs, period) for made in comparison.tables]
    (options.out / "ablation.md").write_text("\n".join(tables))
    if options.plot and runs:
        (options.out / "ablation.png").write_bytes(
            ablation_plot([values for line in lines if (values := curves(line, runs)) is not None])
        )


def curves(line: TableLine, runs: Sequence[MeasuredRun]) -> VariantCurves | None:
    """What the plot needs of a variant, means over its repeats; None without a run."""
    own = [run.steps for run in runs if run.variant == line.name]
    if not own:
        return None
    groups = [accumulate(float(count) for count in trained_groups(steps)) for steps in own]
    elapsed = [accumulate(seconds_added(steps)) for steps in own]
    rewards = [[step.metrics["reward/mean"] for step in steps] for steps in own]
    every = [step for steps in own for step in steps]
    return VariantCurves(
        label=line.name,
        samples=[mean(values) for values in zip(*groups, strict=False)],
        elapsed_s=[mean(values) for values in zip(*elapsed, strict=False)],
        validation=[over_time(run) for run in runs if run.variant == line.name],
        reward=[mean(values) for values in zip(*rewards, strict=False)],
        stages_s={stage: mean(step.timings[stage] for step in every) for stage in STAGES},
    )


if __name__ == "__main__":
    sys.exit(main())
