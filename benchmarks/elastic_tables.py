"""The tables of `elastic_simulated`, each a generator of rows, its head first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.prices import PriceConfig
from artifacts.seed_windows import read_windows, write_windows
from artifacts.store import Store
from flows.experiments.spot.elastic_run import PRICES, RESERVED, ElasticRun, PlayedRun, play
from flows.experiments.spot.elastic_shapes import SHAPES, Shape
from flows.experiments.spot.spot_traces import (
    HOUR_S,
    SEGMENTS,
    Change,
    Trace,
    mean_workers,
    read_trace,
    steady,
)
from flows.experiments.spot.spot_workers import SPOT
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.seeding import SeedingConfig
from tasks.scheduling.stream_training import StreamTrainerConfig

WARM_UP = 6  # steps until the windows have settled
ARTIFACT = {0: 10_000, 1: 12_000, 2: 14_000, 3: 16_000, 4: 18_000}  # tokens/s, 8B
ARTIFACT_WINDOWS_S = {1: 190, 2: 160, 3: 105, 4: 70}  # compiled into the artifact, 8B
# over the trainer alone: throughput and tokens per dollar, averages of the three segments
PAPER = {"8b": (1.66, 1.34), "14b": (1.97, 1.49), "32b": (1.51, 1.28)}
PAPER_A = {"8b": 1.36, "14b": 1.53, "32b": 1.45}  # tokens per dollar in segment A
SPOT_PRICES = (0.0, 1.0, 2.66, 4.0, 5.24, 7.5, 10.47)  # dollars a GPU-hour; reserved: 10.47
Rows = Iterator[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    shape_name: str
    steps: int  # that are counted, behind WARM_UP
    seed: int
    hours: float  # of a trace
    trace: Path | None
    memory: Store | None

    @property
    def shape(self) -> Shape:
        return SHAPES[self.shape_name]

    def play(self, run: ElasticRun) -> PlayedRun:
        """Begin with the windows that are kept, and keep what was found."""
        if self.memory is None:
            return play(run)
        known = read_windows(self.memory, self.shape_name, SPOT)
        played = play(replace(run, windows_s=known))
        write_windows(self.memory, self.shape_name, SPOT, played.windows_s)
        return played

    def settled(self, num_workers: int, **others: object) -> PlayedRun:
        """So many workers for good, once the windows have settled."""
        run = ElasticRun(
            shape=self.shape,
            trace=steady(num_workers),
            num_steps=WARM_UP + self.steps,
            seed=self.seed,
        )
        played = self.play(replace(run, **others))  # type: ignore[arg-type]
        return played.after(WARM_UP)  # of all, so that all train the same prompts

    def along(self, trace: Trace, **others: object) -> PlayedRun:
        """A run along a trace, from its beginning."""
        run = ElasticRun(
            shape=self.shape,
            trace=trace,
            until_s=self.hours * HOUR_S,
            follows_worth=True,
            seed=self.seed,
        )
        return self.play(replace(run, **others))  # type: ignore[arg-type]


def scaling(options: Options) -> Rows:
    """0 to 4 workers, beside the artifact's table."""
    yield (
        "workers", "tokens/s", "of none", "artifact", "of none", "tokens/$", "of none", "artifact",
        "ours/artifact", "window s", "artifact", "N_prem",
    )  # fmt: skip
    plain: PlayedRun | None = None
    for count in range(5):
        found = options.settled(count)
        plain = plain or found
        published = ARTIFACT[count] / ARTIFACT[0]
        worth = published / (1 + count * hourly(options.shape, SPOT) / hourly(options.shape))
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


def beyond(options: Options) -> Rows:
    """Tail batching and the stream trainer, alone and on top of workers."""
    yield (
        "policy", "workers", "tokens/s", "of plain", "tokens/$", "of plain", "groups/$, of plain"
    )  # fmt: skip
    variants = {
        "sync": (SyncConfig(), False),
        "tail batching + stream trainer": (TailBatchingConfig(), True),
        "sync + stream trainer": (SyncConfig(), True),
        "tail batching": (TailBatchingConfig(), False),
    }
    most_running = options.shape.engine(options.seed).max_batch
    plain: PlayedRun | None = None
    for name, (policy, streams) in variants.items():
        trainer = StreamTrainerConfig(enabled=streams, max_running_per_engine=most_running)
        for count in (0, 4, 8):
            found = options.settled(count, policy=policy, stream_trainer=trainer)
            plain = plain or found
            yield (
                name,
                str(count),
                f"{found.tokens_per_s:,.0f}",
                f"{found.tokens_per_s / plain.tokens_per_s:.2f}",
                f"{found.tokens_per_dollar:,.0f}",
                f"{found.tokens_per_dollar / plain.tokens_per_dollar:.3f}",
                f"{steps_per_dollar(found) / steps_per_dollar(plain):.3f}",
            )


def holding(options: Options) -> Rows:
    """Tokens per dollar by number of workers and price, over those of the trainer alone."""
    counts = (0, 2, 4, 6)
    runs = {count: options.settled(count) for count in counts}
    yield ("$/GPU-hour", *(str(count) for count in counts), "hold", "N_prem with 4")
    worth = runs[4].steps[-1].worth_holding
    for price in SPOT_PRICES:
        prices = PriceConfig(classes={**PRICES.classes, SPOT: price})
        gains = {
            count: runs[count].tokens_per_s
            / runs[0].tokens_per_s
            / (1 + count * hourly(options.shape, SPOT, prices) / hourly(options.shape))
            for count in counts
        }
        best = max(gains, key=lambda count: gains[count])
        yield (
            f"{price:.2f}",
            *(f"{gains[count]:.3f}" for count in counts),
            str(best),
            f"{worth:.1f}" if worth else "",
        )


def hourly(shape: Shape, price_class: str = RESERVED, prices: PriceConfig = PRICES) -> float:
    """Dollars an hour: of the trainer, or of one worker."""
    devices = shape.gpus * (shape.num_own if price_class == RESERVED else 1)
    return HOUR_S * prices.dollars_per_s(price_class) * devices


def over(found: PlayedRun, plain: PlayedRun) -> tuple[float, float]:
    """Throughput and tokens per dollar over those of another run."""
    return (
        found.tokens_per_s / plain.tokens_per_s,
        found.tokens_per_dollar / plain.tokens_per_dollar,
    )


def steps_per_dollar(run: PlayedRun) -> float:
    """Every step trains as many groups, whatever their length."""
    return len(run.steps) / sum(step.figures["cost/dollars"] for step in run.steps)


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


TABLES: Mapping[str, Callable[[Options], Rows]] = {
    "scaling": scaling,
    "segments": segments,
    "ablations": ablations,
    "beyond": beyond,
    "holding": holding,
    "trace": followed,
}
