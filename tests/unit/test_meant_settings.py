"""Settings that nobody can mean are refused with rule, value and cure; what a preset brings along
is no such setting."""

from __future__ import annotations

import pytest

from flows.commands.algebra_rows import algebra_rows
from flows.commands.command_line import assemble
from flows.config.presets import PRESETS
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence
from tasks.learner.learner_config import AdamWConfig

WARM_UP = "learner.optimizer.warmup_steps"


def made(preset: str, *assignments: str) -> RunConfig:
    return RunConfig.model_validate(assemble(preset, "", assignments))


@pytest.mark.parametrize(
    ("preset", "assignments", "told"),
    [
        (
            "tiny",
            ["kind=soft", "max_tokens=50", "buffer_tokens=51"],
            "learner.overlong.buffer_tokens must be at most max_tokens (50), got 51",
        ),
        ("tiny", ["optimizer.warmup_steps=37"], f"{WARM_UP} must be at most num_steps (36), got"),
        (
            "tiny",
            ["advantage.kind=gae", "critic.optimizer.warmup_steps=37"],
            "learner.critic.optimizer.warmup_steps must be at most num_steps (36), got 37",
        ),
        (
            "tiny",
            ["advantage.kind=gae", "critic.warmup_steps=36"],
            "learner.critic.warmup_steps must be less than num_steps (36), got 36",
        ),
        (
            "tiny",
            ["loss.kind=topr", "loss.positive_weight=0", "loss.negative_weight=0"],
            "learner.loss.positive_weight or negative_weight must be > 0, got 0",
        ),
        (
            "tiny-agent",
            [
                "advantage.kind=anchor_states",
                "advantage.episode_weight=0",
                "advantage.state_weight=0",
            ],
            "learner.advantage.episode_weight or state_weight must be > 0, got 0",
        ),
    ],
)
def test_a_learner_that_cannot_be_meant_is_refused(
    preset: str, assignments: list[str], told: str
) -> None:
    group = "learner.overlong." if assignments[0] == "kind=soft" else "learner."
    with pytest.raises(ValueError, match="rror") as caught:
        made(preset, *(group + assignment for assignment in assignments))
    assert told in sentence(caught.value)


@pytest.mark.parametrize(
    ("preset", "field"),
    [
        ("tiny", "task.heldout_prompts"),
        ("smollm2-mixed", "task.heldout_prompts"),
        ("tiny-agent", "task.heldout_prompts"),
        ("one-gpu", "task.heldout_fraction"),
    ],
)
def test_a_task_that_holds_out_nothing_is_refused(preset: str, field: str) -> None:
    with pytest.raises(ValueError, match="rror") as caught:
        made(preset, f"{field}=0")
    assert f"{field} must be > 0, got 0: a run asks" in sentence(caught.value)


def test_held_out_questions_of_their_own_need_no_share() -> None:
    made("one-gpu", "task.heldout_fraction=0", "task.heldout_path=asked.jsonl")


def test_a_planner_begins_within_its_sizes() -> None:
    words = ["planner.enabled=true", "planner.max_tensor_parallel_size=1"]
    with pytest.raises(ValueError, match="rror") as caught:
        made("tiny", *words, "engine.tensor_parallel_size=2")
    assert "planner.max_tensor_parallel_size must be at least" in sentence(caught.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_trial_of_two_steps_keeps_the_warm_up_of_its_preset(preset: str) -> None:
    trial = made(preset, "num_steps=2")
    assert trial.learner.optimizer == made(preset).learner.optimizer
    assert RunConfig.model_validate(trial.model_dump(mode="json")) == trial, "as a manifest has it"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "2e-05, constant"),
        ({"warmup_steps": 4}, "up to 2e-05 over 4 steps of warm-up, then constant"),
        ({"decay_steps": 40}, "2e-05, down to 2e-06 by step 40"),
        (
            {"warmup_steps": 4, "decay_steps": 40, "floor_fraction": 0.5},
            "up to 2e-05 over 4 steps of warm-up, then down to 1e-05 by step 40",
        ),
    ],
)
def test_the_learning_rate_is_told_with_its_warm_up(fields: dict[str, float], told: str) -> None:
    assert AdamWConfig.model_validate(fields).explain() == told


def test_explain_says_where_a_run_ends_before_its_rate_is_reached() -> None:
    assert dict(algebra_rows(made("tiny-agent")))["learning rate"] == (
        "up to 0.001 over 10 steps of warm-up, then constant"
    )
    assert dict(algebra_rows(made("tiny-agent", "num_steps=2")))["learning rate"].endswith(
        "; the run ends before, at 0.0002"
    )
