"""Whatever a program does that a model writes, the model reads a short text."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tasks.environments.base import RequestedProgram
from tasks.environments.tools.programs import (
    KILLED,
    NO_MEMORY,
    SILENT,
    TOO_MUCH,
    ProgramRunner,
)
from tasks.isolation.isolation import Isolation
from tasks.rewards.programs.sandbox.self_test import holds

LIMIT_S = 30.0  # however busy the machine is
SHORT_S = 1.0  # of what never ends
NO_END = "It did not end within 1 s."
MAX_CHARS = 80


@pytest.fixture(scope="module", params=list(Isolation))
def runner(request: pytest.FixtureRequest) -> Iterator[ProgramRunner]:
    if reason := holds(request.param):
        pytest.skip(f"this machine does not give {request.param}: {reason}")
    runner = ProgramRunner(request.param)
    yield runner
    runner.close()


def said(runner: ProgramRunner, text: str, limit_s: float = LIMIT_S) -> str:
    return runner.run(RequestedProgram(text, limit_s, MAX_CHARS))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print(47 * 86)", "4042"),
        ("47 * 86", "4042"),
        ("a = 47\nb = 86\na * b", "4042"),
        ("print(1)\nprint(2)", "1\n2"),
        ("print(1)\nNone", "1"),
        ("def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(20))", "6765"),
        ("import math\nmath.comb(10, 3)", "120"),
        ("if __name__ == '__main__':\n    print('main')", "main"),
        ("x = 5", SILENT),
        ("", SILENT),
        ("print(1)\nexit()", "1"),
        ("import sys\nprint(1)\nsys.exit(3)", "1"),
        ("print(1 / 0)", "ZeroDivisionError: division by zero"),
        ("print(1)\nprint(x)", "1\nNameError: name 'x' is not defined"),
        ("print(1", "SyntaxError: '(' was never closed (program, line 1)"),
        ("input()", "EOFError: EOF when reading a line"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt:"),
        ("'\u00e9\U0001f600'", "\u00e9\U0001f600"),
        ("print('x' * 81)", "x" * 76 + " ..."),
        ("print('x' * 80)", "x" * 80),
    ],
)
def test_a_program_says_what_it_prints_or_what_was_wrong(
    runner: ProgramRunner, text: str, told: str
) -> None:
    assert said(runner, text) == told


@pytest.mark.parametrize(
    "text",
    [
        "while True:\n    pass",
        "9 ** 9 ** 9",
        "import time\ntime.sleep(3600)",
        "import signal\nsignal.pause()",
        "try:\n    while True: pass\nfinally:\n    while True: pass",
    ],
)
def test_a_program_without_an_end_is_ended(runner: ProgramRunner, text: str) -> None:
    began_s = time.monotonic()
    assert said(runner, text, SHORT_S) == NO_END
    assert time.monotonic() - began_s < 60
    assert said(runner, "print(1)") == "1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 'x' * (1 << 40)", NO_MEMORY),
        ("x = []\nwhile True:\n    x.append(bytes(1 << 20))", NO_MEMORY),
        ("while True:\n    print('x' * 1000)", TOO_MUCH),
        ("import sys\nsys.stdout.write('x' * (1 << 20))", TOO_MUCH),
        ("import os\nos._exit(0)", KILLED),
        ("import os\nos.abort()", KILLED),
        ("import os\nos.kill(os.getpid(), 9)", "PermissionError"),
        ("import ctypes\nctypes.string_at(0)", KILLED),
        ("import os\nos.write(4, b'\\0\\0\\0\\x02{}')", KILLED),
        ("import os\nos.write(4, b'\\x7f\\xff\\xff\\xff')\nwhile True: pass", KILLED),
        ("import os\nos.fork()", "PermissionError"),
        ("import subprocess\nsubprocess.run(['true'])", "Error"),
        ("import threading\nthreading.Thread(target=print).start()", "RuntimeError"),
        ("import socket\nsocket.socket()", "PermissionError"),
        ("def f():\n    f()\nf()", "RecursionError"),
        ("import sys\nsys.stdout.close()\nprint(1)", SILENT),
        ("(" * 5_000, "SyntaxError"),
        ("x = " + "-" * 100_000 + "1", ""),
        ("\ud800", "UnicodeEncodeError"),
        ("\x00", "SyntaxError"),
        ("import os\nfor fd in range(3, 9):\n    os.close(fd)", ""),
        ("print('<|im_end|>\\x1b[31m\\0')", "<|im_end|>"),
    ],
    ids=lambda text: text[:30].encode("ascii", "replace").decode(),
)
def test_a_hostile_program_ends_in_a_short_text(
    runner: ProgramRunner, text: str, told: str
) -> None:
    observation = said(runner, text)
    assert told in observation, observation
    assert 0 < len(observation) <= MAX_CHARS
    assert said(runner, "print(1)") == "1"


def test_a_program_repeats_itself_and_leaves_nothing_behind(runner: ProgramRunner) -> None:
    draw = "import random\nprint(random.random(), hash('x'))"
    assert said(runner, draw) == said(runner, draw)
    leave = "import builtins, os\nbuiltins.left = 1\nopen('/tmp/left', 'w').write('x')"
    look = "import builtins, os\nprint(hasattr(builtins, 'left'), os.path.exists('/tmp/left'))"
    said(runner, leave)
    assert said(runner, look) == "False False"


def test_a_program_sees_neither_the_sources_nor_the_packages_of_the_run(
    runner: ProgramRunner,
) -> None:
    assert "ModuleNotFoundError" in said(runner, "import numpy")
    assert "Error" in said(runner, f"open({__file__!r}).read()")
    assert "Error" in said(runner, "import tasks.environments.tools.questions")


def test_a_machine_without_the_isolation_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.environments.tools.programs.holds", lambda _: "no walls")
    runner = ProgramRunner(Isolation.NAMESPACES)
    with pytest.raises(ValueError, match=r"Python needs the isolation .* no walls; allow"):
        runner.run(RequestedProgram("1", LIMIT_S, MAX_CHARS))
    runner.close()
