"""The code reward: 1 if the response's program passes every test of the question, else 0.

    response ─▶ its fenced program ─▶ limits by the adaptive timeout
    ─▶ sandbox ─▶ one verdict per test case ─▶ all passed?

    decided round ─▶ second looks at early killed programs
    ─▶ one thread, a sandbox of the lowest priority ─▶ anchors for later rounds

Every program gets a reward, whatever it does: a failure is 0 with the reason. There is no verdict
only if the sandbox itself fails. No verdict waits for a second look, which occupies no reward
worker and uses only idle processor time. `adaptive_timeout` chooses the programs.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from pydantic import Field, ValidationError

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.program_tests import CodeGold
from artifacts.printable import printable_line
from artifacts.records import CaseResult, CaseVerdict, Generated, Outcome, Prompt, Score
from tasks.isolation.isolation import DEFAULT_MEMORY_BYTES, Isolation, SandboxLimits
from tasks.rewards.base import ProcessReward, Reward, Verdict, right, stamp, wrong
from tasks.rewards.programs.adaptive_timeout import (
    AdaptiveTimeoutConfig,
    Anchor,
    MeasuredTimes,
    is_early_kill,
    merged,
    observed,
    second_looks,
)
from tasks.rewards.programs.fenced_program import program_of
from tasks.rewards.programs.sandbox.case_runner import CaseRun, CaseRunner
from tasks.rewards.programs.sandbox.self_test import check_isolation

logger = logging.getLogger(__name__)

MAX_PROGRAM_CHARS = 1 << 18
LOWEST_PRIORITY = 19  # of second looks, as `nice` counts
_VIOLATIONS = (CaseVerdict.FORGED, CaseVerdict.OUTPUT, CaseVerdict.SABOTAGE)


class CodeTestsConfig(FrozenConfig):
    """Execute the response's program against the question's tests."""

    kind: Literal["code"] = Field(
        default="code", description="Chooses the execution of programs in a sandbox."
    )
    isolation: Literal["namespaces", "landlock"] = Field(
        default="namespaces",
        description=(
            "Walls around a program: 'namespaces' (bubblewrap), or the weaker 'landlock' where the"
            " machine forbids them."
        ),
    )
    memory_bytes: int = Field(
        default=DEFAULT_MEMORY_BYTES, ge=1 << 27, description="Address space of one program."
    )
    timeout: AdaptiveTimeoutConfig = Field(
        default_factory=AdaptiveTimeoutConfig, description="Time limits of the test cases."
    )

    def build_reward(self) -> Reward:
        """The reward, with its own record of running times; a pool passes the run's record."""
        return CodeTests(self)


class CodeTests(ProcessReward):
    """Executes a program on the cases of `Prompt.gold` (a `CodeGold`): 1 if all pass, else 0."""

    name = "code"

    def __init__(
        self, config: CodeTestsConfig, times: MeasuredTimes | None = None, *, niceness: int = 0
    ) -> None:
        """Check the isolation; the sandbox starts later. Raises ValueError if the machine does not
        allow this isolation.

        `times`: the run's measured running times, a new record if not given; the caller adds the
        results of responses. `niceness`: priority of the programs' processes as in `nice`, 19 is
        the lowest.
        """
        self._isolation = Isolation(config.isolation)
        check_isolation(self._isolation)
        self._config = config
        self._times = times or MeasuredTimes()
        self._timed: set[str] = set()  # questions whose solution was executed here
        self._runner = CaseRunner(
            self._isolation, SandboxLimits(memory_bytes=config.memory_bytes, niceness=niceness)
        )
        super().__init__(self._runner)

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """OK if every case passes; else TIMEOUT, VIOLATION or WRONG by the first that fails."""
        gold, keys = read_gold(prompt.gold)
        self._time_solution(gold, keys)
        return self._execute(prompt, generated, self._times.limits(self._config.timeout, keys))

    def look_again(self, prompt: Prompt, generated: Generated) -> Score:
        """Score a response once more, with the longest time limit for every case."""
        started_s = time.time()
        limits = (self._config.timeout.ceiling_s,) * len(read_gold(prompt.gold)[1])
        return stamp(
            self._execute(prompt, generated, limits),
            prompt,
            generated,
            scorer=self.name,
            started_s=started_s,
        )

    def _time_solution(self, gold: CodeGold, keys: tuple[str, ...]) -> None:
        """Execute the question's own solution once, unless a correct execution is known."""
        timeout, question = self._config.timeout, keys[0]
        is_fixed = timeout.floor_s == timeout.ceiling_s  # whatever an execution takes
        anchor = self._times.anchors.get(question)
        is_known = question in self._timed or (anchor is not None and anchor.num_correct > 0)
        if not gold.solution or is_fixed or is_known:
            return
        limits = (timeout.ceiling_s,) * len(keys)
        verdict = self._weigh(keys, limits, self._runner.run(gold.solution, gold, limits))
        self._timed.add(question)
        if verdict.outcome is not Outcome.OK:
            logger.warning(
                "question=%s reason=its own solution fails (%s), so its limits begin at the"
                " ceiling",
                question,
                verdict.detail,
            )
        self._times.learn(observed(timeout, [verdict.cases]))

    def _execute(self, prompt: Prompt, generated: Generated, limits: tuple[float, ...]) -> Verdict:
        gold, keys = read_gold(prompt.gold)
        program = program_of(generated.text, gold.function)
        if not program.strip():
            return wrong("no_code")
        if len(program) > MAX_PROGRAM_CHARS:
            return wrong("too_long")
        return self._weigh(keys, limits, self._runner.run(program, gold, limits))

    def check_gold(self, gold: str) -> None:
        """Check a gold when a data set is read. Raises ValueError if it is malformed."""
        read_gold(gold)

    def _weigh(
        self, keys: tuple[str, ...], limits: tuple[float, ...], runs: list[CaseRun]
    ) -> Verdict:
        cases = tuple(
            CaseResult(key=key, verdict=run.verdict, wall_s=run.wall_s, limit_s=limit)
            for key, run, limit in zip(keys, runs, limits, strict=True)
        )
        failed = next(
            (number for number, case in enumerate(cases) if case.verdict is not CaseVerdict.PASS),
            None,
        )
        if failed is None:
            return replace(right(f"{len(cases)} passed"), cases=cases)
        case, words, outcome = cases[failed], runs[failed].detail, Outcome.WRONG
        detail = printable_line(f"{case.verdict}: case {failed}{': ' if words else ''}{words}", 120)
        if case.verdict is CaseVerdict.TIMEOUT:
            name = "early_kill" if is_early_kill(self._config.timeout, case) else "timeout"
            outcome, detail = Outcome.TIMEOUT, f"{name}: case {failed} after {case.limit_s:.3g} s"
        elif case.verdict in _VIOLATIONS:
            outcome = Outcome.VIOLATION
        return Verdict(reward=0.0, outcome=outcome, detail=detail, cases=cases)


@lru_cache(maxsize=256)  # about the number of questions in a round; some tests take megabytes
def read_gold(text: str) -> tuple[CodeGold, tuple[str, ...]]:
    """Read a question's tests; returns them and the keys of the test cases, which are the same in
    every run. Raises ValueError for a malformed gold."""
    try:
        gold = CodeGold.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(
            f"a code gold must be the JSON of a CodeGold, got {text[:80]!r}"
            f" ({error.errors()[0]['msg']}); repair the row"
        ) from error
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return gold, tuple(f"{digest}/{number}" for number in range(len(gold.cases)))


class SecondLooks:
    """Executes early killed programs a second time, one at a time, for one configuration."""

    def __init__(self, config: CodeTestsConfig, times: MeasuredTimes, max_waiting: int) -> None:
        """max_waiting: programs that may wait or run at a time; further ones get no second look.
        Raises ValueError if the machine does not allow the isolation."""
        self.config = config
        self._times = times
        self._max_waiting = max_waiting
        self._looks: list[Future[Score]] = []
        self._relearned: dict[str, Anchor] = {}
        self._reward = CodeTests(config, times, niceness=LOWEST_PRIORITY)
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reward-look")

    def look_again(self, scored: Sequence[tuple[Prompt, Generated, Score]]) -> list[Future[Score]]:
        """Submit some of a round's early killed programs, to run with the longest limits."""
        with self._lock:
            self._looks = [look for look in self._looks if not look.done()]
            places = second_looks(
                self.config.timeout,
                self._times.anchors,
                [score.cases for _, _, score in scored],
                self._max_waiting - len(self._looks),
            )
            looks = [
                self._thread.submit(self._look, prompt, generated)
                for prompt, generated, _ in (scored[place] for place in places)
            ]
            self._looks += looks
        return looks

    def relearned(self) -> Mapping[str, Anchor]:
        """Running times by key of the test case, measured since the last call; `times` has them
        already."""
        with self._lock:
            relearned, self._relearned = self._relearned, {}
        return relearned

    def close(self) -> None:
        """Drop waiting programs and end a running one."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._reward.interrupt.set()
        self._thread.shutdown(wait=True)
        self._reward.close()

    def _look(self, prompt: Prompt, generated: Generated) -> Score:
        score = self._reward.look_again(prompt, generated)
        measured = observed(self.config.timeout, [score.cases])
        self._times.learn(measured)
        with self._lock:
            self._relearned = merged(self._relearned, measured)
        return score
