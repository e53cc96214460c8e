"""What held-out questions were answered before and after training, read from a run's evaluations.

Leaves out the scores, which `flows.evaluate` reports, and who shows the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts import layout
from artifacts.journal import Journal
from artifacts.reports.answers import (
    EpisodeChange,
    HeldoutQuestion,
    changes_of,
    markdown,
    questions_of,
    spread,
)
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.evaluate import EvaluationReport

SHOWN_QUESTIONS = 12
SHOWN_EPISODES = 6  # they are longer

Evaluations = Mapping[int, EvaluationReport]  # by the step after which it was made


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutAnswers:
    """The responses of two evaluations."""

    before: Sequence[ResponseRow]  # of the first one
    after: Sequence[ResponseRow]  # of the last one; empty before there is another

    @property
    def questions(self) -> list[HeldoutQuestion]:
        """Every question with its answers."""
        return questions_of(self.before, self.after)

    @property
    def shown(self) -> list[HeldoutQuestion]:
        """Those that a reader meets, from the largest gain to the largest loss."""
        return spread(self.questions, SHOWN_EPISODES if self.episodes else SHOWN_QUESTIONS)

    @property
    def episodes(self) -> list[EpisodeChange]:
        """How the episodes among them changed; empty where there is none."""
        return changes_of(self.before, self.after)

    def markdown(self) -> str:
        """The episodes among them, transcripts included; empty where there is none."""
        return markdown(self.episodes, self.shown) if self.episodes else ""


def read_answers(store: Store, evaluations: Evaluations) -> HeldoutAnswers:
    """The answers of the first and the last of a run's evaluations; at least one is there."""
    asked = Journal(store.child(layout.EVALUATION))
    first, last = min(evaluations), max(evaluations)
    return HeldoutAnswers(before=asked.read(first), after=asked.read(last) if last > first else ())
