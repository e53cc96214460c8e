"""Executes a program's test cases; each gets a verdict and a time.

    calls        program --start--> sandbox, one command per case; returned values are compared here
    whole runs   a fresh process per case; the printed output is compared here
    assertions   program in one sandbox, tests in another; each call of the tests is sent to the
                 program, and the value back to the tests

Expected values never enter the program's sandbox. The sandbox returns values and text; verdicts are
reached outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from artifacts.datasets.plain_values import same
from artifacts.datasets.program_tests import AssertionCase, CallCase, CodeGold, StdioCase
from artifacts.records import CaseVerdict
from tasks.cluster.deaths import manner
from tasks.isolation.frames import Json
from tasks.isolation.isolation import Isolation, SandboxLimits
from tasks.rewards.base import ScorerProcess
from tasks.rewards.programs.sandbox.messages import Command, CommandReply, Kind
from tasks.rewards.programs.sandbox.sandbox import (
    START_S,
    LostUnderProgram,
    Sandbox,
    SandboxLost,
    SandboxUnavailable,
)

TEST_S = 10.0  # for the statements of a test, without its calls of the program
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """The execution of a case."""

    verdict: CaseVerdict
    wall_s: float  # seconds; for the first case including the loading of the program
    detail: str = ""  # name and message of an exception, as the program sent them


NOT_RUN = CaseRun(verdict=CaseVerdict.NOT_RUN, wall_s=0.0)


class CaseRunner(ScorerProcess):
    """Executes programs on their cases, one at a time; a second sandbox is for assertions."""

    def __init__(self, isolation: Isolation, limits: SandboxLimits) -> None:
        super().__init__()
        self._programs = Sandbox(isolation, limits, self.interrupt)
        self._tests = Sandbox(isolation, limits, self.interrupt, is_trusted=True)

    def warm(self) -> None:
        self._programs.warm()

    def close(self) -> None:
        self._programs.close()
        self._tests.close()

    def run(self, program: str, gold: CodeGold, limits_s: Sequence[float]) -> list[CaseRun]:
        """Run every case of the gold, in order, with a limit of `limits_s` seconds each.

        A lost sandbox is replaced once. If the second one is lost, too, but an empty program runs,
        the first case's verdict is SABOTAGE: a program must not be able to prevent its verdict and
        so leave its group.
        """
        try:
            return self._run(program, gold, limits_s)
        except SandboxLost:
            pass
        try:
            return self._run(program, gold, limits_s)
        except LostUnderProgram as error:
            (control,) = self._programs.start("", limit_s=START_S)
            if control.kind != "value":
                raise
            sabotage = CaseRun(verdict=CaseVerdict.SABOTAGE, wall_s=0.0, detail=str(error))
            return [sabotage, *[NOT_RUN] * (len(gold.cases) - 1)]

    def _run(self, program: str, gold: CodeGold, limits_s: Sequence[float]) -> list[CaseRun]:
        runs = dict.fromkeys(range(len(gold.cases)), NOT_RUN)
        numbered = list(zip(runs, gold.cases, limits_s, strict=True))
        calls = {n: (case, limit) for n, case, limit in numbered if isinstance(case, CallCase)}
        if calls:
            found = self._run_calls(program, gold, list(calls.values()))
            runs |= dict(zip(calls, found, strict=False))
        tests = {n: (case, limit) for n, case, limit in numbered if isinstance(case, AssertionCase)}
        if tests:
            found = self._run_statements(program, gold, list(tests.values()))
            runs |= dict(zip(tests, found, strict=False))
        for number, case, limit in numbered:
            ended = any(run.verdict is CaseVerdict.TIMEOUT for run in runs.values())
            if isinstance(case, StdioCase) and not ended:
                runs[number] = self._run_whole(program, gold, case, limit)
        return list(runs.values())

    def _run_calls(
        self, program: str, gold: CodeGold, cases: Sequence[tuple[CallCase, float]]
    ) -> list[CaseRun]:
        """Run the first cases, each with its limit, until one ends the program."""
        name = gold.function
        commands = [Command.call(name, case.arguments, NO_NAMES, limit) for case, limit in cases]
        start, *replies = self._programs.start(
            program, preamble=gold.preamble, limit_s=cases[0][1], commands=commands
        )
        if start.kind != "value":
            return [_ended(start)]
        runs = [
            _judged(reply, is_right=same(case.expected, reply.value, case.tolerance))
            if reply.kind == "value"
            else _ended(reply)
            for (case, _), reply in zip(cases, replies, strict=False)
        ]
        runs[0] = replace(runs[0], wall_s=start.wall_s + runs[0].wall_s)
        return runs

    def _run_whole(self, program: str, gold: CodeGold, case: StdioCase, limit_s: float) -> CaseRun:
        (reply,) = self._programs.start(
            program, preamble=gold.preamble, limit_s=limit_s, stdin=case.stdin
        )
        is_quiet = reply.kind == "died" and reply.detail == manner(0)
        if not (is_quiet or reply.kind in ("value", "exited")):
            return _ended(reply)
        if reply.stdout is None:
            return CaseRun(verdict=CaseVerdict.OUTPUT, wall_s=reply.wall_s)
        return _judged(reply, is_right=_lines(reply.stdout) == _lines(case.stdout))

    def _run_statements(
        self, program: str, gold: CodeGold, cases: Sequence[tuple[AssertionCase, float]]
    ) -> list[CaseRun]:
        """Run the first cases, each with its limit, until no other statement can run."""
        (start,) = self._programs.start(
            program, preamble=gold.preamble, limit_s=cases[0][1], keep=True
        )
        try:
            if start.kind != "value":
                return [_ended(start)]
            (setup,) = self._tests.start(
                gold.test_setup, limit_s=TEST_S, asks=gold.function or "candidate", keep=True
            )
            if setup.kind != "value":
                raise SandboxUnavailable(  # a fault of the data, never of the program
                    f"the tests of {gold.function} cannot be set up: {setup.value} {setup.detail}"
                )
            runs: list[CaseRun] = []
            for case, limit in cases:
                run, goes_on = self._run_statement(gold.function, case, limit)
                runs.append(run)
                if not goes_on:
                    break
            return runs
        finally:
            self._programs.end()
            self._tests.end()

    def _run_statement(
        self, function: str, case: AssertionCase, limit_s: float
    ) -> tuple[CaseRun, bool]:
        """Run a statement of the tests; the program has `limit_s` for all its calls. False if the
        test still waits for an answer of the program: no other statement can run then."""
        spent_s, raised = 0.0, ""
        reply = self._tests.send(Command(message={"statement": case.statement}, limit_s=TEST_S))
        while reply.kind == "ask":
            assert isinstance(reply.value, dict)
            arguments, named = reply.value["arguments"], reply.value["named"]
            left_s = max(0.0, limit_s - spent_s)
            call = Command.call(function, arguments, named, left_s, is_exact=False)
            answer = self._programs.send(call)
            spent_s += answer.wall_s
            if answer.kind not in ("value", "raised"):
                return (
                    CaseRun(verdict=ENDINGS[answer.kind], wall_s=spent_s, detail=_words(answer)),
                    False,
                )
            raised = _words(answer) if answer.kind == "raised" else raised
            result: dict[str, Json] = {answer.kind: answer.value, "message": answer.detail}
            reply = self._tests.send(Command(message=result, limit_s=TEST_S))
        if reply.kind == "value":
            return CaseRun(verdict=CaseVerdict.PASS, wall_s=spent_s), True
        failed = reply.kind == "raised" and reply.value != "AssertionError" and raised
        verdict = CaseVerdict.EXCEPTION if failed else CaseVerdict.WRONG
        run = CaseRun(verdict=verdict, wall_s=spent_s, detail=raised or _words(reply))
        return run, reply.kind == "raised"


def _judged(reply: CommandReply, *, is_right: bool) -> CaseRun:
    verdict = CaseVerdict.PASS if is_right else CaseVerdict.WRONG
    return CaseRun(verdict=verdict, wall_s=reply.wall_s)


def _ended(reply: CommandReply) -> CaseRun:
    return CaseRun(verdict=ENDINGS[reply.kind], wall_s=reply.wall_s, detail=_words(reply))


def _words(reply: CommandReply) -> str:
    name = f"{reply.value} " if reply.kind == "raised" else ""
    return f"{name}{reply.detail}".strip()


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
