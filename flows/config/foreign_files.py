"""Reads a configuration of another system as dotted keys and values: YAML with Hydra's `defaults`
and OmegaConf's interpolations, the command of a shell script, or TOML. Executes nothing."""

from __future__ import annotations

import ast
import operator
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from flows.config.overlay import overlay
from flows.config.presets import Values

Flat = dict[str, Any]  # Any: values of YAML, by dotted key
REFERENCE = re.compile(r"\$\{([^${}]+)\}")
VARIABLE = re.compile(
    r"\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)"
    r"|\$\{(?P<braced>\w+|[@*])(?P<array>\[[@*]\])?(?P<rule>:?[-=][^{}]*)?\}"
    r"|\$(?P<plain>\w+|[@*])"
)
ASSIGNMENT = re.compile(r"(?:export\s+|local\s+|readonly\s+)?(\w+)=(.*)", re.DOTALL)
ARRAY = re.compile(  # over several lines, or on one
    r"^[ \t]*(\w+)\+?=\((?:[ \t]*\n(.*?)^[ \t]*\)|([^()\n]*)\))[ \t]*$", re.DOTALL | re.MULTILINE
)
QUOTED_ARRAY = re.compile(r'"(\$\{\w+\[[@*]\]\})"')
COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
PROGRAM = re.compile(r"\s-m\s+(?:verl|rlboost|recipe)\.\S+")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
MOST_REFERENCES = 20  # one within the other
SUMS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Unresolved(str):
    """A value that only a shell or Hydra knows, as it is written."""

    __slots__ = ()


def read_foreign(path: Path) -> tuple[str, Flat]:
    """Read a file; returns its family (`other_systems.FAMILIES`) and its values. ValueError for a
    file that cannot be read, or is of no known system."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(f"FILE must be one that can be read, got {path}: {said}") from None
    if path.suffix == ".toml":
        return "PolyRL manager", flatten(_parsed(path, text, tomllib.loads))
    if PROGRAM.search(text):
        return "veRL", read_script(text)
    values = resolve(flatten(_with_defaults(path, _parsed(path, text, yaml.safe_load))))
    if any(key.startswith("actor_rollout_ref.") for key in values):
        return "veRL", values
    if any(key.startswith(("actor_train.", "rollout_batch_size")) for key in values):
        return "ROLL", values
    raise ValueError(
        "FILE must be YAML of ROLL or RollPacker, a script that calls veRL's or PolyRL's trainer,"
        f" or config.toml of PolyRL's manager, got {path} without a key or command of these"
    )


def _parsed(path: Path, text: str, parse: Callable[[str], Any]) -> Flat:  # Any: of any file
    try:
        values = parse(text)
    except (yaml.YAMLError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"FILE must be YAML or TOML, got {path}: {error}; correct it") from None
    if not isinstance(values, dict):
        raise ValueError(f"FILE must have keys and values, got {path} with {values!r:.40}")
    return values


def _with_defaults(path: Path, values: Values) -> Values:
    """Lay values over the files that Hydra's `defaults` names; those that are not there stay."""
    missing, below = [], Values()
    for named in values.pop("defaults", None) or ():
        name = str(named).partition("@")[0]
        beside = path.parent / f"{name.removeprefix('/')}.yaml"
        if beside.is_file():
            inner = _parsed(beside, beside.read_text(), yaml.safe_load)
            below = overlay(below, _with_defaults(beside, inner))
        elif name != "_self_":
            missing.append(name)
    return overlay(below, values) | ({"defaults": missing} if missing else {})


def flatten(values: Mapping[str, Any], prefix: str = "") -> Flat:  # Any: YAML
    """The values by dotted key; an empty mapping is a value."""
    flat: Flat = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = scalar(value)
    return flat


def scalar(value: Any) -> Any:  # Any: YAML
    """A number where a text is one: PyYAML takes 1e-6, without a point, as text."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value) if set(value) & set(".eE") else int(value)
    return value


def resolve(flat: Flat) -> Flat:
    """Follow the interpolations of OmegaConf; what cannot be followed is `Unresolved`."""

    def resolved(value: Any, depth: int = 0) -> Any:  # Any: YAML
        if isinstance(value, list):
            return [resolved(each, depth) for each in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        found = REFERENCE.search(value)
        target = None if found is None or depth > MOST_REFERENCES else _referred(found[1], flat)
        if found is None or target is None:
            return Unresolved(value)
        if found[0] == value:
            return resolved(target, depth + 1)
        return resolved(value.replace(found[0], str(target)), depth + 1)

    return {key: resolved(value) for key, value in flat.items()}


def _referred(name: str, flat: Flat) -> Any:  # Any: YAML
    """The value of an interpolation; None if it is not known."""
    if name.startswith("oc.env:"):
        variable, has_default, default = name.removeprefix("oc.env:").partition(",")
        found = os.environ.get(variable.strip(), default if has_default else None)
        return None if found is None else scalar(found.strip())
    return flat.get(name)


def read_script(text: str) -> Flat:
    """The arguments of the last command of a script that calls veRL's or PolyRL's trainer."""
    plain = "\n".join(COMMENT.sub("", line) for line in text.splitlines())
    plain = QUOTED_ARRAY.sub(r"\1", plain)  # each element is a word of its own
    variables: dict[str, str] = {}
    for name, lines, line in ARRAY.findall(plain):
        variables[name] = f"{variables.get(name, '')} {' '.join((lines or line).split())}"
    arguments: list[str] = []
    for line in _commands(ARRAY.sub("", plain)):
        if found := PROGRAM.search(line):
            arguments = _words(expand(line[found.end() :], variables))
        elif assigned := ASSIGNMENT.fullmatch(line):
            variables[assigned[1]] = _unquoted(expand(assigned[2].strip(), variables))
    return dict(_assignments(arguments))


def _commands(text: str) -> Iterator[str]:
    joined = re.sub(r"\\\s*\n", " ", text)
    return filter(None, (line.strip() for line in joined.splitlines()))


def _words(text: str) -> list[str]:
    """The words of a command up to a pipe, a redirection or a further command."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command of FILE must be whole, got {error}; correct it") from None
    ends = (at for at, word in enumerate(words) if re.match(r"(\d?>|[|&;])", word))
    return words[: next(ends, len(words))]


def _unquoted(text: str) -> str:
    whole = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if whole else text


def _assignments(words: list[str]) -> Iterator[tuple[str, Any]]:  # Any: YAML
    rest = filter(None, words)
    for word in rest:
        key, equals, value = word.partition("=")
        if word.startswith("-") and not equals:  # an option, with its value behind it
            value = next(rest, "")
        yield key.lstrip("+~"), _value(value)


def _value(text: str) -> Any:  # Any: YAML
    """The value of an argument, as Hydra reads it: YAML, but a text with a colon is a text."""
    if "$" in text or "`" in text:
        return Unresolved(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return text if isinstance(value, dict) and not text.startswith("{") else scalar(value)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace the variables and sums in a text that are known."""

    def replaced(found: re.Match[str]) -> str:
        if found["sum"] is not None:
            total = _sum(re.sub(r"\$\{?(\w+)\}?", r"\1", found["sum"]), variables)
            return found[0] if total is None else str(total)
        name = found["braced"] or found["plain"]
        if name in "@*":
            return ""
        known = variables.get(name, os.environ.get(name))
        rule = found["rule"] or ""
        if not known and rule:
            return expand(_unquoted(rule.lstrip(":")[1:]), variables)
        return found[0] if known is None else known

    for _ in range(MOST_REFERENCES):
        before, text = text, VARIABLE.sub(replaced, text)
        if text == before:
            break
    return text


def _sum(text: str, variables: Mapping[str, str]) -> int | None:
    """The value of a shell's arithmetic; None where it is not a sum of known numbers."""

    def value(node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return value(ast.parse(variables[name].strip(), mode="eval").body)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -value(inner)
            case ast.BinOp(left=left, op=sign, right=right):
                return SUMS[type(sign)](value(left), value(right))
        raise ValueError("no sum")

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None
