"""A configuration with environments is whole, or one sentence says what it lacks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.datasets.rows import Row, question_row
from artifacts.models.character_tokenizer import character_tokenizer
from flows.commands.command_line import assemble
from flows.config.overlay import overlay
from flows.config.presets import preset_values
from flows.config.run_config import RunConfig
from research.kills.delayed import DelayedConfig
from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.episodes.bridge import make_bridge
from tasks.environments.episodes.prompts import episode_prompt
from tasks.environments.games.guess import GuessConfig

BRIDGE = make_bridge(character_tokenizer(), (2,), GuessConfig(style="terse").head(), "tiny")


def seed_row(gold: str) -> Row:
    return Row(domain="guess", messages=(), gold=gold, text="guess, episode 12")


def test_the_agents_presets_play_what_they_were_warmed_up_on() -> None:
    tiny = preset_values("tiny-agent")
    assert tiny["environments"]["guess"] == tiny["model"]["game"]
    agent = RunConfig(preset="agent")  # type: ignore[call-arg]
    assert agent.batch.prompts_per_step * agent.batch.responses_per_prompt == 64


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"rewards": {"*": {"kind": "math_answer"}}},
            "'guess' has 'math_answer'; set rewards.guess.kind=episode",
        ),
        (
            {"rewards": {"grid": {"kind": "episode"}}},
            "rewards.grid has none; add environments.grid",
        ),
        (
            {
                "rewards": {"*": {"kind": "episode", "discount": 0.9}},
                "learner": {"advantage": {"kind": "turn_returns"}},
            },
            "turn_returns', which discounts .* rewards.guess.discount 0.9.*set learner.advantage.g",
        ),
        (
            {"episodes": {"max_turn_tokens": 32}},
            r"leave room for an observation in sampling.max_response_tokens \(32\).*got 32; lower",
        ),
        (
            {"deadlines": {"progress_s": 20}},
            "progress_s must be longer than an environment may take .*got 20 s.*raise it",
        ),
        (
            {"model": {"game": {"kind": "bandit"}}},
            "heedful_share of model.profile must be 0 with the game 'bandit', which knows no"
            " heedful moves, got 0.25; take the profile usual, or the game guess",
        ),
        (
            {"model": {"game": {"kind": "chess"}}},
            r"model.game must be an environment.*'chess'.*write it as there",
        ),
        (
            {"scheduling": {"kind": "asynchronous", "at_update": "drain"}},
            "at_update=drain finishes what engines have begun.*take interrupt or keep",
        ),
    ],
)
def test_parts_that_do_not_fit_are_named_with_the_cure(
    changes: dict[str, Any],  # Any: JSON values
    sentence: str,
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        RunConfig.model_validate(overlay({"preset": "tiny-agent"}, changes))


SCHEDULES = [  # as docs/episodes.md has them
    ("scheduling.kind=tail_batching",),
    (
        "scheduling.kind=tail_batching",
        "scheduling.prompt_overprovision=1",
        "scheduling.response_overprovision=1.25",
    ),
    ("scheduling.kind=asynchronous", "cluster.roles=rollout: 0, learner: 1"),
]


@pytest.mark.parametrize("assignments", SCHEDULES)
def test_every_documented_schedule_takes_episodes(assignments: tuple[str, ...]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
    said = " ".join(shlex.join(["--set", assignment]) for assignment in assignments)
    assert f"{said} " in text
    config = RunConfig.model_validate(assemble("tiny-agent", "", assignments))
    assert config.environments["guess"].kind == "guess"
    assert f"scheduling.kind={config.scheduling.kind}" == assignments[0]


def test_the_documented_delays_are_of_the_presets_game() -> None:
    text = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    (line,) = re.findall(r"--set '(environments\.guess=.*?)'", text, re.DOTALL)
    config = RunConfig.model_validate(assemble("tiny-agent", "", (line,)))
    delayed = config.environments["guess"]
    assert isinstance(delayed, CustomEnvironmentConfig)
    assert delayed.path == "research.kills.delayed:delayed"
    assert (
        DelayedConfig.model_validate(delayed.kwargs).environment
        == RunConfig(preset="tiny-agent").environments["guess"]
    )  # type: ignore[call-arg]


def test_a_row_of_seeds_becomes_the_head_and_the_seed() -> None:
    prompt = episode_prompt(seed_row("12"), BRIDGE, "0/3", 10)
    assert (prompt.token_ids, prompt.episode_seed) == (BRIDGE.head, 12)
    assert (prompt.prompt_id, prompt.domain, prompt.text) == ("0/3", "guess", "guess, episode 12")


def test_rows_that_are_no_seeds_and_heads_without_room_are_named() -> None:
    with pytest.raises(ValueError, match=r"row 0/3 of 'guess' has 'many'; use task.kind=seeds"):
        episode_prompt(seed_row("many"), BRIDGE, "0/3", 10)
    with pytest.raises(ValueError, match="at most 18 digits"):
        episode_prompt(seed_row(str(2**63)), BRIDGE, "0/3", 10)
    with pytest.raises(ValueError, match=r"row 0/4 of 'sums' has '-8'"):
        episode_prompt(question_row("sums", "3-11=", "-8"), BRIDGE, "0/4", 10)
    with pytest.raises(ValueError, match=r"must fit in 0 tokens.*'guess' has 1; raise"):
        episode_prompt(seed_row("12"), BRIDGE, "0/3", 0)
