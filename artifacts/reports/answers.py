"""The same held-out questions before and after training, as a reader meets them: what was asked,
what was answered, what it was worth.

Leaves out where the responses lie and what the page looks like (`page`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from artifacts.reports.transcript import Transcript, transcript_of
from artifacts.tables import ResponseRow


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutAnswer:
    """One response to a held-out question."""

    text: str  # as the model wrote it
    reward: float | None  # None where no verdict was reached
    outcome: str  # in a word, and why
    num_tokens: int  # sampled tokens
    transcript: Transcript | None  # of an episode; None for an answer of one turn


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutQuestion:
    """A held-out question with the answers of two weight versions."""

    prompt_id: str  # "heldout/17"
    domain: str  # reward domain
    text: str  # the question as a person would read it
    gold: str  # what the reward compares with
    seed: int | None  # of the episode that both play; None for a question of one turn
    before: tuple[HeldoutAnswer, ...]  # of the model that the run started from
    after: tuple[HeldoutAnswer, ...]  # of the last evaluated weights; empty before there are any

    @property
    def gain(self) -> float:
        """How much more the later answers are worth, in the mean; 0 where a side has no verdict."""
        before, after = _mean(self.before), _mean(self.after)
        return 0.0 if before is None or after is None else after - before


def questions_of(
    before: Iterable[ResponseRow], after: Iterable[ResponseRow]
) -> list[HeldoutQuestion]:
    """Every question of the first evaluation, in its order, with the answers of both."""
    asked: dict[str, list[ResponseRow]] = {}
    for row in before:
        asked.setdefault(row.prompt.prompt_id, []).append(row)
    later: dict[str, list[ResponseRow]] = {}
    for row in after:
        later.setdefault(row.prompt.prompt_id, []).append(row)
    return [
        HeldoutQuestion(
            prompt_id=prompt_id,
            domain=rows[0].prompt.domain,
            text=rows[0].prompt.text,
            gold=rows[0].prompt.gold,
            seed=rows[0].prompt.episode_seed,
            before=_answers(rows),
            after=_answers(later.get(prompt_id, [])),
        )
        for prompt_id, rows in asked.items()
    ]


def spread(questions: Sequence[HeldoutQuestion], count: int) -> list[HeldoutQuestion]:
    """At most `count` of them, evenly from the largest gain to the largest loss: a fair sample,
    where the best ones would flatter and the first ones leave the outcome to chance."""
    ordered = sorted(questions, key=lambda question: (-question.gain, question.prompt_id))
    if len(ordered) <= count or count < 2:
        return ordered[:count]
    places = (round(place * (len(ordered) - 1) / (count - 1)) for place in range(count))
    return [ordered[place] for place in places]


def _answers(rows: Iterable[ResponseRow]) -> tuple[HeldoutAnswer, ...]:
    ordered = sorted(rows, key=lambda row: row.response.generated.index)
    return tuple(_answer(row) for row in ordered)


def _answer(row: ResponseRow) -> HeldoutAnswer:
    generated, score = row.response.generated, row.response.score
    told = "no verdict" if score is None else f"{score.outcome} {score.detail}".strip()
    return HeldoutAnswer(
        text=generated.text,
        reward=None if score is None else score.reward,
        outcome=told,
        num_tokens=generated.num_sampled,
        transcript=transcript_of(row),
    )


def _mean(answers: Sequence[HeldoutAnswer]) -> float | None:
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None
