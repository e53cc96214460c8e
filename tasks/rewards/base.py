"""The Reward seam: one finished response in, a verdict with outcome and timings out.

A reward never raises for what a model wrote: bad text is WRONG with a detail. A crash of the verifier itself is INFRA, which
the scheduler excludes from the group; it is never a reward of zero.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from artifacts.records import Generated, Outcome, Prompt, Score


class Reward(Protocol):
    """Scores responses of one domain or more. Called from one thread at a time per instance."""

    name: str

    def score(self, prompt: Prompt, generated: Generated) -> Score:
        """Verdict on one response, within the reward's own time limit."""
        ...

    def close(self) -> None:
        """End worker processes, if there are any."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reward decided, before it is stamped with names and times."""

    reward: float | None  # None exactly with Outcome.INFRA
    outcome: Outcome  # typed result
    detail: str  # reason in a few words, printable ASCII whatever the model wrote


def right(detail: str) -> Verdict:
    """A binary reward's yes."""
    return Verdict(reward=1.0, outcome=Outcome.OK, detail=detail)


def wrong(detail: str) -> Verdict:
    """A binary reward's no: the model's own fault."""
    return Verdict(reward=0.0, outcome=Outcome.WRONG, detail=detail)


def infra(detail: str) -> Verdict:
    """No verdict: the reward or its data failed, not the model."""
    return Verdict(reward=None, outcome=Outcome.INFRA, detail=printable(detail))


def stamp(verdict: Verdict, prompt: Prompt, generated: Generated, *, scorer: str, started_s: float) -> Score:
    """The Score of a verdict reached just now. A WRONG response that hit the token bound is TRUNCATED, reward unchanged."""
    outcome, detail = verdict.outcome, verdict.detail
    if generated.finish_reason == "length":
        outcome = Outcome.TRUNCATED if outcome is Outcome.WRONG else outcome
        detail = f"{detail}, truncated"
    return Score(
        prompt_id=prompt.prompt_id,
        index=generated.index,
        reward=verdict.reward,
        outcome=outcome,
        detail=detail,
        scorer=scorer,
        started_s=started_s,
        finished_s=time.time(),
    )


def printable(text: str, max_chars: int = 400) -> str:
    """One line of printable ASCII: details reach logs and tables, which must not fail on surrogates or control characters."""
    return ascii(" ".join(text.split()))[1:-1][:max_chars]
