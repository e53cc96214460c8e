"""Warnings about a run that collapses or learns nothing, from the metrics of its steps. Pure.

    a limit passed in several steps in a row        ─▶ MonitorWarning, with the cure
    several flat steps in a row, and why they are   ─▶ NothingLearned, with the cure

A warning stops nothing: at the end of learning flat steps are to be expected. A step that scored no
token is skipped where limits are compared: it neither passes one nor ends a series of steps that
did. Steps without a finite gradient, and those in which a critic learns first, are reported
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from artifacts.fixed_fields import Fixed
from tasks.learner.reports import Skipped, skipped_of

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
    """Limits beyond which a run warns; the run is never stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps_in_a_row: int = Field(
        default=3,
        ge=1,
        description="How many steps in a row must be beyond a limit before it is told.",
    )
    # least effective sample size over the number of trained tokens; 0 never warns
    min_effective_sample_fraction: Fixed[float] = 0.5
    # largest k3 estimate of KL(engine || learner) a token; bf16 engines beside a learner of
    # the same weights have about 0.001
    max_mismatch_k3: Fixed[float] = 0.03
    # largest share of tokens that lose their gradient because they are clipped, masked or
    # gated; 1 never warns
    max_cut_fraction: Fixed[float] = 0.3
    # least share of the first step's entropy that must be left; 0 never warns
    min_entropy_share: Fixed[float] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningLimit:
    """A limit on one metric of a step."""

    figure: str  # name of the metric
    limit: float
    is_least: bool  # whether it is a lower limit, not an upper one

    def is_passed(self, value: float) -> bool:
        """True if the value is beyond the limit, or is no number."""
        return not (value >= self.limit if self.is_least else value <= self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorWarning:
    """A limit that was passed in several steps in a row."""

    rule: WarningLimit
    step: int  # the last of these steps
    value: float  # of the figure in that step
    num_steps: int  # number of these steps

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
    """Every warning of a run, in the order of steps. steps: (number, metrics by name). A limit
    warns again only after a step within it."""
    scored = [(step, figures) for step, figures in steps if figures.get(SCORED)]
    if not scored:
        return ()
    found = (
        warning
        for rule in _rules(scored[0][1], config)
        for warning in _warnings_of_rule(rule, scored, config.steps_in_a_row)
    )
    return tuple(sorted(found, key=lambda warning: warning.step))


def _rules(first: Mapping[str, float], config: MonitorConfig) -> tuple[WarningLimit, ...]:
    """All limits of a run whose first step with scored tokens has these figures."""
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


def _warnings_of_rule(
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


LOWEST, HIGHEST, VERDICTS = "reward/min", "reward/max", "reward/verdicts"
CUT = "reward/truncated_fraction"
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingLearned:
    """Several flat steps in a row: steps whose rewards or gradients tell no responses apart."""

    step: int  # the last of these steps
    num_steps: int  # number of these steps
    what: str  # the flat quantity of the last step
    cure: str  # what to check or change

    def __str__(self) -> str:
        row = f"{self.num_steps} steps in a row, up to step {self.step}"
        return f"{self.what} in {row}: {self.cure}"


def nothing_learned(
    steps: Sequence[tuple[int, Figures]], steps_in_a_row: int
) -> Iterator[NothingLearned]:
    """Yield every series of flat steps once, when it reaches steps_in_a_row steps. steps: (number,
    metrics by name)."""
    num_flat = 0
    for step, figures in steps:
        found = _flat(figures)
        num_flat = num_flat + 1 if found else 0
        if found and num_flat == steps_in_a_row:
            what, cure = found
            yield NothingLearned(step=step, num_steps=num_flat, what=what, cure=cure)


def _flat(figures: Figures) -> tuple[str, str] | None:
    """The flat quantity of a step and its cure; None for a step that may teach something, or of an
    earlier version of this product."""
    if VERDICTS not in figures:
        return None
    if not figures[VERDICTS]:
        if figures.get("round/filtered_prompts"):
            return (
                "every group was filtered, because its answers got the same reward",
                "is the reward right? else ask questions that are neither too easy nor too hard",
            )
        return "no answer had a verdict", "see reward/infra, and the first failure in the log"
    reward = figures[LOWEST]
    if reward == figures[HIGHEST]:
        if figures.get(CUT) == 1.0:
            return (
                f"every answer got {reward:g} and was cut at its bound",
                "raise sampling.max_response_tokens, or ask what is answered in fewer tokens",
            )
        if reward > 0:
            return (
                f"every answer got {reward:g}",
                "nothing is left to learn from such questions, or the reward tells no answers"
                " apart",
            )
        return f"every answer got {reward:g}", "is the reward right?"
    if skipped_of(figures) not in (Skipped.FLAT, Skipped.EMPTY):
        return None
    if figures.get("train/flat_group_fraction") == 1.0:
        return (
            "the answers to each question got the same reward",
            "they have nothing to be compared with; ask questions that are neither too easy nor"
            " too hard, or raise responses_per_prompt",
        )
    if figures.get("train/masked_responses"):
        return (
            "every answer with an advantage was cut at its bound and left out",
            "raise sampling.max_response_tokens, or see learner.overlong",
        )
    return (
        "rewards differed and no token kept a gradient",
        "see train/gated_fraction and train/clip_fraction, and learner.sequence_mask and"
        " learner.loss",
    )
