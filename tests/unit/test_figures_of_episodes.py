"""Episodes in figures: of a step, of what it trained against what it started, and over a run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from plan_factories import make_report
from report_factories import make_row
from transcript_factories import LOST, RESET_S, STEP_S, TURN_S, WON, make_episode_row

from artifacts.episodes import Ending
from artifacts.records import Fate, Outcome
from artifacts.reports.episode_figures import (
    LONGEST,
    STARTED_TURNS,
    SUCCESS,
    TRAINED_TURNS,
    TURNS,
    episode_figures,
    step_episode_figures,
)
from artifacts.reports.plots import episodes_by_step
from tasks.metrics.step_metrics import episode_metrics

STOPPED = ((*LOST, ("Higher.", "12", None)), None, None)
ROWS = [
    make_episode_row("0/0", WON, fate=Fate.TRAINED),
    make_episode_row("0/0", LOST, Outcome.WRONG, index=1, fate=Fate.TRAINED),
    make_episode_row("0/0", *STOPPED, index=2, fate=Fate.ABORTED),
    make_episode_row("0/1", (), Outcome.INFRA, Ending.CRASHED, fate=Fate.DISCARDED),
    make_episode_row("0/2", LOST, Outcome.TRUNCATED, Ending.TURNS, fate=Fate.DISCARDED),
    make_row("0/3", "3", 1.0),
]


def test_figures_of_a_step_have_their_names_and_values() -> None:
    figures = episode_figures(ROWS)
    waited_s = 5 * RESET_S + 11 * STEP_S
    assert figures == {
        "episode/ended_terminated": 2.0,
        "episode/ended_truncated": 0.0,
        "episode/ended_turns": 1.0,
        "episode/ended_tokens": 0.0,
        "episode/ended_time": 0.0,
        "episode/ended_crashed": 1.0,
        "episode/ended_unanswered": 0.0,
        "episode/stopped": 1.0,
        "episode/turns_mean": pytest.approx(8 / 3),  # of the whole ones
        "episode/turns_max": 3.0,
        "episode/success_share": pytest.approx(1 / 3),  # of those with a verdict
        "episode/environment_s": pytest.approx(waited_s),
        "episode/environment_share": pytest.approx(waited_s / (waited_s + 12 * TURN_S)),
        "episode/sampled_tokens": 24.0,
        "episode/given_tokens": 48.0,
        "episode/resumed": 0.0,
        "episode/replayed_turns": 0.0,
        "episode/restarted": 0.0,
        "episode/forgotten_tokens": 0.0,
    }
    assert all(re.fullmatch(r"[a-z]+/[a-z0-9_]+", name) for name in figures)


def test_actions_are_counted_by_what_their_environment_calls_them() -> None:
    """What has no name or one that no figure may have is left out."""
    called = ["consistent", "consistent", "invalid", "Not a name"]
    made = make_episode_row("0/0", (("Guess.", "10", 0.0),) * 5)
    generated = made.response.generated
    assert generated.episode is not None
    named = tuple(
        replace(turn, info=(("action", name), ("terms", "2")))
        for turn, name in zip(generated.episode.turns, called, strict=False)
    )
    episode = replace(
        generated.episode,
        turns=(*named, generated.episode.turns[-1]),
        num_resumed=2,
        num_restarted=1,
        num_forgotten=7,
    )
    response = replace(made.response, generated=replace(generated, episode=episode))
    figures = episode_figures([replace(made, response=response)])
    shares = {name: share for name, share in figures.items() if "/action_" in name}
    assert shares == {
        "episode/action_consistent_share": 0.5,
        "episode/action_invalid_share": 0.25,
    }
    assert (figures["episode/resumed"], figures["episode/restarted"]) == (2, 1)
    assert figures["episode/forgotten_tokens"] == 7


def test_a_step_without_episodes_has_none_of_the_figures() -> None:
    assert episode_figures([make_row("0/1", "3", 1.0)]) == {}
    assert step_episode_figures([make_row("0/1", "3", 1.0)], {"0/1"}) == {}


def test_figures_of_nothing_but_failures_have_no_turns_and_no_success() -> None:
    figures = episode_figures([make_episode_row("0/1", (), Outcome.INFRA, Ending.UNANSWERED)])
    assert figures["episode/ended_unanswered"] == 1
    assert not {TURNS, LONGEST, SUCCESS} & figures.keys()


def test_trained_turns_are_compared_with_all_that_was_started_for_decided_prompts() -> None:
    figures = step_episode_figures(ROWS, {"0/0"})
    assert (figures[TRAINED_TURNS], figures[STARTED_TURNS]) == (2.5, 3.0)
    assert figures["episode/trained_turns_share"] == pytest.approx(2.5 / 3)
    untrained = step_episode_figures(ROWS, {"0/2"})
    assert not {TRAINED_TURNS, STARTED_TURNS} & untrained.keys()


def test_a_step_counts_what_its_round_trained_filtered_or_gave_up() -> None:
    rollout = replace(make_report(()).rollout, accepted=("0/0",), filtered=(), dropped=("0/1",))
    figures = episode_metrics(rollout, ROWS)
    assert figures[STARTED_TURNS] == pytest.approx(9 / 4)


def test_the_plot_shows_success_and_turns() -> None:
    steps = [(step, step_episode_figures(ROWS, {"0/0"})) for step in (1, 2)]
    success, turns = episodes_by_step([*steps, (3, {})]).axes
    assert [list(line.get_xdata()) for line in success.lines] == [[1, 2]]
    assert {line.get_label() for line in turns.lines} == {"longest", "mean", "mean of trained"}
