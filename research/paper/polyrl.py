"""RLBoost (PolyRL, FluidRL): what preemptible workers bring a trainer, in tokens a second and a
dollar.

Segments are drawn by the paper's words, since its trace is not published with its numbers
(`spot.spot_traces`); the paper plays two hours of each, we one. Beside that, what it has not: parts
of RollPacker on top of workers, over the same workers without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from research.ablations.policies import policy_of
from research.paper.experiment import Experiment, FigurePart, Observed, Played, Scale, Steps, total
from research.spot.elastic_run import ElasticRun, play
from research.spot.elastic_shapes import MAX_BATCH, SHAPES
from research.spot.spot_traces import HOUR_S, SEGMENTS, Trace, steady
from tasks.scheduling.stream_training import StreamTrainerConfig

ALONE = "none"  # the trainer without workers
PERIOD_HOURS = 0.5  # of a segment for each period of the scale
WARM_UP = 6  # steps until the windows have settled
COUNTED = 4  # steps after them
STATIC = {"8B": (1, 2, 3, 4), "14B": (1,)}  # workers that are there for good
BEYOND = {"8B": ("rlboost", "rollpacker")}  # lengths under which other policies are played, too
BEYOND_WORKERS = (0, 2, 4)
BEYOND_COUNTED = 5  # steps: four short rounds and a long one
AS_PUBLISHED = "polyrl"
# engines of the own devices are full at the beginning of a step, so that fewer may be, too
STREAMS = StreamTrainerConfig(enabled=True, max_running_per_engine=MAX_BATCH)
TAIL_BATCHING = policy_of({"kind": "tail_batching"})
# fields of ElasticRun, whose rounds are synchronous ones by default; Any: their values
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    AS_PUBLISHED: {},
    "stream_trainer": {"stream_trainer": STREAMS},
    "tail_batching": {"policy": TAIL_BATCHING},
    "both": {"policy": TAIL_BATCHING, "stream_trainer": STREAMS},
    "both_by_kind": {
        "policy": TAIL_BATCHING,
        "stream_trainer": STREAMS,
        "windows_by_kind": True,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCase:
    """A trainer and the workers of a segment, or so many for good."""

    model: str
    segment: str = ALONE
    hours: float = 0.0  # of the segment; 0: steps are counted
    num_workers: int = 0
    seed: int = 0
    lengths: str = "rlboost"
    variant: str = AS_PUBLISHED
    counted: int = COUNTED  # steps after the windows have settled

    @property
    def label(self) -> str:
        workers = f"segment {self.segment}" if self.hours else f"{self.num_workers} workers"
        variant = "" if self.variant == AS_PUBLISHED else f", {self.variant}"
        return f"RLBoost {self.model}, {workers}{variant}, lengths of {self.lengths}"

    @property
    def weight(self) -> float:
        return 5.0 + 40 * self.hours

    @property
    def trace(self) -> Trace:
        if self.segment in SEGMENTS:
            return SEGMENTS[self.segment].trace(self.seed, self.hours * HOUR_S)
        return steady(self.num_workers)

    @property
    def run(self) -> ElasticRun:
        shape = SHAPES[self.model.lower()].with_lengths(self.lengths)
        if self.hours:
            until_s = self.hours * HOUR_S
            return ElasticRun(
                shape=shape, trace=self.trace, until_s=until_s, holds="n_prem", seed=self.seed
            )
        steps, others = WARM_UP + self.counted, VARIANTS[self.variant]
        return ElasticRun(shape=shape, trace=self.trace, num_steps=steps, seed=self.seed, **others)

    def play(self) -> tuple[Observed, ...]:
        steps = play(self.run).steps
        return tuple(
            Observed(
                kind=step.kind,
                figures={
                    "step_s": step.end_s - step.start_s,
                    "tokens": step.tokens,
                    "dollars": step.figures["cost/dollars"],
                    "workers": step.num_workers,
                },
            )
            for step in (steps if self.hours else steps[WARM_UP:])
        )


def polyrl(scale: Scale) -> Experiment:
    """Segments of three models, and workers that stay."""
    parts: list[FigurePart] = []
    for name in SHAPES:
        model = name.upper()
        parts.append(_segments(model, scale))
        if model in STATIC:
            parts.append(_static(model, scale))
        parts.extend(_beyond(model, lengths, scale) for lengths in BEYOND.get(model, ()))
    return Experiment(
        name="polyrl",
        about="RLBoost: throughput and tokens a dollar over those of the trainer alone",
        unit="times",
        parts=tuple(parts),
    )


def _segments(model: str, scale: Scale) -> FigurePart:
    hours = scale.periods * PERIOD_HOURS
    return FigurePart(
        name=f"polyrl/{model}",
        cases={
            segment: SpotCase(model=model, segment=segment, hours=hours, seed=scale.seed)
            for segment in (ALONE, *SEGMENTS)
        },
        figures=partial(_of_segments, f"polyrl/{model}"),
    )


def _of_segments(name: str, played: Played) -> dict[str, float]:
    alone = played[ALONE]
    gains = {segment: _gains(alone, played[segment]) for segment in SEGMENTS}
    found = {f"{name}/{figure}": fmean(gain[figure] for gain in gains.values()) for figure in OVER}
    return found | dict(_each(name, gains))


def _each(name: str, gains: dict[str, dict[str, float]]) -> Iterator[tuple[str, float]]:
    for segment, gain in gains.items():
        for figure, value in gain.items():
            yield f"{name}/segment_{segment.lower()}/{figure}", value


def _static(model: str, scale: Scale) -> FigurePart:
    return FigurePart(
        name=f"polyrl/{model}/static",
        cases={
            str(count): SpotCase(model=model, num_workers=count, seed=scale.seed)
            for count in (0, *STATIC[model])
        },
        figures=partial(_of_counts, f"polyrl/{model}/static"),
    )


def _of_counts(name: str, played: Played) -> dict[str, float]:
    return {
        f"{name}/{count}/{figure}": gain
        for count, steps in played.items()
        if count != "0"
        for figure, gain in _gains(played["0"], steps).items()
    }


def _beyond(model: str, lengths: str, scale: Scale) -> FigurePart:
    name = f"polyrl/{model}/beyond/{lengths}"
    return FigurePart(
        name=name,
        cases={
            f"{variant}/{count}": SpotCase(
                model=model,
                num_workers=count,
                seed=scale.seed,
                lengths=lengths,
                variant=variant,
                counted=BEYOND_COUNTED,
            )
            for variant in VARIANTS
            for count in BEYOND_WORKERS
        },
        figures=partial(_over_published, name),
    )


def _over_published(name: str, played: Played) -> dict[str, float]:
    """Each policy over the published one with as many workers."""
    return {
        f"{name}/{variant}/{count}/{figure}": gain
        for variant in VARIANTS
        for count in BEYOND_WORKERS
        if variant != AS_PUBLISHED
        for figure, gain in _gains(
            played[f"{AS_PUBLISHED}/{count}"], played[f"{variant}/{count}"]
        ).items()
    }


def throughput(steps: Steps) -> float:
    """Tokens a second."""
    return total(steps, "tokens") / total(steps, "step_s")


def tokens_per_dollar(steps: Steps) -> float:
    return total(steps, "tokens") / total(steps, "dollars")


OVER = {"throughput": throughput, "tokens_per_dollar": tokens_per_dollar}


def _gains(alone: Steps, steps: Steps) -> dict[str, float]:
    return {figure: of(steps) / of(alone) for figure, of in OVER.items()}
