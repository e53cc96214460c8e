"""What warns before a run collapses: limits on what its steps say of themselves, and the cure.
Pure.

    figures of the steps so far ─▶ a limit passed in several steps in a row ─▶ Alarm

An alarm tells, and stops nothing. A step that scored no token says nothing: it neither counts nor
ends a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

SCORED, ENTROPY = "train/tokens_scored", "train/entropy_nats"
STALE = (
    "lower learner.optimizer.learning_rate, or scheduling.async_ratio where steps overlap, or bound"
    " what single tokens weigh (learner.loss, learner.sequence_mask)"
)
CURES = {
    "train/effective_sample_fraction": f"few tokens decide the updates; {STALE}",
    "train/mismatch_k3": (
        "the learner has moved away from what sampled its tokens;"
        f" {STALE}; if steps without lag are no better, it is the engine's numerics (engine.dtype)"
    ),
    "train/cut_fraction": f"most of what is sampled is not learned from; {STALE}",
    ENTROPY: (
        "the policy stops exploring; lower learner.optimizer.learning_rate, or hold it by"
        " learner.entropy_coefficient or learner.kl_coefficient"
    ),
}


class MonitorConfig(BaseModel):
    """Limits beyond which a run warns; it is never stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps_in_a_row: int = Field(
        default=3,
        ge=1,
        description="How many steps in a row must be beyond a limit before it is told.",
    )
    min_effective_sample_fraction: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "Least effective sample size over the number of trained tokens; 0 never warns."
        ),
    )
    max_mismatch_k3: float = Field(
        default=0.03,
        gt=0,
        description=(
            "Largest k3 estimate of KL(engine || learner) a token; bf16 engines beside a learner of"
            " the same weights have about 0.001."
        ),
    )
    max_cut_fraction: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description=(
            "Largest share of tokens that lose their gradient because they are clipped, masked or"
            " gated; 1 never warns."
        ),
    )
    min_entropy_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Least share of the first step's entropy that must be left; 0 never warns.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningLimit:
    """One limit."""

    figure: str  # name of the metric
    limit: float
    is_least: bool  # whether smaller values are beyond it, not larger ones

    def is_passed(self, value: float) -> bool:
        """Whether the value is beyond the limit; what is no number is."""
        return not (value >= self.limit if self.is_least else value <= self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorWarning:
    """A limit that was passed in several steps in a row."""

    rule: WarningLimit
    step: int  # the last of them
    value: float  # what it had
    num_steps: int  # how many they are

    def __str__(self) -> str:
        rule = self.rule
        beyond = "below" if rule.is_least else "above"
        return (
            f"{rule.figure} was {self.value:.3g} in step {self.step}, {beyond} {rule.limit:.3g}"
            f" for {self.num_steps} steps in a row: {CURES[rule.figure]}"
        )


def warnings_of(
    steps: Sequence[tuple[int, Mapping[str, float]]], config: MonitorConfig
) -> tuple[MonitorWarning, ...]:
    """Every alarm of a run, given its steps with their figures, by step. A limit is told again only
    after a step within it."""
    telling = [(step, figures) for step, figures in steps if figures.get(SCORED)]
    if not telling:
        return ()
    found = (
        alarm
        for rule in _rules(telling[0][1], config)
        for alarm in _alarms_of_rule(rule, telling, config.steps_in_a_row)
    )
    return tuple(sorted(found, key=lambda alarm: alarm.step))


def _rules(first: Mapping[str, float], config: MonitorConfig) -> tuple[WarningLimit, ...]:
    """All limits of a run whose first telling step has these figures."""
    least_entropy = config.min_entropy_share * first.get(ENTROPY, 0.0)
    return (
        WarningLimit(
            figure="train/effective_sample_fraction",
            limit=config.min_effective_sample_fraction,
            is_least=True,
        ),
        WarningLimit(figure="train/mismatch_k3", limit=config.max_mismatch_k3, is_least=False),
        WarningLimit(figure="train/cut_fraction", limit=config.max_cut_fraction, is_least=False),
        WarningLimit(figure=ENTROPY, limit=least_entropy, is_least=True),
    )


def _alarms_of_rule(
    rule: WarningLimit, steps: Sequence[tuple[int, Mapping[str, float]]], num_steps: int
) -> Iterator[MonitorWarning]:
    num_beyond = 0
    for step, figures in steps:
        value = figures.get(rule.figure)
        if value is None:
            continue
        num_beyond = num_beyond + 1 if rule.is_passed(value) else 0
        if num_beyond == num_steps:
            yield MonitorWarning(rule=rule, step=step, value=value, num_steps=num_steps)
