"""What training changed of held-out episodes: figures and transcripts before and after.

Leaves out which of them are shown (`answers.spread`) and the report page, which draws both itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from artifacts.episodes import Ending
from artifacts.reports.answers import HeldoutAnswer, HeldoutQuestion
from artifacts.reports.episode_figures import (
    ENDED,
    STOPPED,
    SUCCESS,
    TURNS,
    episode_figures,
    played,
)
from artifacts.tables import ResponseRow

UNKNOWN = "–"  # what was not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChange:
    """A figure of all held-out episodes, ready to be printed."""

    name: str
    before: str  # of the model that the run started from
    after: str  # of the last evaluated weights


def changes_of(before: Sequence[ResponseRow], after: Sequence[ResponseRow]) -> list[EpisodeChange]:
    """Success, turns and endings; endings that neither side has are left out, and there is nothing
    of responses of one turn."""
    if not played(before):
        return []
    sides = episode_figures(before), episode_figures(after)
    counts = [
        _change(name, sides, figure, "{:.0f}")
        for name, figure in _endings()
        if any(side.get(figure) for side in sides)
    ]
    return [
        EpisodeChange(name="episodes", before=_number(before), after=_number(after)),
        _change("success", sides, SUCCESS, "{:.1%}"),
        _change("mean turns", sides, TURNS, "{:.2f}"),
        *counts,
    ]


def markdown(changes: Iterable[EpisodeChange], questions: Iterable[HeldoutQuestion]) -> str:
    """The same for a reader of Markdown; transcripts are indented, so that none of their
    characters is markup."""
    lines = ["| held-out episodes | before | after |", "|---|---:|---:|"]
    lines += [f"| {change.name} | {change.before} | {change.after} |" for change in changes]
    for question in questions:
        lines += ["", f"### {question.prompt_id}, {question.domain}, seed {question.seed}"]
        lines += _told("before", question.before)
        lines += _told("after", question.after)
    return "\n".join(lines) + "\n"


def _told(side: str, answers: Iterable[HeldoutAnswer]) -> Iterator[str]:
    """The first transcript of a side."""
    for transcript in [answer.transcript for answer in answers if answer.transcript][:1]:
        told = "\n".join(map(str, transcript.lines))
        indented = "\n".join(f"    {line}" for line in told.split("\n"))
        yield from ("", f"**{side}**", "", f"    {transcript.headline}", indented)


def _endings() -> Iterator[tuple[str, str]]:
    """Every way to end, with the name of its figure."""
    yield from ((f"ended: {ending}", f"{ENDED}{ending}") for ending in Ending)
    yield "stopped", STOPPED


def _change(
    name: str, sides: tuple[Mapping[str, float], ...], figure: str, form: str
) -> EpisodeChange:
    before, after = (form.format(side[figure]) if figure in side else UNKNOWN for side in sides)
    return EpisodeChange(name=name, before=before, after=after)


def _number(rows: Sequence[ResponseRow]) -> str:
    return str(len(played(rows))) if rows else UNKNOWN
