"""Fields of RunConfig by their dotted path, as its JSON schema has them: which take text, and how a
user writes them.

A part of the path that a union adds ("task.tiny_mix.num_prompts") is the name of an alternative,
not of a field.
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
    """Whether the field of this path is a string (or null) and nothing else; False for a field that
    does not exist."""
    nodes = [_schema()]
    for name in path:
        nodes = list(_below(nodes, name))
    types = {str(node.get("type")) for node in _alternatives(nodes)}
    return "string" in types and types <= {"string", "null"}


def as_written(place: Sequence[int | str]) -> str:
    """The dotted path of a fault's place, without the names of alternatives."""
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
    """The schemas of a field in every alternative that has it."""
    for node in _alternatives(nodes):
        if name in node.get("properties", {}):
            yield node["properties"][name]
        elif isinstance(node.get("additionalProperties"), dict):
            yield node["additionalProperties"]


def _alternatives(nodes: Sequence[Node]) -> Iterator[Node]:
    """References followed, unions taken apart."""
    for node in nodes:
        if "$ref" in node:
            yield from _alternatives([_schema()["$defs"][node["$ref"].rpartition("/")[2]]])
        elif options := [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            yield from _alternatives(options)
        else:
            yield node
