"""What the tables of `elastic_simulated` are asked for, and the runs that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from artifacts.seed_windows import read_windows, write_windows
from artifacts.store import Store
from flows.experiments.spot.elastic_run import ElasticRun, PlayedRun, play
from flows.experiments.spot.elastic_shapes import SHAPES, Shape
from flows.experiments.spot.spot_traces import HOUR_S, Trace, steady
from flows.experiments.spot.spot_workers import SPOT

WARM_UP = 6  # steps until the windows have settled
Rows = Iterator[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    shape_name: str
    lengths: str  # of responses, by the name of their law
    steps: int  # that are counted, behind WARM_UP
    seed: int
    hours: float  # of a trace
    trace: Path | None
    memory: Store | None
    played: dict[str, PlayedRun] = field(default_factory=dict)  # what several tables have once

    @property
    def shape(self) -> Shape:
        return SHAPES[self.shape_name].with_lengths(self.lengths)

    def play(self, run: ElasticRun) -> PlayedRun:
        """Begin with the windows that are kept, and keep what was found."""
        if self.memory is None:
            name = repr(run)
            if name not in self.played:
                self.played[name] = play(run)
            return self.played[name]
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
            holds="n_prem",
            seed=self.seed,
        )
        return self.play(replace(run, **others))  # type: ignore[arg-type]


def over(found: PlayedRun, plain: PlayedRun) -> tuple[float, float]:
    """Throughput and tokens per dollar over those of another run."""
    return (
        found.tokens_per_s / plain.tokens_per_s,
        found.tokens_per_dollar / plain.tokens_per_dollar,
    )
