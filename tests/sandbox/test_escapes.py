"""The escape suite: every attempt is contained, gets no reward, and leaves the sandbox fit for the
next program."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from escapes import ATTEMPTS, ENDLESS, LOOK_THROUGH_MEMORY, WHOLE

from artifacts.datasets.program_tests import AssertionCase, CodeGold, StdioCase, call_case
from tasks.isolation.isolation import Isolation, SandboxLimits
from tasks.rewards.programs.sandbox.case_runner import CaseRunner
from tasks.rewards.programs.sandbox.self_test import holds

LIMIT_S = 1.0
EXPECTED = (  # computed by no attempt; `won` has it only on this side of the text
    "the expected value"
)
FORGE = "import os, struct\ndef solve(x): os.write(4, struct.pack('>I', len(body)) + body)\n"
FORGED = {
    "no walls": b'{"unconfined": "they fell"}',
    "walls that stand": b"",
    "a number too large": b'{"value": {"complex": [1%s, 0.0]}}' % (b"0" * 400),
    "nothing to compare": b'{"value": {"dict": [[[], 0]]}}',
    "a question": b'{"ask": {"arguments": [], "named": {"dict": []}}}',
    "no value": b'{"verdict": "pass"}',
    "no text": b"\xff\xfe",
}
LIMITS = SandboxLimits(memory_bytes=256 << 20)
PACKAGES = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
SIGNAL_BY_PIPE = """
import ctypes, os
def solve(pid):
    first, second = os.pipe()
    fcntl = ctypes.CDLL(None).fcntl
    fcntl(first, 8, pid)
    fcntl(first, 10, 9)
    fcntl(first, 4, 0x2000)
    os.write(second, b"x")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """A sandbox, and what must stay out of its reach."""

    runner: CaseRunner
    canary: Path  # a file that everybody may read
    server: socket.socket  # a port of the machine that must never be reached
    secret: str  # in the environment of the sandbox's host

    def verdict(self, program: str, limit_s: float = LIMIT_S) -> str:
        gold = CodeGold(function="solve", cases=(call_case((7,), EXPECTED),))
        (run,) = self.runner.run(program, gold, [limit_s])
        return str(run.verdict)

    def is_fit(self) -> bool:
        return self.verdict(f"def solve(x):\n    return {EXPECTED!r}", 20.0) == "pass"

    def filled(self, attempt: str) -> str:
        told = {
            "CANARY": repr(str(self.canary)),
            "PORT": str(self.server.getsockname()[1]),
            "SECRET": repr(self.secret),
        }
        told["PACKAGES"] = repr(PACKAGES)
        for name, value in told.items():
            attempt = attempt.replace(name, value)
        return attempt.replace("EXPECTED", repr(EXPECTED[::-1]) + "[::-1]")


@pytest.fixture(scope="module", params=list(Isolation))
def arena(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arena]:
    reason = holds(request.param)
    if reason:
        pytest.skip(f"this machine does not give {request.param}: {reason}")
    directory = tmp_path_factory.mktemp("host")
    canary, secret = directory / "canary", secrets.token_hex(8)
    canary.write_text("canary")
    canary.chmod(0o644)
    os.environ["ROLLFLOW_SECRET"] = secret
    runner = CaseRunner(request.param, LIMITS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield Arena(runner=runner, canary=canary, server=server, secret=secret)
    runner.close()
    del os.environ["ROLLFLOW_SECRET"]


def as_program(attempt: str) -> str:
    """The attempt as the body of a function that gives the expected value once the attempt has
    worked."""
    body = "\n".join(f"    {line}" for line in attempt.split("\n"))
    return (
        f"def won():\n    return {EXPECTED[::-1]!r}[::-1]\ndef solve(x):\n{body}\n    return"
        " won()\n"
    )


def limit_of(name: str) -> float:
    return 0.2 if name in ENDLESS else 10.0


def test_an_attempt_that_works_would_be_seen(arena: Arena) -> None:
    assert arena.verdict(as_program("import os; os.getpid()"), 20.0) == "pass"
    assert arena.is_fit()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_attempt_is_contained(arena: Arena, name: str) -> None:
    assert arena.verdict(as_program(arena.filled(ATTEMPTS[name])), limit_of(name)) != "pass"
    assert arena.is_fit()


@pytest.mark.parametrize("name", WHOLE)
def test_program_that_is_no_solution_gets_nothing(arena: Arena, name: str) -> None:
    assert arena.verdict(WHOLE[name], limit_of(name)) != "pass"
    assert arena.is_fit()


def test_nothing_of_the_last_program_is_left_in_memory(arena: Arena) -> None:
    mark = secrets.token_hex(8)
    for _ in range(2):
        arena.verdict(f"left = {mark!r} * 100\ndef solve(x):\n    return {mark!r} * 50", 20.0)
        search = LOOK_THROUGH_MEMORY.replace("FIRST", repr(mark[:8].encode())).replace(
            "SECOND", repr(mark[8:].encode())
        )
        # it looked everywhere and gives the expected value where it found nothing
        assert arena.verdict(search, 20.0) == "pass"


def test_no_open_file_is_shared_by_two_programs(arena: Arena) -> None:
    flags = (
        "import ctypes, os\nfcntl = ctypes.CDLL(None).fcntl\ndef flags(): return [fcntl(place, 3)"
        " for place in range(5)]\n"
    )
    marks = (
        "def solve(x):\n    for place, old in enumerate(flags()): fcntl(place, 4, old |"
        " os.O_APPEND)\n    return flags()\n"
    )
    looks = (
        "def solve(x): return flags() if any(flag & os.O_APPEND for flag in flags()) else 'the"
        " expected value'\n"
    )
    assert arena.verdict(flags + marks, 20.0) == "wrong"
    assert arena.verdict(flags + looks, 20.0) == "pass"


def test_no_process_outside_is_signalled(arena: Arena) -> None:
    nobody = {"user": 65534} if os.getuid() == 0 else {}
    with subprocess.Popen(["sleep", "600"], **nobody) as neighbour:
        gold = CodeGold(function="solve", cases=(call_case((neighbour.pid,), None),))
        arena.runner.run(SIGNAL_BY_PIPE, gold, [LIMIT_S])
        assert neighbour.poll() is None
        neighbour.kill()
    assert arena.is_fit()


def test_the_machine_is_as_it_was(arena: Arena) -> None:
    assert arena.canary.read_text() == "canary"
    assert [path.name for path in arena.canary.parent.iterdir()] == ["canary"]
    with pytest.raises(BlockingIOError):
        arena.server.accept()
    pid = arena.runner._programs.pid
    assert pid is not None
    ends = time.monotonic() + 20.0
    while (
        len(psutil.Process(pid).children(recursive=True)) > 3
    ):  # bwrap's first process, the origin, and a candidate that waits
        assert time.monotonic() < ends, "a program left a process behind"


@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        "print('wrong'); import os; os._exit(0)",
        "while True: print('x')",
        "import sys; sys.stdout = None; raise SystemExit(0)",
        "import os; os.close(1)",
        "import os; os.lseek(1, 1 << 23, 0); os.write(1, b'x')",
        "print(open('/proc/self/fd/1').read())",
        (
            "import os, sys; sys.stdout.write('7'); sys.stdout.flush(); os.kill(os.getpid(), 9);"
            " while_ = 1 / 0"
        ),
    ],
)
def test_whole_program_without_the_right_output_gets_nothing(arena: Arena, program: str) -> None:
    (run,) = arena.runner.run(
        program, CodeGold(cases=(StdioCase(stdin="3 4", stdout="7"),)), [LIMIT_S]
    )
    assert str(run.verdict) != "pass"
    assert arena.is_fit()


@pytest.mark.parametrize(
    "program",
    [
        "class Any:\n    def __eq__(self, other): return True\ndef solve(x): return Any()",
        "import builtins\nbuiltins.AssertionError = KeyError\ndef solve(x): return 0",
        "def solve(x):\n    raise AssertionError",
        "def solve(x):\n    raise SystemExit(0)",
        "import os\ndef solve(x): os._exit(0)",
        FORGE + 'body = b\'{"ask": {"arguments": [], "named": {}}}\'',
        FORGE + 'body = b\'{"value": {"odd": 1}}\'',
        (
            "import gc\ndef solve(x): return next(int(text) for text in map(str, gc.get_objects())"
            " if text == '49')"
        ),
    ],
)
def test_assertions_cannot_be_talked_round(arena: Arena, program: str) -> None:
    gold = CodeGold(
        function="solve",
        cases=(AssertionCase(statement="assert solve(7) == 49 and solve(0) == 0"),),
    )
    (run,) = arena.runner.run(program, gold, [LIMIT_S])
    assert str(run.verdict) != "pass"
    assert arena.is_fit()


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("place", ["loading", "call"])
def test_a_forged_message_is_a_violation_wherever_it_comes(
    arena: Arena,
    place: str,
    name: str,
) -> None:
    call = "solve(7)\n" if place == "loading" else ""
    program = f"body = {FORGED[name]!r}\n{FORGE}{call}"
    gold = CodeGold(
        function="solve",
        cases=(AssertionCase(statement="assert solve(7) == 49"), call_case((7,), 49)),
    )
    runs = arena.runner.run(program, gold, [20.0] * 2)
    assert {str(run.verdict) for run in runs} == {"forged"}
    if place == "loading":
        (run,) = arena.runner.run(
            program,
            CodeGold(cases=(StdioCase(stdin="", stdout=""),)),
            [20.0],
        )
        assert str(run.verdict) == "forged"
    assert arena.is_fit()


LYING = """
class Text(str):
    __class__ = property(lambda self: bool)
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
class Number(int):
    __eq__ = __ge__ = __le__ = lambda self, other: True
    __hash__ = int.__hash__
    __bool__ = lambda self: True
class Decimal(float):
    __eq__ = lambda self, other: True
    __hash__ = float.__hash__
class Rows(list):
    __eq__ = lambda self, other: True
    __iter__ = lambda self: iter([49])
class Truth:
    __class__ = bool
    __eq__ = lambda self, other: True
    __bool__ = lambda self: True
"""


@pytest.mark.parametrize(
    "value",
    ["Text('x')", "Number(3)", "Decimal(3)", "Rows()", "Truth()", "(Number(3),)", "{Number(9): 1}"],
)
def test_a_value_that_lies_about_itself_equals_nothing(arena: Arena, value: str) -> None:
    program = f"{LYING}def solve(x):\n    return {value}"
    asked = AssertionCase(statement="assert solve(7) == 49 or solve(7) == [49] or solve(7) is True")
    runs = arena.runner.run(
        program,
        CodeGold(function="solve", cases=(call_case((7,), 49), asked)),
        [20.0] * 2,
    )
    has_base = value != "Truth()"
    assert [str(run.verdict) for run in runs] == ["exception", "wrong" if has_base else "exception"]


@pytest.mark.parametrize(
    "change",
    [
        "builtins.all = builtins.any = builtins.isinstance = lambda *_: True",
        "builtins.AssertionError = builtins.Exception = type('Quiet', (), {})",
        "builtins.map = builtins.list = builtins.sorted = lambda *_: []",
        "sys.modules['solution'] = sys.modules['json'] = sys.modules['builtins'] = None",
        "sys.modules['artifacts.datasets.plain_values'].to_json = lambda value, *_: 49",
        "sys.settrace(lambda *_: os._exit(0))",
        "sys.excepthook = sys.unraisablehook = lambda *_: os._exit(0)",
        "atexit.register(os._exit, 0)",
        "import warnings; warnings.warn = print; sys.displayhook = print",
    ],
)
def test_what_a_program_changes_changes_no_test(arena: Arena, change: str) -> None:
    program = f"import atexit, builtins, os, sys\n{change}\ndef solve(x):\n    return 0"
    tests = AssertionCase(
        statement="assert all(map(lambda x: solve(x) == x * x, [1])) and isinstance(solve(7), str)",
    )
    runs = arena.runner.run(
        program,
        CodeGold(function="solve", cases=(tests, call_case((7,), [0]))),
        [20.0] * 2,
    )
    assert "pass" not in {str(run.verdict) for run in runs}
    assert arena.is_fit()
