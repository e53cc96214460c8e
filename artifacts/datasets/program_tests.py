"""The tests of a program, in the shapes in which data sets publish them, as a `CodeGold`:

    {"cases": [...]}                                   a CodeGold as it is
    {"stdin": [...], "stdout": [...]}                  whole programs; also inputs and outputs
    ["assert f(1) == 2", ...]                          assertions
    "from solution import f\\ndef test_one(): ..."      a module of pytest functions

Objects and lists may stand in a text as JSON. pytest does not run in the sandbox: fixtures,
parameters and classes of tests are refused, `pytest.raises` works.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from artifacts.datasets.code_cases import AssertionCase, CodeGold, StdioCase

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
    """The tests as they are executed. ValueError says what cannot be."""
    value = _parsed(value)
    if isinstance(value, Mapping):
        return _from_object(value, solution)
    if isinstance(value, list):
        return _from_assertions(value, solution)
    if isinstance(value, str) and value.strip():
        return _from_module(value, solution)
    raise ValueError(f"tests must be an object, a list or a module's text, got {value!r}")


def _parsed(value: Any) -> Any:  # Any: JSON, or a text that is none
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


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
    cases = tuple(
        StdioCase(stdin=_lines(given), stdout=_lines(wanted))
        for given, wanted in zip(inputs, outputs, strict=True)
    )
    return CodeGold(solution=solution, cases=cases)


def _column(value: Mapping[str, Any], names: Sequence[str]) -> list[Any]:  # Any: JSON
    for name in names:
        if name in value:
            found = value[name]
            return found if isinstance(found, list) else [found]
    raise ValueError(f"tests must have one of {', '.join(names)}, got {', '.join(value)}")


def _lines(value: Any) -> str:  # Any: JSON; some data sets have a list of lines
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


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
        _check_test(test)
    for node in setup:
        _check_no_test(node)
    names = _imported(module)
    defined = frozenset(node.name for node in setup if isinstance(node, ast.FunctionDef))
    function = _single(names or _called(module, defined | _bound(setup)))
    cases = (
        *(f"{test.name}()" for test in tests if isinstance(test, ast.FunctionDef)),
        *map(ast.unparse, loose),
    )
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


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test")


def _is_left_out(node: ast.stmt) -> bool:
    """Imports of pytest and of what is tested, and the call of pytest at the end."""
    if isinstance(node, ast.ImportFrom):
        return node.module == SOLUTION_MODULE
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} <= {"pytest", SOLUTION_MODULE}
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _check_test(test: ast.stmt) -> None:
    assert isinstance(test, ast.FunctionDef)
    if test.args.args or test.decorator_list:
        raise ValueError(
            f"the test {test.name} must have neither parameters nor decorators, it has"
            f" {ast.unparse(test.args) or ast.unparse(test.decorator_list[0])!r}"
        )


def _check_no_test(node: ast.stmt) -> None:
    """What pytest would collect and nothing here executes."""
    is_class = isinstance(node, ast.ClassDef) and any(map(_is_test, node.body))
    is_coroutine = isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test")
    if is_class or is_coroutine:
        raise ValueError(f"tests must be plain functions, got {ast.unparse(node).splitlines()[0]}")


def _uses_pytest(setup: Sequence[ast.stmt]) -> bool:
    """Whether `pytest.raises` is needed. ValueError for anything else of pytest's."""
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
    """What the tests import from the solution by name. ValueError if under another name."""
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
    """Plain names that are called, and that neither Python nor the module defines."""
    return frozenset(
        node.func.id
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and not hasattr(builtins, node.func.id)
        and node.func.id not in defined
    )


def _read(statements: Sequence[ast.stmt]) -> frozenset[str]:
    """Names that are read, but for Python's own and those that a function is called with."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset(name for name in read - arguments if not hasattr(builtins, name))


def _bound(setup: Sequence[ast.stmt]) -> frozenset[str]:
    """Names that the setup imports or assigns."""
    return frozenset(
        name
        for statement in setup
        for node in ast.walk(statement)
        for name in (
            [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else [node.id]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else []
        )
    )


def _single(names: frozenset[str]) -> str:
    if len(names) != 1:
        told = ", ".join(sorted(names)) or "none"
        raise ValueError(f"tests must be about one function, these are about {told}")
    return next(iter(names))
