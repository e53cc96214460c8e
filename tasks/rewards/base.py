"""The interface `Reward`: one finished response in, a score with outcome and timings out.

A reward never raises an error for what a model wrote: bad text is WRONG with a detail. A crash of
the verifier itself is INFRA, which the scheduler excludes from the group; it is never a reward of
zero. A number above LARGEST_REWARD or not finite is INFRA, too, as no step could be trained on it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from artifacts.printable import printable_line
from artifacts.records import CaseResult, Generated, Outcome, Prompt, Score
from tasks.isolation.interrupt import Interrupt, Interrupted

LARGEST_REWARD = 1e6  # squares, and sums over a step's tokens, stay finite in float32


class Reward(ABC):
    """Scores responses of one or more domains. Only one thread at a time may call an instance.

    A reward inherits this class, and with it a check and an end that do nothing.
    """

    name: str

    @abstractmethod
    def score(self, prompt: Prompt, generated: Generated) -> Score:
        """Score one response, within the reward's own time limit."""

    def check_gold(self, gold: str) -> None:  # noqa: B027
        """Check a gold when a data set is read. Raises ValueError if no answer can equal it."""

    def close(self) -> None:  # noqa: B027
        """End the reward's processes, if there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A reward's decision, before `stamp` adds names and times."""

    reward: float | None  # None exactly with Outcome.INFRA
    outcome: Outcome  # typed result
    detail: str  # reason in a few words, printable ASCII whatever the model wrote
    cases: tuple[CaseResult, ...] = ()  # the test cases, where a program was executed


class RewardUnavailable(RuntimeError):
    """Raised when a reward's process cannot start or was lost: never the model's fault."""


class ScorerProcess:
    """A process that a reward scores in; this class itself stands for no process at all."""

    def __init__(self) -> None:
        # Another thread sets it to end the call in progress, which then raises Interrupted; it must
        # be cleared before the next call.
        self.interrupt = Interrupt()

    def warm(self) -> None:
        """Start the process unless it runs; RewardUnavailable if it cannot start."""

    def close(self) -> None:
        """End the process; harmless without one."""


class ProcessReward(Reward):
    """A reward that scores in a process of its own; if that fails, the verdict is INFRA."""

    def __init__(self, process: ScorerProcess) -> None:
        self._process = process
        self.interrupt = process.interrupt

    def warm(self) -> None:
        """Start the process now, unless it runs."""
        self._process.warm()

    def close(self) -> None:
        self._process.close()

    def score(self, prompt: Prompt, generated: Generated) -> Score:
        """Score a response; INFRA where the process fails or the interrupt is set."""
        started_s = time.time()
        try:
            verdict = self.verdict(prompt, generated)
        except (RewardUnavailable, Interrupted) as error:
            verdict = infra(str(error))
        return stamp(verdict, prompt, generated, scorer=self.name, started_s=started_s)

    @abstractmethod
    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """Judge a response; may raise RewardUnavailable."""


def right(detail: str) -> Verdict:
    """Verdict of a binary reward on a right response: 1."""
    return Verdict(reward=1.0, outcome=Outcome.OK, detail=detail)


def wrong(detail: str) -> Verdict:
    """Verdict of a binary reward on a wrong response, the model's own fault: 0."""
    return Verdict(reward=0.0, outcome=Outcome.WRONG, detail=detail)


def infra(detail: str) -> Verdict:
    """A verdict without a reward: the verifier or its data failed, not the model."""
    return Verdict(reward=None, outcome=Outcome.INFRA, detail=printable_line(detail))


def checked_reward(value: object) -> float:
    """Check a reward from outside code; returns it as a float. Raises ValueError unless it is a
    finite number, no bool, of at most LARGEST_REWARD in size."""
    is_truth = isinstance(value, bool)
    if not is_truth and isinstance(value, int | float) and abs(value) <= LARGEST_REWARD:
        return float(value)  # NaN is within nothing
    raise ValueError(
        f"a reward must be a finite number from -{LARGEST_REWARD:,.0f} to {LARGEST_REWARD:,.0f},"
        f" got {printable_line(repr(value), 60)}; scale it, or give no verdict"
    )


def paid(value: object, detail: str, *, by: str) -> Verdict:
    """Verdict with a number from outside code as its reward: OK if positive, else WRONG; INFRA if
    `checked_reward` refuses the number. by: name of that code, for the message."""
    try:
        reward = checked_reward(value)
    except ValueError as error:
        return infra(f"{by}: {error}")
    return Verdict(
        reward=reward, outcome=Outcome.OK if reward > 0 else Outcome.WRONG, detail=detail
    )


def stamp(
    verdict: Verdict, prompt: Prompt, generated: Generated, *, scorer: str, started_s: float
) -> Score:
    """Turn a verdict into a Score that finishes now. A WRONG response that hit the token bound
    becomes TRUNCATED with the same reward. A reward that `checked_reward` refuses becomes INFRA."""
    if verdict.reward is not None:
        try:
            checked_reward(verdict.reward)
        except ValueError as error:
            verdict = infra(f"{scorer}: {error}")
    outcome, detail = verdict.outcome, verdict.detail
    if generated.finish_reason == "length":
        outcome = Outcome.TRUNCATED if outcome is Outcome.WRONG else outcome
        # what failed is an error's own text, to which a length adds nothing
        detail = detail if outcome is Outcome.INFRA else f"{detail}, truncated"
    return Score(
        prompt_id=prompt.prompt_id,
        index=generated.index,
        reward=verdict.reward,
        outcome=outcome,
        detail=detail,
        scorer=scorer,
        started_s=started_s,
        finished_s=time.time(),
        cases=verdict.cases,
    )
