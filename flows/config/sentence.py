"""Turns an error into one sentence for the user, in which a field stands by the dotted path that a
user writes. Pydantic's paths also name the alternative of a union ("tiny_mix" in
"task.tiny_mix.num_prompts"), which is no field; the JSON schema of RunConfig tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from pydantic import ValidationError

from artifacts.urls import hidden, without_secrets

Node = dict[str, Any]  # Any: JSON schema


def sentence(error: object) -> str:
    """An error as one line without secrets; of a validation error every fault with its field."""
    if isinstance(error, ValidationError):
        return "; ".join(
            _fault(fault["loc"], fault["msg"], fault["type"], fault.get("input"))
            for fault in error.errors()
        )
    return without_secrets(" ".join(str(error).split())) or type(error).__name__


def _fault(place: tuple[int | str, ...], message: str, kind: str, given: object) -> str:
    field, message = without_secrets(as_written(place)), without_secrets(message)
    if kind == "extra_forbidden":
        cure = "'rollflow explain --fields --all' lists them"
        return f"{field} must be a known field, it is not one; {cure}"
    if kind == "value_error":
        return f"{field + ': ' if field else ''}{message.removeprefix('Value error, ')}"
    return f"{field} is wrong: {message[0].lower()}{message[1:]}, got {hidden(given)!r}; correct it"


@cache
def _schema() -> Node:
    from flows.config.run_config import RunConfig  # seconds, which most errors need not

    return RunConfig.model_json_schema()


def takes_text_only(path: Sequence[str]) -> bool:
    """True if the field of this path accepts only a string (or null); False if it is none."""
    nodes = [_schema()]
    for name in path:
        nodes = list(_below(nodes, name))
    types = {str(node.get("type")) for node in _alternatives(nodes)}
    return "string" in types and types <= {"string", "null"}


def as_written(place: Sequence[int | str]) -> str:
    """The dotted path of a Pydantic error's location, without the names of alternatives."""
    nodes, written = [_schema()], []
    for part in map(str, place):
        if any(part in node.get("discriminator", {}).get("mapping", {}) for node in nodes):
            continue
        written.append(part)
        nodes = list(_below(nodes, part))
    return ".".join(written)


def _below(nodes: Sequence[Node], name: str) -> Iterator[Node]:
    for node in _alternatives(nodes):
        if name in node.get("properties", {}):
            yield node["properties"][name]
        elif isinstance(node.get("additionalProperties"), dict):
            yield node["additionalProperties"]


def _alternatives(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        if "$ref" in node:
            yield from _alternatives([_schema()["$defs"][node["$ref"].rpartition("/")[2]]])
        elif options := [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            yield from _alternatives(options)
        else:
            yield node
