"""What a step's episodes come to in figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learner_factories import as_episode, make_group

from artifacts.records import Ending, Group, Outcome, Response
from tasks.episode_figures import episode_figures


def played(
    response: Response,
    turns: list[tuple[tuple[int, ...], int]],
    ending: Ending,
    outcome: Outcome,
) -> Response:
    """The response as an episode whose reset took 2 s and whose turns were answered in 1 s each."""
    assert response.score is not None
    generated = as_episode(response.generated, turns, ending)
    assert generated.episode is not None
    answered = tuple(replace(turn, answered_s=1.0) for turn in generated.episode.turns)
    episode = replace(generated.episode, turns=answered, reset_s=2.0)
    return Response(
        generated=replace(generated, episode=episode),
        score=replace(response.score, outcome=outcome),
    )


def group() -> Group:
    """An episode of two turns that is won, and one of a single turn that is cut."""
    plain = make_group((1, 2), [(3, 4, 5), (6, 7, 8)], [1.0, 0.0])
    first, second = plain.responses
    won = played(first, [((9,), 2), ((8, 7), 1)], Ending.TERMINATED, Outcome.OK)
    cut = played(second, [((9,), 3)], Ending.TOKENS, Outcome.TRUNCATED)
    return replace(plain, responses=(won, cut))


def test_episodes_are_counted_by_turns_tokens_seconds_and_endings() -> None:
    figures = episode_figures([group()])
    assert figures["episode/turns_mean"] == 1.5
    assert figures["episode/turns_max"] == 2
    assert figures["episode/success_share"] == 0.5
    assert figures["episode/environment_s_mean"] == pytest.approx((4.0 + 3.0) / 2)
    assert figures["episode/sampled_tokens"] == 6
    assert figures["episode/given_tokens"] == 4
    assert {name: count for name, count in figures.items() if "ended" in name and count} == {
        "episode/ended_terminated": 1,
        "episode/ended_tokens": 1,
    }


def test_answers_of_one_turn_have_no_figures_of_episodes() -> None:
    assert episode_figures([make_group((1, 2), [(3,)], [1.0])]) == {}
