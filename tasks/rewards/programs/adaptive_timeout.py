"""Computes time limits of test cases: a little longer than the slowest correct execution
(RollPacker's adaptive timeout).

    limit = min(max(floor, factor x slowest correct execution), ceiling); the ceiling while no
    execution was correct

An anchor holds the known running times of a test case; the first comes from the question's own
solution, if there is one. An anchor from one fast answer would kill every slower correct answer,
and so never grow. Therefore, when a round is decided, some of the programs that were killed early
run once more, up to the ceiling (the second look, `code_tests`). A program that passes then
corrects the anchor for later rounds; its own verdict stays. Pure, except for `MeasuredTimes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import DerivedSeconds, Fixed
from artifacts.records import CaseResult, CaseVerdict

MAX_HOPELESS = 3  # executions that reached the ceiling, after which a case gets no second look


class AdaptiveTimeoutConfig(FrozenConfig):
    """Time limits of test cases; floor_s equal to ceiling_s makes a fixed limit."""

    factor: Fixed[float] = 1.5  # limit of a case, in multiples of its slowest correct execution
    floor_s: float = Field(2.0, gt=0, description="Shortest limit, seconds.")
    ceiling_s: DerivedSeconds = 30.0  # longest limit, and that of a case that nothing has passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Known running times of a test case."""

    slowest_s: float = 0.0  # slowest correct execution, seconds
    num_correct: int = 0  # correct executions
    num_hopeless: int = 0  # executions that ran into the ceiling

    def __add__(self, other: Anchor) -> Anchor:
        """Combine two anchors of a test case; commutative and associative."""
        return Anchor(
            slowest_s=max(self.slowest_s, other.slowest_s),
            num_correct=self.num_correct + other.num_correct,
            num_hopeless=self.num_hopeless + other.num_hopeless,
        )


Anchors = Mapping[str, Anchor]  # by key of the test case


def limit_s(config: AdaptiveTimeoutConfig, anchor: Anchor) -> float:
    """Time limit of a test case with this anchor, seconds."""
    if anchor.num_correct == 0:
        return config.ceiling_s
    return min(max(config.floor_s, config.factor * anchor.slowest_s), config.ceiling_s)


def is_early_kill(config: AdaptiveTimeoutConfig, case: CaseResult) -> bool:
    """True if the case was killed before the ceiling, so that it might have passed."""
    return case.verdict is CaseVerdict.TIMEOUT and case.limit_s < config.ceiling_s


def is_ended_early(config: AdaptiveTimeoutConfig, cases: Sequence[CaseResult]) -> bool:
    """True if a program failed and all its failed cases are early kills. A program that also failed
    a case in another way is wrong for certain."""
    failed = [case for case in cases if case.verdict not in (CaseVerdict.PASS, CaseVerdict.NOT_RUN)]
    return bool(failed) and all(is_early_kill(config, case) for case in failed)


def second_looks(
    config: AdaptiveTimeoutConfig,
    anchors: Anchors,
    responses: Sequence[Sequence[CaseResult]],
    max_looks: int,
) -> list[int]:
    """Choose responses of a round to execute again; returns their positions in `responses`, at most
    `max_looks`. Takes one response for each early killed case with fewer than MAX_HOPELESS
    executions that reached the ceiling."""
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
    """Compute anchors from executed programs. An execution of a case counts as correct only if its
    program passed every case."""
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
    """Add up anchors by key, in any order: a run's state is the sum over its steps."""
    return {
        key: first.get(key, Anchor()) + second.get(key, Anchor()) for key in {**first, **second}
    }


def to_record(anchors: Anchors) -> dict[str, list[float]]:
    """Convert anchors to JSON values, for the step's commit."""
    return {
        key: [anchor.slowest_s, anchor.num_correct, anchor.num_hopeless]
        for key, anchor in sorted(anchors.items())
    }


def from_record(record: Mapping[str, Sequence[float]]) -> dict[str, Anchor]:
    """Read anchors from a step's commit; the inverse of `to_record`."""
    return {
        key: Anchor(slowest_s=slowest, num_correct=int(correct), num_hopeless=int(hopeless))
        for key, (slowest, correct, hopeless) in record.items()
    }


class MeasuredTimes:
    """The anchors of a run in progress, shared by threads: each access is one dict operation."""

    def __init__(self, anchors: Anchors | None = None) -> None:
        self.anchors = dict(anchors or {})  # by key of the test case

    def limits(self, config: AdaptiveTimeoutConfig, keys: Sequence[str]) -> tuple[float, ...]:
        """Time limit of each test case in `keys`, seconds."""
        return tuple(limit_s(config, self.anchors.get(key, Anchor())) for key in keys)

    def learn(self, more: Anchors) -> None:
        """Add these anchors to the known ones."""
        self.anchors.update(merged({key: self.anchors.get(key, Anchor()) for key in more}, more))
