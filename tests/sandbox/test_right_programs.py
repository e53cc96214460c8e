"""Right programs pass under both isolations, whatever their style, and wrong ones do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from artifacts.datasets.program_tests import AssertionCase, Case, CodeGold, StdioCase, call_case
from tasks.isolation.isolation import Isolation, SandboxLimits
from tasks.rewards.programs.fenced_program import program_of
from tasks.rewards.programs.sandbox.case_runner import CaseRunner
from tasks.rewards.programs.sandbox.self_test import holds

LIMIT_S = 20.0
SOLVE = "def solve(x):\n    return x * x\n"
CALL = call_case((7,), 49)
ASSERTION = AssertionCase(
    statement="assert solve(7) == 49 and list(map(candidate, [1, 2])) == [1, 4]",
)


@pytest.fixture(scope="module", params=list(Isolation))
def runner(request: pytest.FixtureRequest) -> Iterator[CaseRunner]:
    if reason := holds(request.param):
        pytest.skip(f"this machine does not give {request.param}: {reason}")
    runner = CaseRunner(request.param, SandboxLimits())
    yield runner
    runner.close()


def verdicts(runner: CaseRunner, program: str, *cases: Case, preamble: str = "") -> list[str]:
    gold = CodeGold(function="solve", preamble=preamble, cases=cases)
    return [str(run.verdict) for run in runner.run(program, gold, [LIMIT_S] * len(cases))]


NODE = """from dataclasses import dataclass, field, fields
from typing import ClassVar, Optional, get_type_hints

@dataclass
class Node:
    value: "int"
    next: "Optional[Node]" = None
    count: "ClassVar[int]" = 0

assert get_type_hints(Node)["next"] == Optional[Node] and len(fields(Node)) == 2
"""
UNQUOTED = NODE.replace('"', "").replace("[next]", "['next']")
CLOSING = "import sys\ndef solve(x):\n    sys.stdout.close()\n    return x * x\n"
FUNCTIONS = {
    "a class that names itself": NODE + SOLVE,
    "annotations that are texts": "from __future__ import annotations\n" + UNQUOTED + SOLVE,
    "a named tuple": "import typing\nclass P(typing.NamedTuple):\n    x: 'P'\n" + SOLVE,
    "a module that looks itself up": SOLVE + "import sys\nsys.modules[__name__].solve(1)",
    "line ends of another system": (NODE + SOLVE).replace("\n", "\r\n"),
    "line ends of an old system": SOLVE.replace("\n", "\r"),
    "byte order mark": "\ufeff" + SOLVE,
    "closed output": "import sys\nprint('begun')\nsys.stdout.close()\n" + SOLVE,
    "closed descriptor": "import os\nprint('begun')\nos.close(1)\n" + SOLVE,
    "no output": "import sys\nsys.stdout = sys.stderr = None\n" + SOLVE,
    "output of its own": "import io, sys\nsys.stdout = io.StringIO()\n" + SOLVE,
    "output closed in a call": CLOSING,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_right_function_passes(runner: CaseRunner, name: str) -> None:
    once = AssertionCase(statement="assert solve(7) == 49")
    assert verdicts(runner, FUNCTIONS[name], CALL, once) == ["pass", "pass"]


OF_BASES = {  # what is returned, and statements that hold of it
    "Counter('aab')": "assert solve(1) == {'a': 2, 'b': 1}",
    "defaultdict(list, {1: [2]})": "assert solve(1) == {1: [2]} and solve(1)[1] == [2]",
    "OrderedDict([((1, 2), 3)])": "assert solve(1) == {(1, 2): 3}",
    "namedtuple('Pair', 'a b')(1, 2)": "assert solve(1) == (1, 2) and max([solve(1)]) == (1, 2)",
    "[IntEnum('E', 'A B')['B']]": "assert solve(1) == [2]",
    "type(x)(x)": "assert solve(__import__('collections').Counter('a')) == {'a': 1}",
}


@pytest.mark.parametrize("expression", OF_BASES)
def test_a_subclass_of_a_builtin_passes_where_it_passes_in_python(
    runner: CaseRunner,
    expression: str,
) -> None:
    imports = "from collections import *\nfrom enum import IntEnum\n"
    program = f"{imports}def solve(x):\n    return {expression}"
    call = call_case((7,), 7)
    assert verdicts(runner, program, AssertionCase(statement=OF_BASES[expression])) == ["pass"]
    assert verdicts(runner, program, call)[0] == ("pass" if "x" in expression else "exception")


@pytest.mark.parametrize(
    "text",
    ["```python\r\n{}```", "```py\n\ufeff{}```", "\ufeffSo:\r\n```py \r\n{}```\r\n", "\ufeff{}"],
)
def test_a_right_answer_passes_however_it_is_fenced(runner: CaseRunner, text: str) -> None:
    for program in (SOLVE, SOLVE.replace("\n", "\r\n")):
        assert verdicts(
            runner,
            program_of(text.format(program)),
            CALL,
            ASSERTION,
        ) == ["pass", "pass"]


PREAMBLE = 'from typing import List\n\ndef solve(x: int) -> int:\n    """ The square of x. """\n'


@pytest.mark.parametrize(
    "program",
    [
        "    return x * x\n",
        SOLVE,
        "from __future__ import annotations\n" + SOLVE,
        "\ufeff# S\r\n'''S.'''\r\nfrom __future__ import (\r\nannotations)\r\n" + UNQUOTED + SOLVE,
    ],
)
def test_a_program_stands_below_its_preamble(runner: CaseRunner, program: str) -> None:
    assert verdicts(runner, program, CALL, ASSERTION, preamble=PREAMBLE) == ["pass", "pass"]


def test_what_is_no_program_is_none_beside_its_preamble_either(runner: CaseRunner) -> None:
    assert verdicts(runner, "    return x *", CALL, preamble=PREAMBLE) == ["exception"]
    assert verdicts(
        runner,
        "x = 1\nfrom __future__ import annotations\n" + SOLVE,
        CALL,
        preamble=PREAMBLE,
    ) == ["exception"]


READ = "import atexit, io, os, sys\nanswer = str(sum(map(int, input().split())))\n"
KEEP = """out = sys.stdout = io.StringIO()
print(answer)
atexit.register(lambda: os.write(1, out.getvalue().encode()))
"""
SCRIPTS = {
    "closed output": READ + "print(answer)\nsys.stdout.close()",
    "no output": READ + "print(answer)\nsys.stdout = None",
    "closed descriptor": READ + "print(answer, flush=True)\nos.close(1)",
    "exit with closed output": READ + "print(answer)\nsys.stdout.close()\nsys.exit()",
    "kept output": READ + KEEP,
    "output replaced with something in it": READ + "print(answer)\nsys.stdout = io.StringIO()",
    "file that is never closed": READ + "out = open(1, 'w', closefd=False)\nout.write(answer)",
    "output wrapped": READ + "sys.stdout = io.TextIOWrapper(sys.stdout.detach())\nprint(answer)",
    "output unwrapped": READ + "out = sys.stdout.detach()\nout.write(answer.encode())",
    "streams by other names": READ + "read, out = sys.stdin, sys.stdout\nprint(answer, file=out)",
    "exit handler and exit": READ + "atexit.register(print, answer)\nraise SystemExit(0)",
    "main module": READ + "if __name__ == '__main__':\n    print(__import__('__main__').answer)",
    "line ends of another system": (READ + "print(answer, end='\\r\\n')\n").replace("\n", "\r\n"),
    "a class that names itself": NODE + READ + "print(answer)",
    "byte order mark": "\ufeff" + READ + "print(answer)",
    "no arguments": READ + "print(answer, *sys.argv[1:])",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_right_script_passes(runner: CaseRunner, name: str) -> None:
    assert verdicts(runner, SCRIPTS[name], StdioCase(stdin="3 4\n", stdout="7")) == ["pass"]


@pytest.mark.parametrize(
    "end",
    ["1 / 0", "sys.exit(1)", "atexit.register(os._exit, 1)", "print(1)\nos.close(1)"],
)
def test_a_script_that_ends_badly_does_not_pass(runner: CaseRunner, end: str) -> None:
    assert verdicts(
        runner,
        f"{READ}print(answer)\n{end}",
        StdioCase(stdin="3 4\n", stdout="7"),
    ) != ["pass"]


ENDINGS = (
    "StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit",
    "BaseException", "Own", "OwnStop",
)  # fmt: skip
STATEMENTS = (
    "assert all(map(solve, [1, 2, 3]))",
    "assert all(solve(x) for x in [1, 2])",
    "assert list(map(solve, [])) == [] and sum(map(solve, [1, 2])) == 0",
    "for x in map(solve, [1, 2]):\n    assert x == 1",
    "for x in iter(solve, None):\n    assert x == 1",
    "assert not [x for x in filter(solve, [1, 2])]",
)


@pytest.mark.parametrize("name", ENDINGS)
def test_an_exception_ends_no_iteration_of_a_test_as_if_it_had_passed(
    runner: CaseRunner,
    name: str,
) -> None:
    classes = "class Own(BaseException):\n    pass\nclass OwnStop(StopIteration):\n    pass\n"
    program = f"{classes}def solve(*given):\n    raise {name}\n"
    for statement in STATEMENTS:
        assert verdicts(
            runner,
            program,
            AssertionCase(statement=statement),
        ) == ["exception"], statement
    assert verdicts(runner, program, call_case((), None)) == ["exception"]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("ValueError('too small')", "ValueError"),
        ("__import__('json').JSONDecodeError('too small', '', 0)", "ValueError"),
        ("type('Own', (KeyError,), {})('too small')", "LookupError"),
        ("__import__('decimal').DivisionByZero('too small')", "ZeroDivisionError"),
    ],
)
def test_a_test_may_expect_an_exception_by_its_builtin_class_and_its_words(
    runner: CaseRunner,
    raised: str,
    expected: str,
) -> None:
    says = "assert 'too small' in str(error)"
    catch = f"try:\n    solve(1)\nexcept {expected} as error:\n    {says}\nelse:\n    assert False"
    assert verdicts(
        runner,
        f"def solve(x):\n    raise {raised}",
        AssertionCase(statement=catch),
    ) == ["pass"]
    assert verdicts(runner, SOLVE, AssertionCase(statement=catch)) == ["wrong"]


def test_a_program_that_ends_in_a_call_leaves_the_rest_of_the_tests_unrun(
    runner: CaseRunner,
) -> None:
    lenient = AssertionCase(statement="try:\n    solve(1)\nexcept KeyError:\n    pass")
    assert verdicts(
        runner,
        "def solve(x):\n    raise SystemExit",
        ASSERTION,
        lenient,
        lenient,
    ) == ["exception", "not_run", "not_run"]
