"""Held-out questions and episodes before and after training: each question with its answers, and
figures and transcripts of episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from artifacts.episodes import Ending
from artifacts.printable import CHAIN_SUM, plain_signs
from artifacts.records import Fate, Prompt, ShownPicture
from artifacts.reports.episode_figures import (
    ENDED,
    STOPPED,
    SUCCESS,
    TURNS,
    episode_figures,
    played,
)
from artifacts.reports.transcript import Transcript, transcript_of
from artifacts.tables import ResponseRow

Item = TypeVar("Item")
LEFT_OVER = (Fate.ABORTED, Fate.DISCARDED, Fate.STALE)  # of responses that no group took


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutAnswer:
    """One response to a held-out question."""

    text: str  # as the model wrote it
    reward: float | None  # None without a verdict
    outcome: str  # in a word, and its reason
    num_tokens: int  # sampled tokens
    transcript: Transcript | None  # of an episode; None for an answer of one turn


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutQuestion:
    """A held-out question with the answers of two weight versions."""

    prompt: Prompt  # the question, or the seed of the episode that both play
    before: tuple[HeldoutAnswer, ...]  # of the model that the run started from
    after: tuple[HeldoutAnswer, ...]  # of the last evaluated weights; empty before there are any

    @property
    def answers(self) -> tuple[HeldoutAnswer, ...]:
        """The answers of both."""
        return (*self.before, *self.after)

    @property
    def gain(self) -> float:
        """Mean reward of the answers after training minus the mean before it; 0 if either side has
        no verdicts."""
        before, after = _mean(self.before), _mean(self.after)
        return 0.0 if before is None or after is None else after - before


def questions_of(
    before: Iterable[ResponseRow], after: Iterable[ResponseRow]
) -> list[HeldoutQuestion]:
    """Collect the questions of the first evaluation, in its order, each with the answers of both
    evaluations."""
    earlier, later = _by_prompt(before), _by_prompt(after)
    return [
        HeldoutQuestion(
            prompt=rows[0].prompt,
            before=_answers(rows),
            after=_answers(later.get(prompt_id, [])),
        )
        for prompt_id, rows in earlier.items()
    ]


def spread(questions: Sequence[HeldoutQuestion], count: int) -> list[HeldoutQuestion]:
    """Choose at most `count` questions, evenly spaced from the largest gain to the largest loss:
    the best questions would flatter the run, and the first ones are arbitrary."""
    ordered = sorted(questions, key=lambda question: (-question.gain, question.prompt.prompt_id))
    return evenly(ordered, count)


def evenly(ordered: Sequence[Item], count: int) -> list[Item]:
    """Choose at most `count` items, evenly spaced, the first and the last among them."""
    if len(ordered) <= count or count < 2:
        return list(ordered[:count])
    places = (round(place * (len(ordered) - 1) / (count - 1)) for place in range(count))
    return [ordered[place] for place in places]


def distinct(questions: Iterable[HeldoutQuestion]) -> list[HeldoutQuestion]:
    """The questions without those that ask the same as an earlier one. Episodes differ by seed."""
    asked: dict[tuple[str, int | None], HeldoutQuestion] = {}
    for question in questions:
        asked.setdefault((question.prompt.identity, question.prompt.episode_seed), question)
    return list(asked.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """A training question with the answers of one step."""

    step: int  # the step that generated them
    prompt: Prompt
    answers: tuple[HeldoutAnswer, ...]  # the best first


def shown_pictures(
    questions: Iterable[HeldoutQuestion | TrainingSample],
) -> Iterator[ShownPicture]:
    """Yield the pictures of questions, and of the episodes among their answers."""
    for question in questions:
        yield from question.prompt.pictures
        for answer in question.answers:
            for line in answer.transcript.lines if answer.transcript else ():
                yield from line.pictures


def training_samples(step: int, rows: Iterable[ResponseRow], count: int) -> list[TrainingSample]:
    """Choose at most `count` questions of a step that were scored and not left over, evenly spaced
    from the largest mean reward to the least."""
    scored = (row for row in rows if row.response.score and row.fate not in LEFT_OVER)
    asked = {
        group[0].prompt.identity: (group[0].prompt, _answers(group))
        for group in _by_prompt(scored).values()
    }
    ordered = sorted(asked.values(), key=lambda found: -(_mean(found[1]) or 0.0))
    return [
        TrainingSample(
            step=step,
            prompt=prompt,
            answers=tuple(sorted(answers, key=lambda answer: -(answer.reward or 0.0))),
        )
        for prompt, answers in evenly(ordered, count)
    ]


def _by_prompt(rows: Iterable[ResponseRow]) -> dict[str, list[ResponseRow]]:
    found: dict[str, list[ResponseRow]] = {}
    for row in map(_readable, rows):
        found.setdefault(row.prompt.prompt_id, []).append(row)
    return found


def _readable(row: ResponseRow) -> ResponseRow:
    """The row with sums in plain signs, which the tiny model writes with letters; others stay."""
    if row.prompt.domain != CHAIN_SUM:
        return row
    said = replace(row.response.generated, text=plain_signs(row.response.generated.text))
    return replace(
        row,
        prompt=replace(row.prompt, text=plain_signs(row.prompt.text)),
        response=replace(row.response, generated=said),
    )


def _answers(rows: Iterable[ResponseRow]) -> tuple[HeldoutAnswer, ...]:
    answers: list[HeldoutAnswer] = []
    for row in sorted(rows, key=lambda row: row.response.generated.index):
        generated, score = row.response.generated, row.response.score
        answer = HeldoutAnswer(
            text=generated.text,
            reward=None if score is None else score.reward,
            outcome="no verdict" if score is None else f"{score.outcome} {score.detail}".strip(),
            num_tokens=generated.num_sampled,
            transcript=transcript_of(row),
        )
        answers.append(answer)
    return tuple(answers)


def _mean(answers: Sequence[HeldoutAnswer]) -> float | None:
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


UNKNOWN = "–"  # shown for a figure that was not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChange:
    """A figure over all held-out episodes before and after training, as text."""

    name: str
    before: str  # of the model that the run started from
    after: str  # of the last evaluated weights


def changes_of(before: Sequence[ResponseRow], after: Sequence[ResponseRow]) -> list[EpisodeChange]:
    """Success, turns and endings of held-out episodes before and after training; empty for
    responses of one turn. Endings that occur on neither side are left out."""
    if not played(before):
        return []
    sides = episode_figures(before), episode_figures(after)
    endings = [*((f"ended: {end}", f"{ENDED}{end}") for end in Ending), ("stopped", STOPPED)]
    counts = [
        _change(name, sides, figure, "{:.0f}")
        for name, figure in endings
        if any(side.get(figure) for side in sides)
    ]
    return [
        EpisodeChange(name="episodes", before=_number(before), after=_number(after)),
        _change("success", sides, SUCCESS, "{:.1%}"),
        _change("mean turns", sides, TURNS, "{:.2f}"),
        *counts,
    ]


def markdown(changes: Iterable[EpisodeChange], questions: Iterable[HeldoutQuestion]) -> str:
    """Write changes and transcripts as Markdown. Transcripts are indented, so that Markdown takes
    none of their characters for markup."""
    lines = ["| held-out episodes | before | after |", "|---|---:|---:|"]
    lines += [f"| {change.name} | {change.before} | {change.after} |" for change in changes]
    for question in questions:
        asked = question.prompt
        lines += ["", f"### {asked.prompt_id}, {asked.domain}, seed {asked.episode_seed}"]
        lines += _first_transcript("before", question.before)
        lines += _first_transcript("after", question.after)
    return "\n".join(lines) + "\n"


def _first_transcript(side: str, answers: Iterable[HeldoutAnswer]) -> Iterator[str]:
    """Lines of Markdown with the first transcript of a side; none without a transcript."""
    for transcript in [answer.transcript for answer in answers if answer.transcript][:1]:
        text = "\n".join(map(str, transcript.lines))
        indented = "\n".join(f"    {line}" for line in text.split("\n"))
        yield from ("", f"**{side}**", "", f"    {transcript.headline}", indented)


def _change(
    name: str, sides: tuple[Mapping[str, float], ...], figure: str, form: str
) -> EpisodeChange:
    before, after = (form.format(side[figure]) if figure in side else UNKNOWN for side in sides)
    return EpisodeChange(name=name, before=before, after=after)


def _number(rows: Sequence[ResponseRow]) -> str:
    return str(len(played(rows))) if rows else UNKNOWN
