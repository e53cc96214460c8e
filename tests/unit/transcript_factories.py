"""Recorded episodes of a made-up guessing game, with what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from report_factories import make_row

from artifacts.episodes import Ending, Episode, Turn
from artifacts.records import Fate, Outcome, VersionSpan
from artifacts.tables import ResponseRow

TURN_S, STEP_S, RESET_S = 0.5, 0.25, 1.0
GIVEN, SAMPLED = 4, 2  # tokens of a turn
HOSTILE = "\x1b[31mred\x1b[0m \u202e:smile: [bold]x[/bold] <script>alert(1)</script> \ud800"
WON = (("Guess.", "10", 0.0), ("Higher.", "15", 1.0))
LOST = (("Guess.", "10", 0.0), ("Higher.", "90", 0.0), ("Lower.", "11", 0.0))


def make_turn(said: str, answered: str, reward: float | None, begun_s: float = 0.0) -> Turn:
    """A turn whose reward is None has no answer of the environment yet."""
    acted_s = begun_s + TURN_S
    return Turn(
        num_given=GIVEN,
        num_sampled=SAMPLED,
        observation=said,
        action=answered,
        reward=reward,
        asked_s=begun_s,
        acted_s=acted_s,
        answered_s=None if reward is None else acted_s + STEP_S,
    )


def make_episode_row(
    prompt_id: str = "0/1",
    said: Sequence[tuple[str, str, float | None]] = WON,
    outcome: Outcome | None = Outcome.OK,
    ending: Ending | None = Ending.TERMINATED,
    *,
    index: int = 0,
    step: int = 1,
    fate: Fate | None = None,
    detail: str = "",
) -> ResponseRow:
    """An episode with these turns; its reward is what they paid, unless it has none."""
    turns = tuple(make_turn(*each, begun_s=float(place)) for place, each in enumerate(said))
    reward = sum(turn.reward or 0.0 for turn in turns)
    made = make_row(prompt_id, "", None if outcome is Outcome.INFRA else reward, index=index)
    num_tokens = len(turns) * (GIVEN + SAMPLED)
    generated = replace(
        made.response.generated,
        token_ids=(5,) * num_tokens,
        logprobs=(-0.5,) * num_tokens,
        versions=(VersionSpan(version=step, num_tokens=num_tokens),),
        finish_reason="aborted" if ending is None else "stop",
        episode=Episode(
            turns=turns,
            ending=ending,
            detail=detail,
            last_observation="Right." if reward else "",
            reset_s=RESET_S,
        ),
    )
    assert made.response.score is not None
    score = None if outcome is None else replace(made.response.score, outcome=outcome)
    return replace(
        made,
        step=step,
        fate=fate,
        prompt=replace(made.prompt, domain="guess", text="guess, episode 17", episode_seed=17),
        response=replace(made.response, generated=generated, score=score),
    )
