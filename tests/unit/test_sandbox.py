"""Programs in the sandbox: three kinds of cases, a verdict for each, and a reward that never blames
the model for the sandbox."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from record_factories import make_generated

from artifacts.datasets.program_tests import AssertionCase, CallCase, CodeGold, StdioCase, call_case
from artifacts.records import CaseVerdict, Generated, Outcome, Prompt, Score
from tasks.isolation.child_process import start_child
from tasks.isolation.interrupt import Interrupt, Interrupted
from tasks.isolation.isolation import Isolation, SandboxLimits
from tasks.isolation.user_map import UserMap, is_needed
from tasks.rewards.programs.adaptive_timeout import AdaptiveTimeoutConfig, MeasuredTimes, observed
from tasks.rewards.programs.code_tests import (
    CodeTests,
    CodeTestsConfig,
    read_gold,
)
from tasks.rewards.programs.sandbox import sandbox, self_test
from tasks.rewards.programs.sandbox.candidate_process import CandidateProcess
from tasks.rewards.programs.sandbox.case_runner import CaseRunner
from tasks.rewards.programs.sandbox.messages import Command
from tasks.rewards.programs.sandbox.sandbox import ENTRY, Sandbox, SandboxUnavailable

LIMIT_S = 20.0  # of programs that end by themselves, however busy the machine is
ADD = CodeGold(function="add", cases=(call_case((2, 3), 5), call_case((-1, 1), 0)))


@pytest.fixture(scope="module")
def runner() -> Iterator[CaseRunner]:
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    yield runner
    runner.close()


def verdicts(
    runner: CaseRunner, program: str, gold: CodeGold, limit_s: float = LIMIT_S
) -> list[str]:
    return [str(run.verdict) for run in runner.run(program, gold, [limit_s] * len(gold.cases))]


def test_calls_are_compared_case_by_case(runner: CaseRunner) -> None:
    assert verdicts(runner, "def add(a, b):\n    return a + b", ADD) == ["pass", "pass"]
    assert verdicts(runner, "def add(a, b):\n    return 5", ADD) == ["pass", "wrong"]


def test_a_case_that_runs_too_long_ends_the_program_and_leaves_the_rest_unrun(
    runner: CaseRunner,
) -> None:
    program = "def add(a, b):\n    while a < 0: pass\n    return a + b"
    runs = runner.run(
        program,
        replace_cases(ADD, (call_case((2, 3), 5), call_case((-1, 1), 0), call_case((0, 0), 0))),
        [LIMIT_S, 0.1, 0.1],
    )
    assert [str(run.verdict) for run in runs] == ["pass", "timeout", "not_run"]
    assert 0.1 <= runs[1].wall_s < LIMIT_S


def replace_cases(gold: CodeGold, cases: tuple[CallCase, ...]) -> CodeGold:
    return gold.model_copy(update={"cases": cases})


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("def add(a, b): raise ValueError('no')", "exception"),
        ("def plus(a, b): return a + b", "exception"),
        ("def add(a, b", "exception"),
        ("def add(a, b): return a + b\nraise SystemExit", "exception"),
        ("def add(a, b): return 'x' * 10**12", "memory"),
        ("def add(a, b): return 'x' * 10**7", "output"),
        ("def add(a, b): return object()", "exception"),
        ("def add(a, b): return float(a + b)", "wrong"),
        ("def add(a, b): return add(a, b)", "exception"),
        ("import ctypes\ndef add(a, b): return ctypes.string_at(0)", "crash"),
        ("def add(a, b): return 10**5000", "exception"),
        ("import sys\nsys.set_int_max_str_digits(0)\ndef add(a, b): return 10**5000", "exception"),
    ],
)
def test_what_a_program_does_has_a_verdict(runner: CaseRunner, program: str, verdict: str) -> None:
    assert verdicts(runner, program, ADD)[0] == verdict


def test_whole_programs_are_judged_by_what_they_print(runner: CaseRunner) -> None:
    gold = CodeGold(
        cases=(StdioCase(stdin="3 4\n", stdout="7"), StdioCase(stdin="1 1\n", stdout="2\n"))
    )
    right = "print(sum(map(int, input().split())))"
    assert verdicts(runner, right, gold) == ["pass", "pass"]
    assert verdicts(runner, f"{right}\nexit()", gold) == ["pass", "pass"]
    assert verdicts(runner, f"import os, sys\n{right}\nsys.stdout.flush()\nos._exit(0)", gold) == [
        "pass",
        "pass",
    ]
    assert verdicts(runner, f"{right}\n1 / 0", gold) == ["exception", "exception"]
    assert verdicts(runner, "print(7)", gold) == ["pass", "wrong"]
    assert verdicts(runner, "print('x' * (2 << 20))", gold) == ["output", "output"]
    assert (
        verdicts(
            runner,
            "if __name__ == '__main__':\n    print(sum(int(word) for word in"
            " open(0).read().split()))",
            gold,
        )
        == ["pass"] * 2
    )


def test_assertions_are_executed_apart_from_the_program(runner: CaseRunner) -> None:
    gold = CodeGold(
        function="add",
        test_setup="WANTED = 5",
        cases=(
            AssertionCase(statement="assert add(2, 3) == WANTED"),
            AssertionCase(statement="assert [candidate(n, n) for n in range(3)] == [0, 2, 4]"),
            AssertionCase(statement="assert add(b=1, a=(1,)) == 'what'"),
        ),
    )
    assert verdicts(runner, "def add(a, b):\n    return a + b", gold) == [
        "pass",
        "pass",
        "exception",
    ]
    assert verdicts(runner, "WANTED = None\ndef add(a, b):\n    return 5", gold) == [
        "pass",
        "wrong",
        "wrong",
    ]
    assert verdicts(runner, "def add(a, b):\n    while True: pass", gold, 0.1) == [
        "timeout",
        "not_run",
        "not_run",
    ]


def test_an_assertion_may_expect_an_exception(runner: CaseRunner) -> None:
    statement = (
        "try:\n    add(1, 'x')\nexcept TypeError:\n    pass\nelse:\n    raise AssertionError"
    )
    gold = CodeGold(function="add", cases=(AssertionCase(statement=statement),))
    assert verdicts(runner, "def add(a, b):\n    return a + b", gold) == ["pass"]
    assert verdicts(runner, "def add(a, b):\n    return 0", gold) == ["wrong"]


def test_tests_that_cannot_be_set_up_are_no_fault_of_the_program(runner: CaseRunner) -> None:
    gold = CodeGold(
        function="add",
        test_setup="1 / 0",
        cases=(AssertionCase(statement="assert add(1, 1) == 2"),),
    )
    with pytest.raises(SandboxUnavailable, match="ZeroDivisionError"):
        runner.run("def add(a, b): return a + b", gold, [LIMIT_S])


def test_values_keep_their_types_on_the_way_in_and_out(runner: CaseRunner) -> None:
    values = (
        None,
        True,
        0,
        -(2**70),
        1.5,
        float("inf"),
        "\ud800é",
        b"\x00",
        [1, (2,)],
        {"a": {1, 2}},
        {(1, 2): frozenset()},
        1j,
    )
    gold = CodeGold(function="same", cases=tuple(call_case((value,), value) for value in values))
    assert verdicts(runner, "def same(x):\n    return x", gold) == ["pass"] * len(values)


def test_programs_leave_nothing_to_the_next_one(runner: CaseRunner) -> None:
    leave = (
        "import builtins, math\nmath.pi = 3\nbuiltins.max = None\nopen('/tmp/left',"
        " 'w').write('x')\ndef add(a, b):\n    return a + b"
    )
    look = (
        "import math, os\ndef add(a, b):\n    return a + b if math.pi > 3 and max(1, 2) == 2 and"
        " not os.listdir('/tmp') else None"
    )
    assert verdicts(runner, leave, ADD) == ["pass", "pass"]
    assert verdicts(runner, look, ADD) == ["pass", "pass"]


def test_a_sandbox_that_is_killed_is_replaced_and_the_program_run_again(runner: CaseRunner) -> None:
    runner.warm()
    pid = runner._programs.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert verdicts(runner, "def add(a, b):\n    return a + b", ADD) == ["pass", "pass"]
    killer = threading.Timer(0.3, lambda: os.kill(runner._programs.pid or 0, signal.SIGKILL))
    killer.start()
    waits = "import time\ndef add(a, b):\n    time.sleep(0.6)\n    return a + b"
    assert verdicts(runner, waits, ADD) == ["pass", "pass"]
    killer.join()


# --- causes and outcomes: the table of docs/code-rewards.md -----------------------------------

RIGHT = "def add(a, b):\n    return a + b"
FRAMED = "import os, struct\ndef frame(body): os.write(4, struct.pack('>I', len(body)) + body)\n"


def inside(runner: CaseRunner) -> list[psutil.Process]:
    """The programs' sandbox: its first process and the fork server, and a candidate, if any yet."""
    runner.warm()
    return psutil.Process(runner._programs.pid).children(recursive=True)


def ends(process: psutil.Process) -> bool:
    """Whether a process that was killed is gone, or waits for nothing but to be reaped."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
    return False


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
def test_no_program_is_slow_for_a_stopped_or_dead_host_process(sent: signal.Signals) -> None:
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    first, origin, *_ = inside(runner)
    os.kill(origin.pid, sent)
    assert [verdicts(runner, RIGHT, ADD, 600.0) for _ in range(3)] == [["pass", "pass"]] * 3
    assert runner._programs.num_starts == 2
    assert all(map(ends, (first, origin)))
    runner.close()


def test_a_stopped_sandbox_is_gone_once_it_is_closed() -> None:
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    processes = inside(runner)
    os.kill(processes[1].pid, signal.SIGSTOP)
    runner.close()
    assert all(map(ends, processes))


def with_candidates_that(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """Have the fork server's children do something before they build their walls."""
    prepared, _, _ = ENTRY.partition("from ")
    imports = "import os, time; from tasks.rewards.programs.sandbox import fork_server as server; "
    patch = (
        f"run = server.run_program; server.run_program = lambda *given: ({first}, run(*given)); "
    )
    monkeypatch.setattr(sandbox, "ENTRY", f"{prepared}{imports}{patch}server.main()")


def test_a_programs_time_begins_when_its_process_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_candidates_that(monkeypatch, "time.sleep(0.6)")
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    runs = runner.run(RIGHT, ADD, [0.3, 0.3])
    runner.close()
    assert [str(run.verdict) for run in runs] == ["pass", "pass"]
    assert runs[0].wall_s < 0.3


def test_a_process_whose_walls_cannot_be_built_gets_no_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_candidates_that(monkeypatch, "os.closerange(0, 3), setattr(os, 'dup2', None)")
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    with pytest.raises(SandboxUnavailable, match="refused to run a program: TypeError"):
        runner.run(RIGHT, ADD, [LIMIT_S] * 2)
    runner.close()


def test_candidates_that_die_before_they_have_a_program_are_no_fault_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_candidates_that(monkeypatch, "os._exit(3)")
    runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
    with pytest.raises(SandboxUnavailable, match="ended before it had a program"):
        runner.run(RIGHT, ADD, [LIMIT_S] * 2)
    runner.close()


def lose_the_sandbox(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, mark: bytes) -> None:
    """As if the walls had a hole: a program with this mark in it ends the processes that host
    it."""
    send = CandidateProcess._send

    def attacked(self: CandidateProcess, body: bytes, deadline_s: float) -> bool:
        if mark in body and self is sandbox._candidate:
            (first,) = psutil.Process(sandbox.pid).children()
            first.kill()
            first.wait()
        return send(self, body, deadline_s)

    monkeypatch.setattr(CandidateProcess, "_send", attacked)


def test_a_program_that_loses_every_sandbox_is_a_violation(
    reward: CodeTests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lose_the_sandbox(monkeypatch, reward._runner._programs, b"attack")
    score = reward.score(PROMPT, fenced(f"{RIGHT}\n# attack"))
    assert (score.reward, score.outcome) == (0.0, Outcome.VIOLATION)
    assert score.detail.startswith("sabotage: case 0: the sandbox was lost under a program")
    assert reward.score(PROMPT, fenced(RIGHT)).reward == 1.0


def test_a_sandbox_that_harmless_programs_lose_too_is_no_verdict(
    reward: CodeTests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as attacked:
        lose_the_sandbox(attacked, reward._runner._programs, b"")
        score = reward.score(PROMPT, fenced(RIGHT))
    assert (score.reward, score.outcome) == (None, Outcome.INFRA)
    assert reward.score(PROMPT, fenced(RIGHT)).reward == 1.0


def test_tests_that_lose_their_own_sandbox_are_no_fault_of_the_program(
    reward: CodeTests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gold = CodeGold(function="add", cases=(AssertionCase(statement="assert add(1, 1) == 2"),))
    lose_the_sandbox(monkeypatch, reward._runner._tests, b"assert add")
    score = reward.score(replace(PROMPT, gold=gold.model_dump_json()), fenced(RIGHT))
    assert (score.reward, score.outcome) == (None, Outcome.INFRA)


@pytest.mark.parametrize(
    "program",
    [
        FRAMED + "frame(b'no walls')\ndef add(a, b): return a + b",
        FRAMED + "frame(b'')\ndef add(a, b): return a + b",
        FRAMED + 'def add(a, b): frame(b\'{"unconfined": "x"}\'); return a + b',
        FRAMED + "def add(a, b): frame(b''); return a + b",
    ],
)
def test_no_program_says_that_its_walls_do_not_stand(runner: CaseRunner, program: str) -> None:
    assert verdicts(runner, program, ADD)[0] == "forged"


def test_a_program_that_is_interrupted_leaves_a_sandbox_for_the_next(runner: CaseRunner) -> None:
    runner.interrupt.set()
    with pytest.raises(Interrupted):
        runner.run("while True: pass", ADD, [600.0] * 2)
    runner.interrupt.clear()
    assert verdicts(runner, RIGHT, ADD) == ["pass", "pass"]


@pytest.mark.parametrize("isolation", Isolation)
def test_a_process_that_dies_before_its_program_is_there_costs_the_program_nothing(
    isolation: Isolation,
) -> None:
    runner = CaseRunner(isolation, SandboxLimits())
    assert verdicts(runner, "def add(a, b):\n    return a + b", ADD) == ["pass", "pass"]
    waiting, pid = runner._programs._candidate, runner._programs.pid
    assert waiting is not None
    assert pid is not None
    select.select([waiting._replies], [], [], LIMIT_S)  # its walls stand
    max(psutil.Process(pid).children(recursive=True), key=lambda child: child.create_time()).kill()
    waiting._await_end(LIMIT_S)
    assert verdicts(runner, "def add(a, b):\n    return a + b", ADD) == ["pass", "pass"]
    assert runner._programs.num_starts == 2
    runner.close()


def test_no_program_is_handed_over_where_its_walls_cannot_be_built() -> None:
    sandbox = Sandbox(Isolation.NAMESPACES, SandboxLimits(tmp_bytes=-1))
    with pytest.raises(SandboxUnavailable, match=r"refused to run a program: .* no private /tmp"):
        sandbox.start("x = 1", limit_s=LIMIT_S)
    assert sandbox.pid is None


def test_a_closed_sandbox_leaves_no_process() -> None:
    sandbox = Sandbox(Isolation.NAMESPACES, SandboxLimits())
    sandbox.start("x = 1", limit_s=LIMIT_S)
    pid = sandbox.pid
    assert pid is not None
    sandbox.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert sandbox.send(Command(message={"statement": "x"}, limit_s=1)).kind == "not_run"


@pytest.mark.parametrize("isolation", Isolation)
def test_a_closed_sandbox_leaves_no_process_not_even_a_stopped_one(isolation: Isolation) -> None:
    sandbox = Sandbox(isolation, SandboxLimits())
    sandbox.start("x = 1", limit_s=LIMIT_S, keep=True)
    processes = psutil.Process(sandbox.pid).children(recursive=True)
    for process in processes:
        process.suspend()
    sandbox.close()
    assert psutil.wait_procs(processes, timeout=LIMIT_S)[1] == []


@pytest.mark.skipif(os.getuid() != 0, reason="another user's sandbox has no other user")
@pytest.mark.parametrize("isolation", Isolation)
def test_no_program_of_root_is_root(isolation: Isolation) -> None:
    sandbox = Sandbox(isolation, SandboxLimits())
    sandbox.start("x = 1", limit_s=LIMIT_S, keep=True)
    outermost = psutil.Process(sandbox.pid)
    origin, candidate = [outermost, *outermost.children(recursive=True)][-2:]
    assert set(origin.uids()) == set(candidate.uids()) == set(candidate.gids()) == {65534}
    sandbox.close()


def test_only_root_needs_a_map_of_users() -> None:
    for root in ("0 0 4294967295\n", "0 1000 1\n1 100000 65535\n", "0 100000 65536\n", "0 0 1\n"):
        assert is_needed(0, root)
        assert not is_needed(1000, root)
    assert not is_needed(0, "0 1000 1\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root's sandbox has a map")
def test_root_that_may_not_become_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # twice the same: the kernel refuses
    monkeypatch.setattr("tasks.isolation.user_map.MAP", "0 0 1\n1 0 1\n")
    sandbox = Sandbox(Isolation.NAMESPACES, SandboxLimits())
    with pytest.raises(SandboxUnavailable, match="could not become nobody"):
        sandbox.warm()
    assert sandbox.pid is None


@pytest.mark.parametrize("isolation", Isolation)
def test_arguments_that_a_program_does_not_take_end_with_its_time(isolation: Isolation) -> None:
    deaf = (
        "import time\nimport tasks.rewards.programs.sandbox.candidate as harness\nharness._read ="
        " lambda _: time.sleep(60)"
    )
    gold = CodeGold(function="length", cases=(call_case(("x" * (1 << 20),), 1 << 20),))
    runner = CaseRunner(isolation, SandboxLimits())
    assert verdicts(runner, deaf, gold, 0.3) == ["timeout"]
    assert verdicts(runner, "length = len", gold) == ["pass"]
    runner.close()


@pytest.mark.parametrize("isolation", Isolation)
def test_a_sandbox_in_the_background_yields_to_everything_else(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to the tests beside this one, so that it may take long to start."""
    monkeypatch.setattr("tasks.rewards.programs.sandbox.sandbox.START_S", 240.0)
    sandbox = Sandbox(isolation, SandboxLimits(niceness=19))
    sandbox.warm()
    assert sandbox.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, sandbox.pid) == 19
    sandbox.close()


def test_a_fork_server_ends_with_its_host_even_under_an_endless_program() -> None:
    sandbox = Sandbox(Isolation.NAMESPACES, SandboxLimits())
    sandbox.warm()
    assert sandbox._process is not None
    process = sandbox._process
    asker = threading.Thread(target=_run_for_ever, args=(sandbox,))
    asker.start()
    process.stream.shutdown(socket.SHUT_RDWR)  # whatever the program was at, if it had begun
    asker.join()
    assert process.popen.wait(timeout=20) is not None


def test_a_sandbox_that_is_interrupted_half_built_leaves_nothing_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half_built = ["sh", "-c", "sleep 600 & sleep 600"]  # a child that outlives its parent
    monkeypatch.setattr("tasks.rewards.programs.sandbox.sandbox.command", lambda *_: half_built)
    interrupt = Interrupt()
    sandbox = Sandbox(Isolation.NAMESPACES, SandboxLimits(), interrupt)
    with ThreadPoolExecutor(1) as thread:
        start = thread.submit(sandbox.warm)
        interrupt.set()
        with pytest.raises(Interrupted):
            start.result(LIMIT_S)
    assert sandbox.pid is None


def test_a_child_that_is_killed_leaves_nothing_open() -> None:
    child = start_child(lambda _: ["sleep", "600"], env={}, is_silent=True)
    child.kill()
    assert child.popen.stderr is not None
    assert child.popen.stderr.closed
    assert child.stream.fileno() == -1


@pytest.mark.parametrize("told", [b"", b"{", b'{"child-pid": 12', b"{}"])
def test_a_bubblewrap_that_ends_while_it_tells_its_process_has_its_own_words(told: bytes) -> None:
    ours, theirs = socket.socketpair()
    with UserMap() as users, ours, theirs:
        os.write(users.descriptors[0], told)
        users.grant(ours.fileno(), LIMIT_S, Interrupt())


def test_an_end_by_any_signal_is_told() -> None:
    sandbox = Sandbox(Isolation.LANDLOCK, SandboxLimits())
    sandbox.start("x = 1", limit_s=LIMIT_S, keep=True)
    children = psutil.Process(sandbox.pid).children(recursive=True)
    max(children, key=lambda child: child.create_time()).send_signal(signal.SIGRTMIN + 2)
    reply = sandbox.send(Command(message={"statement": "pass"}, limit_s=LIMIT_S))
    assert (reply.kind, reply.detail) == ("died", "was killed by signal 36")
    sandbox.close()


def _run_for_ever(sandbox: Sandbox) -> None:
    with contextlib.suppress(SandboxUnavailable):
        sandbox.start("while True: pass", limit_s=60.0)


def test_machine_without_the_isolation_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    self_test.holds.cache_clear()
    try:
        with pytest.raises(
            ValueError,
            match=(
                r"Creating new namespace failed; allow unprivileged user namespaces .* isolation"
                r" 'landlock'"
            ),
        ):
            CodeTests(CodeTestsConfig(), MeasuredTimes())
    finally:
        self_test.holds.cache_clear()


def test_a_sandbox_without_the_standard_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "IMPORT", "import a_module_out_of_reach")
    self_test.holds.cache_clear()
    try:
        assert "cannot read Python beneath" in self_test.holds(Isolation.LANDLOCK)
        with pytest.raises(ValueError, match=r"No module named .* where everybody may read it"):
            self_test.check_isolation(Isolation.LANDLOCK)
    finally:
        self_test.holds.cache_clear()


def test_the_weaker_isolation_is_tried_out_too() -> None:
    reason = self_test.holds(Isolation.LANDLOCK)
    if reason:
        with pytest.raises(ValueError, match="kernel with Landlock"):
            self_test.check_isolation(Isolation.LANDLOCK)
        return
    runner = CaseRunner(Isolation.LANDLOCK, SandboxLimits())
    assert verdicts(runner, "def add(a, b):\n    return a + b", ADD) == ["pass", "pass"]
    assert (
        verdicts(
            runner, f"def add(a, b):\n    return open({sys.prefix!r} + '/pyvenv.cfg').read()", ADD
        )[0]
        == "exception"
    )
    runner.close()


# --- the reward
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    reward = CodeTests(
        CodeTestsConfig(timeout=AdaptiveTimeoutConfig(floor_s=0.2, ceiling_s=1.5)), MeasuredTimes()
    )
    yield reward
    reward.close()


PROMPT = Prompt(
    prompt_id="0/1", domain="code", token_ids=(1,), gold=ADD.model_dump_json(), text="q"
)


FORGE = "import os, struct\ndef add(a, b):\n    os.write(4, struct.pack('>I', len(body)) + body)\n"
NO_WALLS = f"""body = b'{{"unconfined": "x"}}'\n{FORGE}"""


def fenced(program: str) -> Generated:
    return make_generated(f"Here you are:\n```python\n{program}\n```\nDone.")


def test_reward_is_one_when_every_case_passes_and_records_them(reward: CodeTests) -> None:
    score = reward.score(PROMPT, fenced("def add(a, b):\n    return a + b"))
    assert (score.reward, score.outcome, score.detail) == (1.0, Outcome.OK, "2 passed")
    assert [case.verdict for case in score.cases] == [CaseVerdict.PASS] * 2
    assert len({case.key for case in score.cases}) == 2
    assert all(case.limit_s == 1.5 for case in score.cases)


@pytest.mark.parametrize(
    ("program", "outcome", "detail"),
    [
        ("def add(a, b):\n    return 5", Outcome.WRONG, "wrong: case 1"),
        (
            "def add(a, b):\n    raise KeyError(chr(0xd800))",
            Outcome.WRONG,
            "exception: case 0: KeyError",
        ),
        ("def add(a, b):\n    while True: pass", Outcome.TIMEOUT, "timeout: case 0 after 1.5 s"),
        ("def add(a, b):\n    return 'x' * 400_000", Outcome.VIOLATION, "output: case 0"),
        (NO_WALLS, Outcome.VIOLATION, "forged: case 0"),
        (f"{NO_WALLS}add(1, 2)", Outcome.VIOLATION, "forged: case 0"),
        ("", Outcome.WRONG, "no_code"),
        ("#" * (1 << 19), Outcome.WRONG, "too_long"),
    ],
)
def test_failures_are_told_apart(
    reward: CodeTests, program: str, outcome: Outcome, detail: str
) -> None:
    score = reward.score(PROMPT, fenced(program))
    assert (score.reward, score.outcome) == (0.0, outcome)
    assert score.detail.startswith(detail)


def test_a_case_that_is_killed_before_the_ceiling_is_an_early_kill() -> None:
    times, config = MeasuredTimes(), CodeTestsConfig(timeout=AdaptiveTimeoutConfig(floor_s=0.2))
    reward = CodeTests(config, times)
    score = reward.score(PROMPT, fenced("def add(a, b):\n    return a + b"))
    times.learn(observed(config.timeout, (score.cases,)))
    score = reward.score(PROMPT, fenced("def add(a, b):\n    while True: pass"))
    reward.close()
    assert (score.outcome, score.detail) == (Outcome.TIMEOUT, "early_kill: case 0 after 0.2 s")


ADAPTIVE = AdaptiveTimeoutConfig(floor_s=0.2, ceiling_s=1.5)
ENDLESS = "def add(a, b):\n    while True: pass"


def limits_of_the_first_response(
    solution: str, timeout: AdaptiveTimeoutConfig
) -> tuple[Score, MeasuredTimes]:
    """A question with this solution, first answered by a program that never ends."""
    times = MeasuredTimes()
    reward = CodeTests(CodeTestsConfig(timeout=timeout), times)
    gold = ADD.model_copy(update={"solution": solution})
    score = reward.score(replace(PROMPT, gold=gold.model_dump_json()), fenced(ENDLESS))
    reward.close()
    return score, times


def test_a_question_s_own_solution_sets_the_limits_of_its_first_response() -> None:
    score, times = limits_of_the_first_response("def add(a, b):\n    return a + b", ADAPTIVE)
    assert (score.outcome, score.detail) == (Outcome.TIMEOUT, "early_kill: case 0 after 0.2 s")
    assert [anchor.num_correct for anchor in times.anchors.values()] == [1, 1]
    slow, _ = limits_of_the_first_response(
        "import time\ndef add(a, b):\n    time.sleep(0.4)\n    return a + b", ADAPTIVE
    )
    assert 0.6 <= slow.cases[0].limit_s < 1.5


def test_a_solution_that_fails_sets_none_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    score, times = limits_of_the_first_response("def add(a, b):\n    return 5", ADAPTIVE)
    assert (score.detail, dict(times.anchors)) == ("timeout: case 0 after 1.5 s", {})
    assert "its own solution fails (wrong: case 1)" in caplog.text


def test_with_a_fixed_limit_no_solution_is_executed() -> None:
    fixed = AdaptiveTimeoutConfig(floor_s=0.5, ceiling_s=0.5)
    score, times = limits_of_the_first_response("def add(a, b):\n    return a + b", fixed)
    assert (score.detail, dict(times.anchors)) == ("timeout: case 0 after 0.5 s", {})


def test_sandbox_that_cannot_be_had_any_more_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = CodeTests(CodeTestsConfig(), MeasuredTimes())
    monkeypatch.setattr("tasks.rewards.programs.sandbox.sandbox.CODE", ("no/such/path",))
    score = reward.score(PROMPT, fenced("def add(a, b):\n    return a + b"))
    assert (score.reward, score.outcome) == (None, Outcome.INFRA)
    assert "no/such/path" in score.detail


def test_golds_of_earlier_rounds_are_forgotten() -> None:
    tracemalloc.start()
    for number in range(1_000):
        case = StdioCase(stdin=f"{number} {'x' * 50_000}", stdout="")
        read_gold(CodeGold(cases=(case,)).model_dump_json())
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 30_000_000, "golds have 50 kB, as a text and read"


def test_malformed_gold_is_found_when_the_data_set_is_read(reward: CodeTests) -> None:
    reward.check_gold(ADD.model_dump_json())
    for bad in (
        "not json",
        "{}",
        '{"cases": []}',
        '{"function": "f", "cases": [{"kind": "call", "arguments": [], "expected": {"odd": 1}}]}',
    ):
        with pytest.raises(ValueError, match=r"repair|to_json"):
            reward.check_gold(bad)
