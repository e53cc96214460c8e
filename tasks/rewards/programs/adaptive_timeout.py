"""Time limits of test cases: a little longer than the slowest correct execution (RollPacker's
adaptive timeout).

    limit = min(max(floor, factor x slowest correct execution), ceiling), the ceiling while no
    execution was correct

Where a question has a solution of its own, that is the first correct execution (`code_tests`): most
questions are asked once or twice in a run, and a limit that waits for a right response comes too
late for them.

An anchor holds the known running times of a test case. An anchor set by a lucky fast answer would
kill every slower correct answer, and so never grow. Hence the second look (`code_tests`): when a
round is decided, some of the programs that were killed early run once more, up to the ceiling. A
program that passes corrects the anchor for the rounds to come; its own verdict stays. A case on
which second looks have found nothing gets no further ones. Pure but for `MeasuredTimes`, which
holds the state of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from artifacts.fixed_fields import DerivedSeconds, Fixed
from artifacts.records import CaseResult, CaseVerdict

MAX_HOPELESS = 3  # executions that ran into the ceiling, after which a case gets no second look


class AdaptiveTimeoutConfig(BaseModel):
    """Time limits of test cases; floor_s equal to ceiling_s makes a fixed limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    factor: Fixed[float] = 1.5  # limit of a case, in multiples of its slowest correct execution
    floor_s: float = Field(2.0, gt=0, description="Shortest limit, seconds.")
    ceiling_s: DerivedSeconds = 30.0  # longest limit, and that of a case that nothing has passed

    @property
    def is_fixed(self) -> bool:
        """True if measured running times change no limit."""
        return self.floor_s == self.ceiling_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Known running times of a test case."""

    slowest_s: float = 0.0  # slowest correct execution, seconds
    num_correct: int = 0  # correct executions
    num_hopeless: int = 0  # executions that ran into the ceiling

    def __add__(self, other: Anchor) -> Anchor:
        """Both together; commutative and associative."""
        return Anchor(
            slowest_s=max(self.slowest_s, other.slowest_s),
            num_correct=self.num_correct + other.num_correct,
            num_hopeless=self.num_hopeless + other.num_hopeless,
        )


Anchors = Mapping[str, Anchor]  # by key of the test case


def limit_s(config: AdaptiveTimeoutConfig, anchor: Anchor) -> float:
    """Time limit of a case for a response, seconds."""
    if anchor.num_correct == 0:
        return config.ceiling_s
    return min(max(config.floor_s, config.factor * anchor.slowest_s), config.ceiling_s)


def is_early_kill(config: AdaptiveTimeoutConfig, case: CaseResult) -> bool:
    """True if the case was ended before the ceiling, so that it might have passed."""
    return case.verdict is CaseVerdict.TIMEOUT and case.limit_s < config.ceiling_s


def is_ended_early(config: AdaptiveTimeoutConfig, cases: Sequence[CaseResult]) -> bool:
    """True if all failed cases of a program are early kills: a program that failed a case by itself
    is wrong, whatever else was ended."""
    failed = [case for case in cases if case.verdict not in (CaseVerdict.PASS, CaseVerdict.NOT_RUN)]
    return bool(failed) and all(is_early_kill(config, case) for case in failed)


def second_looks(
    config: AdaptiveTimeoutConfig,
    anchors: Anchors,
    responses: Sequence[Sequence[CaseResult]],
    max_looks: int,
) -> list[int]:
    """Choose responses of a round to execute again: positions of at most `max_looks`, one for each
    early killed case that second looks have not given up on."""
    chosen: dict[str, int] = {}
    for place, cases in enumerate(responses):
        for case in cases if is_ended_early(config, cases) else ():
            hopeful = anchors.get(case.key, Anchor()).num_hopeless < MAX_HOPELESS
            if hopeful and len(chosen) < max_looks and is_early_kill(config, case):
                chosen.setdefault(case.key, place)
    return sorted(set(chosen.values()))


def observed(
    config: AdaptiveTimeoutConfig, responses: Iterable[Sequence[CaseResult]]
) -> dict[str, Anchor]:
    """Anchors from executions, of which only those that passed every case count as correct."""
    found: dict[str, Anchor] = {}
    for cases in responses:
        correct = all(case.verdict is CaseVerdict.PASS for case in cases)
        for case in cases:
            if correct:
                seen = Anchor(slowest_s=case.wall_s, num_correct=1)
            elif case.verdict is CaseVerdict.TIMEOUT and case.limit_s >= config.ceiling_s:
                seen = Anchor(num_hopeless=1)
            else:
                continue
            found[case.key] = found.get(case.key, Anchor()) + seen
    return found


def merged(first: Anchors, second: Anchors) -> dict[str, Anchor]:
    """Add up anchors; associative and commutative, so that a run's state is the sum over its
    steps."""
    return {
        key: first.get(key, Anchor()) + second.get(key, Anchor()) for key in {**first, **second}
    }


def to_record(anchors: Anchors) -> dict[str, list[float]]:
    """Anchors as JSON, for the step's commit."""
    return {
        key: [anchor.slowest_s, anchor.num_correct, anchor.num_hopeless]
        for key, anchor in sorted(anchors.items())
    }


def from_record(record: Mapping[str, Sequence[float]]) -> dict[str, Anchor]:
    """Anchors from a step's commit; the inverse of `to_record`."""
    return {
        key: Anchor(slowest_s=slowest, num_correct=int(correct), num_hopeless=int(hopeless))
        for key, (slowest, correct, hopeless) in record.items()
    }


class MeasuredTimes:
    """The anchors of a running run; several threads read and write them, one dict operation at a
    time."""

    def __init__(self, anchors: Anchors | None = None) -> None:
        self._anchors = dict(anchors or {})

    @property
    def anchors(self) -> Anchors:
        """The current anchors, by key of the test case."""
        return self._anchors

    def has_anchor(self, key: str) -> bool:
        """True if a correct execution of the case is known."""
        return self._anchors.get(key, Anchor()).num_correct > 0

    def limits(self, config: AdaptiveTimeoutConfig, keys: Sequence[str]) -> tuple[float, ...]:
        """Time limit of each case for a response, seconds."""
        return tuple(limit_s(config, self._anchors.get(key, Anchor())) for key in keys)

    def learn(self, more: Anchors) -> None:
        """Add the anchors of a response."""
        self._anchors.update(merged({key: self._anchors.get(key, Anchor()) for key in more}, more))
