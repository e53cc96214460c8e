"""The tests of a program: the gold of a code question, and the forms in which data sets publish
such tests.

    {"cases": [...]}                                   a CodeGold as it is
    {"stdin": [...], "stdout": [...]}                  whole programs; also inputs and outputs
    ["assert f(1) == 2", ...]                          assertions
    "from solution import f\\ndef test_one(): ..."      a module of pytest functions

Values are written by `plain_values`; NaN and the infinities by their names, as Python's json does.
Published objects and lists may also be JSON within a text. pytest does not run in the sandbox: test
fixtures, parameters and classes are refused; `pytest.raises` works.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import ConfigDict, Field, ValidationError, field_validator

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.plain_values import from_json, to_json


class PublishedTests(FrozenConfig):
    """A part of the tests of a question."""

    # otherwise pydantic writes infinities as null, which is read back as None
    model_config = ConfigDict(ser_json_inf_nan="constants")


class CallCase(PublishedTests):
    """A case that calls the function and compares its return value."""

    kind: Literal["call"] = Field("call", description="Chooses a call of the function.")
    # Any: JSON of plain values
    arguments: list[Any] = Field(..., description="Positional arguments.")
    # Any: JSON of a plain value
    expected: Any = Field(..., description="What the function must return, in exactly this type.")
    tolerance: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Absolute difference up to which a float is equal.",
    )

    @field_validator("arguments", "expected")
    @classmethod
    def _as_written(cls, data: Any) -> Any:  # Any: JSON of plain values
        """Normalise the JSON to the form that `to_json` writes; ValueError for other JSON."""
        return to_json(from_json(data))


class StdioCase(PublishedTests):
    """A case that runs the program and compares its standard output."""

    kind: Literal["stdio"] = Field("stdio", description="Chooses a whole program.")
    stdin: str = Field("", description="The program's standard input.")
    stdout: str = Field(
        ...,
        description=(
            "What it must print; white space at the ends of lines and of the text does not count."
        ),
    )


class AssertionCase(PublishedTests):
    """A case that executes a statement, which calls the function and must not raise."""

    kind: Literal["assertion"] = Field("assertion", description="Chooses a statement.")
    statement: str = Field(
        ..., description="Python that calls the function by its name, or as `candidate`."
    )


Case = Annotated[CallCase | StdioCase | AssertionCase, Field(discriminator="kind")]


class CodeGold(PublishedTests):
    """The tests of one question; its JSON is `Row.gold`."""

    function: str = Field(
        "",
        description=(
            "Name of the function that calls and assertions are about; a whole program needs none."
        ),
    )
    preamble: str = Field(
        "",
        description=(
            "Text put before the response's program, for example the imports that the question"
            " shows."
        ),
    )
    test_setup: str = Field(
        "",
        description="Executed once before the first assertion, apart from the response's program.",
    )
    solution: str = Field(
        "",
        description=(
            "A right program, if one is known: it is executed once, and its running times are the"
            " first anchors of the limits."
        ),
    )
    cases: tuple[Case, ...] = Field(..., min_length=1, description="All must pass.")


def call_case(arguments: Sequence[object], expected: object) -> CallCase:
    """Make a call case from Python values. Raises ValueError for values that are not plain."""
    return CallCase(arguments=[*map(to_json, arguments)], expected=to_json(expected))


INPUTS = ("stdin", "inputs", "input")
OUTPUTS = ("stdout", "outputs", "output")
FUNCTIONS = ("fn_name", "function", "function_name", "entry_point")
SOLUTION_MODULE = "solution"  # from which published test modules import what they test

_RAISES = """
class pytest:
    class raises:
        def __init__(self, expected, match=None):
            self.expected, self.match = expected, match
        def __enter__(self):
            return self
        def __exit__(self, kind, error, trace):
            assert kind is not None, "nothing was raised"
            if not issubclass(kind, self.expected):
                return False
            import re
            assert self.match is None or re.search(self.match, str(error)), str(error)
            self.value = error
            return True
"""


def program_tests(value: Any, solution: str = "") -> CodeGold:  # Any: JSON, or a test module's text
    """Convert published tests, in any of the module's forms, to the form that is executed. Raises
    ValueError for tests that cannot be executed."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        return _from_object(value, solution)
    if isinstance(value, list):
        return _from_assertions(value, solution)
    if isinstance(value, str) and value.strip():
        return _from_module(value, solution)
    raise ValueError(f"tests must be an object, a list or a module's text, got {value!r}")


def _from_object(value: Mapping[str, Any], solution: str) -> CodeGold:
    if "cases" in value:
        try:
            return CodeGold.model_validate({"solution": solution, **value})
        except ValidationError as error:
            raise ValueError(f"tests are no CodeGold ({error.errors()[0]['msg']})") from error
    for name in FUNCTIONS:
        if value.get(name):
            raise ValueError(
                f"inputs and outputs must be a whole program's, these are of {name} {value[name]!r}"
            )
    inputs, outputs = _column(value, INPUTS), _column(value, OUTPUTS)
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(
            f"tests must have as many inputs as outputs, got {len(inputs)} and {len(outputs)}"
        )
    pairs = zip(inputs, outputs, strict=True)
    cases = tuple(StdioCase(stdin=given, stdout=wanted) for given, wanted in pairs)
    return CodeGold(solution=solution, cases=cases)


def _column(value: Mapping[str, Any], names: Sequence[str]) -> list[str]:  # Any: JSON
    """The texts of the first of these names; some data sets have lists of lines."""
    for name in names:
        if name in value:
            texts = value[name] if isinstance(value[name], list) else [value[name]]
            return ["\n".join(map(str, t)) if isinstance(t, list) else str(t) for t in texts]
    raise ValueError(f"tests must have one of {', '.join(names)}, got {', '.join(value)}")


def _from_assertions(statements: Sequence[Any], solution: str) -> CodeGold:
    if not statements or not all(isinstance(statement, str) for statement in statements):
        raise ValueError(f"a list of tests must hold assertions as text, got {statements!r:.60}")
    modules = [_module(statement) for statement in statements]
    called = (_called(module, defined=frozenset()) for module in modules)
    function = _single(frozenset.intersection(*called))
    body = [node for module in modules for node in module.body]
    if unbound := _read(body) - _bound(body) - {function, "candidate"}:
        raise ValueError(f"assertions must import what they use, got {', '.join(sorted(unbound))}")
    return CodeGold(
        function=function,
        solution=solution,
        cases=tuple(AssertionCase(statement=statement) for statement in statements),
    )


def _from_module(source: str, solution: str) -> CodeGold:
    module = _module(source)
    tests = [node for node in module.body if _is_test(node)]
    loose = [node for node in module.body if isinstance(node, ast.Assert)]
    setup = [node for node in module.body if not _is_left_out(node) and node not in loose]
    if not tests and not loose:
        raise ValueError("a test module must have a function test_... or an assertion, got none")
    for test in tests:
        if test.args.args or test.decorator_list:
            raise ValueError(
                f"the test {test.name} must have neither parameters nor decorators, it has"
                f" {ast.unparse(test.args) or ast.unparse(test.decorator_list[0])!r}"
            )
    for node in setup:
        is_class = isinstance(node, ast.ClassDef) and any(map(_is_test, node.body))
        is_coroutine = isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test")
        if is_class or is_coroutine:  # pytest would collect them, and nothing here executes them
            first_line = ast.unparse(node).splitlines()[0]
            raise ValueError(f"tests must be plain functions, got {first_line}")
    names = _imported(module)
    defined = frozenset(node.name for node in setup if isinstance(node, ast.FunctionDef))
    function = _single(names or _called(module, defined | _bound(setup)))
    cases = (*(f"{test.name}()" for test in tests), *map(ast.unparse, loose))
    return CodeGold(
        function=function,
        solution=solution,
        test_setup=(_RAISES if _uses_pytest(setup) else "") + "\n".join(map(ast.unparse, setup)),
        cases=tuple(AssertionCase(statement=statement) for statement in cases),
    )


def _module(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"tests must be Python, got {source[:60]!r} ({error})") from error


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test")


def _is_left_out(node: ast.stmt) -> bool:
    """True for imports of pytest and of the solution, and for the `if __name__` block."""
    if isinstance(node, ast.ImportFrom):
        return node.module == SOLUTION_MODULE
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} <= {"pytest", SOLUTION_MODULE}
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _uses_pytest(setup: Sequence[ast.stmt]) -> bool:
    """True if the setup uses `pytest.raises`. Raises ValueError for other attributes of pytest."""
    used = {
        node.attr
        for statement in setup
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "pytest"
    }
    if used - {"raises"}:
        raise ValueError(f"of pytest only raises runs in the sandbox, the tests use {sorted(used)}")
    return bool(used)


def _imported(module: ast.Module) -> frozenset[str]:
    """The names that the tests import from the solution, none under another name."""
    aliases = [
        alias
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module == SOLUTION_MODULE
        for alias in node.names
    ]
    for alias in aliases:
        if alias.asname not in (None, alias.name):
            raise ValueError(f"tests must call {alias.name} by its name, got {alias.asname}")
    return frozenset(alias.name for alias in aliases if alias.name != "*")


def _called(module: ast.Module, defined: frozenset[str]) -> frozenset[str]:
    """Names of called functions that neither Python nor the module defines."""
    return frozenset(
        node.func.id
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and not hasattr(builtins, node.func.id)
        and node.func.id not in defined
    )


def _read(statements: Sequence[ast.stmt]) -> frozenset[str]:
    """Names that the statements read, without builtins and parameters of functions."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset(name for name in read - arguments if not hasattr(builtins, name))


def _bound(setup: Sequence[ast.stmt]) -> frozenset[str]:
    """Names that the setup imports or assigns."""
    nodes = [node for statement in setup for node in ast.walk(statement)]
    imports = [node.names for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return frozenset({alias.asname or alias.name for alias in chain(*imports)} | assigned)


def _single(names: frozenset[str]) -> str:
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise ValueError(f"tests must be about one function, these are about {found}")
    return next(iter(names))
