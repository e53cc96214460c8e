"""Looks up fields of RunConfig in its JSON schema: which fields take text, and the dotted path by
which a user writes a field.

Pydantic's paths also name the alternative of a union ("tiny_mix" in "task.tiny_mix.num_prompts"),
which is no field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from flows.config.run_config import RunConfig

Node = dict[str, Any]  # Any: JSON schema


@cache
def _schema() -> Node:
    return RunConfig.model_json_schema()


def takes_text_only(path: Sequence[str]) -> bool:
    """True if the field of this path accepts only a string (or null); False for a field that does
    not exist."""
    nodes = [_schema()]
    for name in path:
        nodes = list(_below(nodes, name))
    types = {str(node.get("type")) for node in _alternatives(nodes)}
    return "string" in types and types <= {"string", "null"}


def as_written(place: Sequence[int | str]) -> str:
    """The dotted path of a Pydantic error's location, without the names of alternatives."""
    nodes, written = [_schema()], []
    for part in place:
        if _is_alternative(nodes, str(part)):
            continue
        written.append(str(part))
        nodes = list(_below(nodes, str(part)))
    return ".".join(written)


def _is_alternative(nodes: Sequence[Node], name: str) -> bool:
    return any(name in node.get("discriminator", {}).get("mapping", {}) for node in nodes)


def _below(nodes: Sequence[Node], name: str) -> Iterator[Node]:
    """Yield the schema of the field `name` from every alternative that has such a field."""
    for node in _alternatives(nodes):
        if name in node.get("properties", {}):
            yield node["properties"][name]
        elif isinstance(node.get("additionalProperties"), dict):
            yield node["additionalProperties"]


def _alternatives(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the schemas with references resolved and unions split into their alternatives."""
    for node in nodes:
        if "$ref" in node:
            yield from _alternatives([_schema()["$defs"][node["$ref"].rpartition("/")[2]]])
        elif options := [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            yield from _alternatives(options)
        else:
            yield node
