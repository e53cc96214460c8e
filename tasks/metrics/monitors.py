"""Warnings about a run that collapses or learns nothing, from the metrics of its steps. Pure.

A warning stops nothing: at the end of learning flat steps are to be expected. Leaves out steps
without a finite gradient, and those in which a critic learns first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed
from tasks.learner.reports import Skipped, skipped_of

Figures = Mapping[str, float]

SCORED, ENTROPY = "train/tokens_scored", "train/entropy_nats"
DEAD = "train/dead_expert_fraction"
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
    DEAD: (
        "experts die: no token of these steps reached them, and they learn no more; lower"
        " learner.optimizer.learning_rate, or train more tokens a step"
    ),
    ENTROPY: (
        "the policy stops exploring; lower learner.optimizer.learning_rate, or hold it by"
        " learner.entropy_coefficient or learner.kl_coefficient"
    ),
}


class MonitorConfig(FrozenConfig):
    """Limits beyond which a run warns; the run is never stopped."""

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
    # largest share of a mixture's experts without a token; 1 never warns
    max_dead_expert_fraction: Fixed[float] = 0.1
    # least share of the first step's entropy that must be left; 0 never warns
    min_entropy_share: Fixed[float] = 0.1


class StepWarning(NamedTuple):
    """A warning about several steps in a row."""

    step: int  # the last of these steps
    text: str


def warnings_of(
    steps: Sequence[tuple[int, Figures]], config: MonitorConfig
) -> tuple[StepWarning, ...]:
    """The warnings about limits, in the order of steps. A limit warns again only after a step
    within it. steps: (number, metrics by name)."""
    # other steps neither pass a limit nor end a series of steps that did
    scored = [(step, figures) for step, figures in steps if figures.get(SCORED)]
    if not scored:
        return ()
    limits = (  # metric, limit, True for a lower limit
        ("train/effective_sample_fraction", config.min_effective_sample_fraction, True),
        ("train/mismatch_k3", config.max_mismatch_k3, False),
        ("train/cut_fraction", config.max_cut_fraction, False),
        (DEAD, config.max_dead_expert_fraction, False),
        (ENTROPY, config.min_entropy_share * scored[0][1].get(ENTROPY, 0.0), True),
    )
    found = [
        warning
        for figure, limit, is_least in limits
        for warning in _warnings_of_limit(figure, limit, is_least, scored, config.steps_in_a_row)
    ]
    return tuple(sorted(found, key=lambda warning: warning.step))


def _warnings_of_limit(
    figure: str,
    limit: float,
    is_least: bool,
    steps: Sequence[tuple[int, Figures]],
    steps_in_a_row: int,
) -> Iterator[StepWarning]:
    num_beyond = 0
    for step, figures in steps:
        value = figures.get(figure)
        if value is None:
            continue
        is_within = value >= limit if is_least else value <= limit  # no number is not within
        num_beyond = 0 if is_within else num_beyond + 1
        if num_beyond == steps_in_a_row:
            beyond = "below" if is_least else "above"
            text = (
                f"{figure} was {value:.3g} in step {step}, {beyond} {limit:.3g}"
                f" for {num_beyond} steps in a row: {CURES[figure]}"
            )
            yield StepWarning(step, text)


LOWEST, HIGHEST, VERDICTS = "reward/min", "reward/max", "reward/verdicts"
CUT = "reward/truncated_fraction"


def nothing_learned(
    steps: Sequence[tuple[int, Figures]], steps_in_a_row: int
) -> Iterator[StepWarning]:
    """Warn of every series of flat steps, whose rewards or gradients tell no responses apart, once:
    when it reaches steps_in_a_row steps. steps: (number, metrics by name)."""
    num_flat = 0
    for step, figures in steps:
        found = flat_cause(figures)
        num_flat = num_flat + 1 if found else 0
        if found and num_flat == steps_in_a_row:
            what, cure = found
            row = f"{num_flat} steps in a row, up to step {step}"
            yield StepWarning(step, f"{what} in {row}: {cure}")


def flat_cause(figures: Figures) -> tuple[str, str] | None:
    """The flat quantity of a step and its cure; None if it may teach something, or is too old."""
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
