"""The verdicts of `rollflow check`: rules of a kind of part, each of which holds, is broken, with
the reason, or was not tried.

    RuleFindings(rules) ─▶ with findings.trying(rule): ... raise Broken(why) ... ─▶ checks

A suite of one kind of part lies beside the interface of that kind, in a file `conformance`.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

CheckVerdict = Literal["holds", "broken", "unknown"]  # unknown: an earlier rule kept it from it
CUT = 60  # characters of a value that a sentence shows


class RuleBroken(Exception):
    """Raised for a rule that does not hold."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why  # the rule, the value and the cure in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCheck:
    """The verdict on one rule."""

    rule: StrEnum
    verdict: CheckVerdict
    why: str  # what broke it; empty where nothing did


class RuleFindings:
    """The verdicts on the rules of a suite; of every rule the first failure is kept."""

    def __init__(self, rules: type[StrEnum]) -> None:
        self._rules = rules
        self._tried = set[StrEnum]()
        self._failures: dict[StrEnum, str] = {}

    @contextmanager
    def trying(self, rule: StrEnum) -> Iterator[None]:
        """Try a rule in the block, which any error ends and breaks."""
        self._tried.add(rule)
        try:
            yield
        except RuleBroken as broken:
            self._failures.setdefault(rule, broken.why)
        except Exception as error:  # the part's own code may raise anything
            self._failures.setdefault(rule, told(error))

    def is_broken(self, rule: StrEnum) -> bool:
        """True if the rule is known not to hold."""
        return rule in self._failures

    @property
    def checks(self) -> tuple[RuleCheck, ...]:
        """One verdict for each rule, in their order."""
        found = []
        for rule in self._rules:
            verdict: CheckVerdict = "holds" if rule in self._tried else "unknown"
            if rule in self._failures:
                verdict = "broken"
            found.append(RuleCheck(rule=rule, verdict=verdict, why=self._failures.get(rule, "")))
        return tuple(found)


def shown(value: object) -> str:
    """The value as a sentence shows it, cut to CUT characters."""
    text = repr(value)
    return text if len(text) <= CUT else f"{text[:CUT]}..."


def told(error: BaseException) -> str:
    """An error in a sentence: that of a ValueError, else its type, text, and last place."""
    if isinstance(error, ValueError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}, {last.filename} line {last.lineno}; mend it there"
