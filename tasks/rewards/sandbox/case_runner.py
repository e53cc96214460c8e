"""Test cases executed against a program, one verdict and time each.

    calls        program --start--> sandbox, then one command a case; values come back and are compared here
    whole runs   a fresh process a case; what it printed is compared here
    assertions   program in one sandbox, tests in another: the tests' questions are carried over, and the values back

Expected values never enter the sandbox that a program runs in, and no verdict is taken from it: it returns values and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.code_cases import AssertionCase, CallCase, CodeGold, StdioCase, expected_value
from artifacts.plain_values import from_json, same
from artifacts.records import CaseVerdict
from tasks.rewards.frames import Json
from tasks.rewards.sandbox.candidate_process import Command
from tasks.rewards.sandbox.isolation import Isolation
from tasks.rewards.sandbox.limits import SandboxLimits
from tasks.rewards.sandbox.reply import Kind, Reply
from tasks.rewards.sandbox.sandbox import Sandbox, SandboxLost, SandboxUnavailable

TEST_S = 10.0  # for the statements of a test, the calls of the program apart
NO_NAMES: Json = {"dict": []}  # named arguments, none
ENDINGS: dict[Kind, CaseVerdict] = {
    "raised": CaseVerdict.EXCEPTION,
    "exited": CaseVerdict.EXCEPTION,
    "memory": CaseVerdict.MEMORY,
    "timeout": CaseVerdict.TIMEOUT,
    "died": CaseVerdict.CRASH,
    "too_long": CaseVerdict.OUTPUT,
    "forged": CaseVerdict.FORGED,
    "ask": CaseVerdict.FORGED,
    "not_run": CaseVerdict.NOT_RUN,
}


class TestsBroken(SandboxUnavailable):
    """The tests themselves do not run: a fault of the data, never of the program."""

    __test__ = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """One case, executed."""

    verdict: CaseVerdict
    wall_s: float  # seconds; of the first case the loading of the program included
    detail: str = ""  # of an exception its name and words, as the program gave them


NOT_RUN = CaseRun(verdict=CaseVerdict.NOT_RUN, wall_s=0.0)


class CaseRunner:
    """Executes programs against their cases, one at a time; holds one sandbox, and a second from the first assertion on."""

    def __init__(self, isolation: Isolation, limits: SandboxLimits) -> None:
        self._programs = Sandbox(isolation, limits)
        self._tests = Sandbox(isolation, limits)

    def warm(self) -> None:
        """Have the programs' sandbox running now; SandboxUnavailable if it cannot."""
        self._programs.warm()

    def close(self) -> None:
        """End both sandboxes."""
        self._programs.close()
        self._tests.close()

    def abandon(self) -> None:
        """From another thread: end what runs, for good; that call of `run` raises SandboxLost."""
        self._programs.abandon()
        self._tests.abandon()

    def run(self, program: str, gold: CodeGold, limits_s: Sequence[float]) -> list[CaseRun]:
        """A run for every case of the gold, in order, `limits_s` seconds each. A sandbox that is lost under it is replaced once."""
        text = f"{gold.preamble}\n{program}" if gold.preamble else program
        try:
            return self._run(text, gold, limits_s)
        except SandboxLost:
            return self._run(text, gold, limits_s)

    def _run(self, program: str, gold: CodeGold, limits_s: Sequence[float]) -> list[CaseRun]:
        runs: dict[int, CaseRun] = {}
        numbered = list(zip(range(len(gold.cases)), gold.cases, limits_s, strict=True))
        calls = [(number, case, limit) for number, case, limit in numbered if isinstance(case, CallCase)]
        statements = [(number, case, limit) for number, case, limit in numbered if isinstance(case, AssertionCase)]
        if calls:
            found = self._run_calls(program, gold.function, [case for _, case, _ in calls], [limit for _, _, limit in calls])
            runs |= dict(zip((number for number, _, _ in calls), found, strict=True))
        if statements:
            found = self._run_statements(program, gold, [case for _, case, _ in statements], [limit for _, _, limit in statements])
            runs |= dict(zip((number for number, _, _ in statements), found, strict=True))
        for number, case, limit in numbered:
            if isinstance(case, StdioCase):
                ended = any(run.verdict is CaseVerdict.TIMEOUT for run in runs.values())
                runs[number] = NOT_RUN if ended else self._run_whole(program, case, limit)
        return [runs[number] for number in range(len(gold.cases))]

    def _run_calls(self, program: str, function: str, cases: Sequence[CallCase], limits_s: Sequence[float]) -> list[CaseRun]:
        commands = [Command.call(function, case.arguments, NO_NAMES, limit) for case, limit in zip(cases, limits_s, strict=True)]
        start, *replies = self._programs.start(program, limit_s=limits_s[0], commands=commands)
        if start.kind != "value":
            return [_ended(start), *[NOT_RUN] * (len(cases) - 1)]
        runs = [_judge_call(case, reply) for case, reply in zip(cases, replies, strict=False)]
        runs[0] = CaseRun(verdict=runs[0].verdict, wall_s=start.wall_s + runs[0].wall_s, detail=runs[0].detail)
        return runs + [NOT_RUN] * (len(cases) - len(runs))

    def _run_whole(self, program: str, case: StdioCase, limit_s: float) -> CaseRun:
        (reply,) = self._programs.start(program, limit_s=limit_s, stdin=case.stdin)
        ended_well = reply.kind in ("value", "exited") or (reply.kind == "died" and reply.detail == "exit status 0")
        if not ended_well:
            return _ended(reply)
        if reply.stdout is None:
            return CaseRun(verdict=CaseVerdict.OUTPUT, wall_s=reply.wall_s)
        right = _lines(reply.stdout) == _lines(case.stdout)
        return CaseRun(verdict=CaseVerdict.PASS if right else CaseVerdict.WRONG, wall_s=reply.wall_s)

    def _run_statements(self, program: str, gold: CodeGold, cases: Sequence[AssertionCase], limits_s: Sequence[float]) -> list[CaseRun]:
        (start,) = self._programs.start(program, limit_s=limits_s[0], keep=True)
        try:
            if start.kind != "value":
                return [_ended(start), *[NOT_RUN] * (len(cases) - 1)]
            (setup,) = self._tests.start(gold.test_setup, limit_s=TEST_S, asks=gold.function or "candidate", keep=True)
            if setup.kind != "value":
                raise TestsBroken(f"the tests of {gold.function} cannot be set up: {setup.value} {setup.detail}")
            runs: list[CaseRun] = []
            for case, limit in zip(cases, limits_s, strict=True):
                ended = bool(runs) and runs[-1].verdict in (CaseVerdict.TIMEOUT, CaseVerdict.MEMORY, CaseVerdict.CRASH, CaseVerdict.NOT_RUN)
                runs.append(NOT_RUN if ended else self._run_statement(gold.function, case, limit))
            return runs
        finally:
            self._programs.end()
            self._tests.end()

    def _run_statement(self, function: str, case: AssertionCase, limit_s: float) -> CaseRun:
        """One statement, its calls carried over to the program, which has `limit_s` for all of them together."""
        spent_s, raised = 0.0, ""
        reply = self._tests.send(Command(message={"statement": case.statement}, limit_s=TEST_S))
        while reply.kind == "ask":
            assert isinstance(reply.value, dict)
            answer = self._programs.send(
                Command.call(function, reply.value["arguments"], reply.value["named"], max(0.0, limit_s - spent_s))
            )
            spent_s += answer.wall_s
            if answer.kind == "raised":
                raised = _words(answer)
                message: dict[str, Any] = {"raised": answer.value}  # Any: JSON
            elif answer.kind == "value" and _is_plain(answer.value):
                message = {"value": answer.value}
            else:
                return CaseRun(verdict=ENDINGS.get(answer.kind, CaseVerdict.FORGED), wall_s=spent_s, detail=_words(answer))
            reply = self._tests.send(Command(message=message, limit_s=TEST_S))
        if reply.kind == "value":
            return CaseRun(verdict=CaseVerdict.PASS, wall_s=spent_s)
        failed = reply.kind == "raised" and reply.value != "AssertionError" and raised
        return CaseRun(verdict=CaseVerdict.EXCEPTION if failed else CaseVerdict.WRONG, wall_s=spent_s, detail=raised or _words(reply))


def _judge_call(case: CallCase, reply: Reply) -> CaseRun:
    if reply.kind != "value":
        return _ended(reply)
    try:
        right = same(expected_value(case), from_json(reply.value), case.tolerance)
    except (ValueError, TypeError, RecursionError, OverflowError):  # JSON that `plain_values` does not write: the program's own
        return CaseRun(verdict=CaseVerdict.FORGED, wall_s=reply.wall_s)
    return CaseRun(verdict=CaseVerdict.PASS if right else CaseVerdict.WRONG, wall_s=reply.wall_s)


def _ended(reply: Reply) -> CaseRun:
    return CaseRun(verdict=ENDINGS[reply.kind], wall_s=reply.wall_s, detail=_words(reply))


def _words(reply: Reply) -> str:
    name = f"{reply.value} " if reply.kind == "raised" else ""
    return f"{name}{reply.detail}".strip()


def _is_plain(value: object) -> bool:
    try:
        from_json(value)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
