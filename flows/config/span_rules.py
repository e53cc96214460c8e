"""Rules for settings that take up a part of a run or of its questions: a warm-up must be shorter
than the run, and some questions must be held out."""

from __future__ import annotations

from artifacts.datasets.registry import CurriculumConfig, TaskConfig
from flows.config.parts import Parts
from flows.config.presets import preset_values


def check_warm_ups(config: Parts) -> None:
    """Raise ValueError for a warm-up that is longer than the run.

    The preset's own learning-rate warm-up may be longer, because the user did not choose it: a
    trial of two steps keeps it, and trains as the first two steps of the whole run do.
    """
    learner, last = config.learner, config.num_steps
    warm_ups = {"learner.optimizer.warmup_steps": learner.optimizer.warmup_steps}
    if learner.has_critic:
        warm_ups["learner.critic.optimizer.warmup_steps"] = learner.critic.optimizer.warmup_steps
        if learner.critic.warmup_steps >= last:
            raise ValueError(
                f"learner.critic.warmup_steps must be less than num_steps ({last}), got"
                f" {learner.critic.warmup_steps}: the policy would never learn; lower it"
            )
    kept = preset_values(config.preset)["learner"]["optimizer"].get("warmup_steps")
    for name, steps in warm_ups.items():
        if steps > last and steps != kept:
            raise ValueError(
                f"{name} must be at most num_steps ({last}), got {steps}: the learning rate would"
                " never be reached; lower it, or raise num_steps"
            )


def check_held_out(config: Parts) -> None:
    """Raise ValueError for a task without held-out questions, since every run evaluates."""
    if field := nothing_held_out(config.task):
        raise ValueError(
            f"task.{field} must be > 0, got 0: a run asks {config.evaluation.num_prompts} held-out"
            " prompts before it and after it (evaluation.num_prompts); raise it"
        )


def nothing_held_out(task: TaskConfig) -> str:
    """The name of the field because of which a task holds out no question; empty if it holds out
    some."""
    if isinstance(task, CurriculumConfig):
        below = nothing_held_out(task.task)
        return below and f"task.{below}"
    apart = getattr(task, "heldout_path", "") or getattr(task, "heldout_split", "")
    if getattr(task, "heldout_prompts", 1) == 0:
        return "heldout_prompts"
    return "heldout_fraction" if getattr(task, "heldout_fraction", 1) == 0 and not apart else ""
