"""What the conformance suite asks of an environment, and what it found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Verdict = Literal["holds", "broken", "unknown"]  # unknown: an earlier rule kept it from being tried


class ConformanceRule(StrEnum):
    """The rules, in the order in which they are reported."""

    HEAD = "the head is a chat that a system turn begins"
    RESET = "reset gives a text"
    STEP = "step raises at no text"
    VALUES = "step gives a text, a finite reward, two flags and texts"
    ENDS = "an episode ends within max_turns"
    REPEATS = "the same seed and actions give the same transcript"
    ALONE = "episodes side by side do not touch"
    PICKLES = "a pickle after every turn changes nothing"


class Broken(Exception):
    """A rule that does not hold."""

    def __init__(self, rule: ConformanceRule, why: str) -> None:
        super().__init__(why)
        self.rule = rule
        self.why = why  # the rule, the value and the cure in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule."""

    rule: ConformanceRule
    verdict: Verdict
    why: str  # what broke it; empty where nothing did


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """What was found."""

    checks: tuple[Check, ...]  # one per rule, in their order
    num_episodes: int  # different ones that were played to their end
    num_steps: int  # of all plays
    reset_s: tuple[float, float]  # wall seconds of a reset, median and 99th percentile
    step_s: tuple[float, float]  # wall seconds of a step, likewise
    transcript: tuple[tuple[str, str], ...]  # an episode: what was observed and what was done

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return all(check.verdict == "holds" for check in self.checks)
