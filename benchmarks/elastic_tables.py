"""Tables of `elastic_simulated` beside published figures, each a generator of rows, its head
first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.elastic_options import WARM_UP, Options, Rows, over
from flows.experiments.spot.elastic_run import ElasticRun, PlayedRun
from flows.experiments.spot.spot_traces import (
    HOUR_S,
    SEGMENTS,
    Change,
    Trace,
    mean_workers,
    read_trace,
    steady,
)
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.seeding import SeedingConfig

KILLED, KILLED_OF = 3, 6  # workers
REPORT_TOKENS = 32  # as the preset has it
ARTIFACT = {0: 10_000, 1: 12_000, 2: 14_000, 3: 16_000, 4: 18_000}  # tokens/s, 8B
ARTIFACT_WINDOWS_S = {1: 190, 2: 160, 3: 105, 4: 70}  # compiled into the artifact, 8B
# over the trainer alone: throughput and tokens per dollar, averages of the three segments
PAPER = {"8b": (1.66, 1.34), "14b": (1.97, 1.49), "32b": (1.51, 1.28)}
PAPER_KILLED = {100: 0.33, 200: 0.76}  # of a kill's overhead, saved by migration; 14B
PAPER_A = {"8b": 1.36, "14b": 1.53, "32b": 1.45}  # tokens per dollar in segment A


def scaling(options: Options) -> Rows:
    """0 to 4 workers, beside the artifact's table."""
    yield (
        "workers", "tokens/s", "of none", "artifact", "of none", "tokens/$", "of none", "artifact",
        "ours/artifact", "window s", "artifact", "N_prem",
    )  # fmt: skip
    plain: PlayedRun | None = None
    hourly = ElasticRun(shape=options.shape).hourly
    for count in range(5):
        found = options.settled(count)
        plain = plain or found
        published = ARTIFACT[count] / ARTIFACT[0]
        worth = published * hourly.own / hourly.cost(count)
        ours = found.tokens_per_dollar / plain.tokens_per_dollar
        last = found.steps[-1]
        yield (
            str(count),
            f"{found.tokens_per_s:,.0f}",
            f"{found.tokens_per_s / plain.tokens_per_s:.2f}",
            f"{ARTIFACT[count]:,}",
            f"{published:.2f}",
            f"{found.tokens_per_dollar:,.0f}",
            f"{ours:.3f}",
            f"{worth:.3f}",
            f"{ours / worth:.2f}",
            f"{last.times.window_s:.0f}" if count else "",
            f"{ARTIFACT_WINDOWS_S[count]}" if count else "",
            f"{last.worth_holding:.1f}" if last.worth_holding else "",
        )


def segments(options: Options) -> Rows:
    """The drawn segments, each against the trainer alone for as long."""
    yield (
        "segment", "offered", "held", "changes", "tokens/s", "of none", "paper", "tokens/$",
        "of none", "paper",
    )  # fmt: skip
    plain, ratios = options.along(()), []
    for name, market in SEGMENTS.items():
        trace = market.trace(options.seed, options.hours * HOUR_S)
        found = options.along(trace)
        ratios.append(over(found, plain))
        paper = f"{PAPER_A[options.shape_name]:.2f}" if name == "A" else ""
        yield (name, *trace_cells(options, trace, found), *run_cells(found, plain, "", paper))
    throughput, worth = (sum(column) / len(ratios) for column in zip(*ratios, strict=True))
    paper_throughput, paper_worth = PAPER[options.shape_name]
    yield (
        "mean", "", "", "", "", f"{throughput:.2f}", f"{paper_throughput:.2f}", "", f"{worth:.2f}",
        f"{paper_worth:.2f}",
    )  # fmt: skip


def followed(options: Options) -> Rows:
    """A trace of the user's."""
    assert options.trace is not None, "checked when the options were read"
    trace = read_trace(options.trace)
    plain, found = options.along(()), options.along(trace)
    yield (
        "trace",
        "offered",
        "held",
        "changes",
        "tokens/s",
        "of none",
        "",
        "tokens/$",
        "of none",
        "",
    )
    cells = (*trace_cells(options, trace, found), *run_cells(found, plain, "", ""))
    yield (options.trace.name, *cells)


def preempted(hours: float) -> Trace:
    """Six workers, of which five are taken away after a quarter of the time and given back after
    three."""
    quarter_s = hours * HOUR_S / 4
    return (
        Change(time_s=0.0, change=6),
        Change(time_s=quarter_s, change=-5),
        Change(time_s=3 * quarter_s, change=5),
    )


def ablations(options: Options) -> Rows:
    """Each part left out, where five of six workers are preempted and in segment B."""
    variants: Mapping[str, Mapping[str, object]] = {
        "all": {},
        "no seeding": {"seeds": False},
        "no memory": {"seeding": SeedingConfig(remembers=False)},
        "no balancing": {"balancing": BalancingConfig(enabled=False)},
        "joins between steps": {"joins_mid_step": False},
        "no notice": {"notice_s": 0.0},
    }
    yield (
        "variant",
        "5 of 6 preempted: tokens/s",
        "of all",
        "segment B: tokens/s",
        "of all",
        "paper",
    )
    paper = {"no seeding": "-19 %", "no memory": "-6 %"}
    traces = (preempted(options.hours), SEGMENTS["B"].trace(options.seed, options.hours * HOUR_S))
    whole: list[PlayedRun] = []
    for name, others in variants.items():
        found = [options.along(trace, **others) for trace in traces]
        whole = whole or found
        cells = [
            cell
            for run, all_of_it in zip(found, whole, strict=True)
            for cell in (
                f"{run.tokens_per_s:,.0f}",
                f"{run.tokens_per_s / all_of_it.tokens_per_s:.3f}",
            )
        ]
        yield (name, *cells, paper.get(name, ""))


def killed(options: Options) -> Rows:
    """Three of six workers end at once and without a word, early and late in a step: what goes on
    from its reported tokens beside what begins anew."""
    yield (
        "killed after s", "step s, nobody killed", "begins anew", "goes on", "overhead saved",
        "paper",
    )  # fmt: skip
    silent = ElasticRun(
        shape=options.shape,
        trace=steady(KILLED_OF),
        num_steps=WARM_UP + 1,
        notice_s=0.0,
        seed=options.seed,
    )
    told = replace(silent, shape=replace(options.shape, report_tokens=REPORT_TOKENS))
    for after_s, paper in PAPER_KILLED.items():
        cells, overheads = [], []
        for run in (silent, told):
            whole = options.play(run).steps[-1]
            change = Change(time_s=whole.start_s + after_s, change=-KILLED)
            hit = options.play(replace(run, trace=(*run.trace, change))).steps[-1]
            overheads.append(hit.end_s - whole.end_s)
            cells.append(f"{hit.end_s - hit.start_s:.0f} ({overheads[-1]:+.0f})")
        anew_s, on_s = overheads
        seconds = whole.end_s - whole.start_s
        yield (f"{after_s}", f"{seconds:.0f}", *cells, f"{1 - on_s / anew_s:.0%}", f"{paper:.0%}")


def trace_cells(options: Options, trace: Trace, found: PlayedRun) -> tuple[str, str, str]:
    return (
        f"{mean_workers(trace, options.hours * HOUR_S):.1f}",
        f"{found.workers(options.shape.gpus):.1f}",
        str(len(trace)),
    )


def run_cells(found: PlayedRun, plain: PlayedRun, paper: str, paper_worth: str) -> tuple[str, ...]:
    throughput, worth = over(found, plain)
    return (
        f"{found.tokens_per_s:,.0f}",
        f"{throughput:.2f}",
        paper,
        f"{found.tokens_per_dollar:,.0f}",
        f"{worth:.3f}",
        paper_worth,
    )
