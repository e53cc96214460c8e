"""Turns an error into sentences for the user, in which a field stands by the dotted path that a
user writes, and its cure as the flag that sets it, with the nearest name for one that is unknown.

Pydantic's paths also name the alternative of a union ("tiny_mix" in "task.tiny_mix.num_prompts"),
which is no field; the JSON schema of RunConfig tells them apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from artifacts.config_parts import Misfits
from artifacts.urls import hidden, without_secrets

Node = dict[str, Any]  # Any: JSON schema
Place = Sequence[int | str]  # of an error, as Pydantic has it

NEAR = 0.6  # least similarity, by difflib, of names of which one may be meant by the other
SAME = 0.8  # beyond which they are a slip of the pen apart
QUOTED = re.compile(r"'([^']*)'")


def sentence(error: object) -> str:
    """An error as one line without secrets; of a validation error every fault with its field."""
    return "; ".join(sentences(error))


def sentences(error: object) -> list[str]:
    """The faults that an error tells of, a line without secrets each."""
    if isinstance(error, ValidationError):
        return list(dict.fromkeys(told for fault in error.errors() for told in _told(fault)))
    if isinstance(error, Misfits):
        return [without_secrets(" ".join(one.split())) for one in error.found]
    return [without_secrets(" ".join(str(error).split())) or type(error).__name__]


def listed(error: object) -> str:
    """An error as a person reads it: one sentence, or a numbered list of several."""
    found = sentences(error)
    if len(found) == 1:
        return found[0]
    lines = [f"{number:>3}. {told}" for number, told in enumerate(found, start=1)]
    return "\n".join([f"{len(found)} things must be mended before anything starts:", *lines])


def _told(fault: ErrorDetails) -> list[str]:
    if isinstance(cause := fault.get("ctx", {}).get("error"), Misfits):
        return sentences(cause)
    return [_fault(fault["loc"], fault["msg"], fault["type"], fault.get("input"))]


def _fault(place: Place, message: str, kind: str, given: object) -> str:
    field, message = without_secrets(as_written(place)), without_secrets(message)
    match kind:
        case "extra_forbidden":
            near = nearest_field(place)
            is_another = near and near != field  # other kinds may have one of this name
            cure = f"did you mean {flag(near, given)}?" if is_another else LISTED
            return f"{field} must be a known field, it is not one; {cure}"
        case "value_error":
            return f"{field + ': ' if field else ''}{message.removeprefix('Value error, ')}"
        case "union_tag_invalid":
            asked, _, *known = QUOTED.findall(message)
            return _choice(f"{field}.kind", known, asked)
        case "union_tag_not_found" if kinds := _kinds_at(place):
            return f"{field}.kind must be named, one of {', '.join(kinds)}; --set {field}.kind=NAME"
        case "literal_error":
            return _choice(field, _choices_at(place) or QUOTED.findall(message), given)
        case "missing":
            return f"{field} must be given, it is missing; --set {field}=VALUE"
    bound = re.search(r"(?:or equal to|at most|at least) (\S+)", message)
    cure = flag(field, bound[1]) if bound and "equal" in kind else "correct it, or leave it out"
    return f"{field} is wrong: {message[0].lower()}{message[1:]}, got {hidden(given)!r}; {cure}"


LISTED = "'rollflow explain --fields --all' lists them"


def _choice(field: str, known: Sequence[str], given: object) -> str:
    """A sentence on a name that is not among the known ones, with the nearest of them."""
    near = nearest(str(given), known)
    cure = f"did you mean {flag(field, near)}?" if near else "choose one"
    return f"{field} must be one of {', '.join(known)}, got {hidden(given)!r}; {cure}"


def flag(field: str, value: object) -> str:
    """The option that sets a field, as a shell takes it."""
    value = hidden(value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    assignment = f"{field}={text}"
    is_plain = re.fullmatch(r"[\w./:,+=@%-]*", assignment)
    return f"--set {assignment}" if is_plain else f"--set '{assignment}'"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is meant by another one: nearly the same, or of the same initials ("lr"
    and "learning_rate"), of which two letters are meant to be. Empty if there is none."""
    names = list(known)
    near = get_close_matches(name.lower(), names, n=1, cutoff=NEAR)
    if near and len(name) > 2:
        return near[0]
    initials = {"".join(word[:1] for word in each.split("_")): each for each in reversed(names)}
    return initials.get(name.lower(), "") if len(name) > 1 else ""


def nearest_field(place: Place) -> str:
    """The dotted path of the known field that is meant by an unknown one: of nearly the same name
    beside it, else of its very name elsewhere, else of a like name beside it. Empty if there is
    none."""
    *above, name = map(str, place)
    written = as_written(above)
    beside = {key for node in _alternatives(_nodes_at(above)) for key in node.get("properties", {})}
    near = nearest(name, sorted(beside))
    of_that_name = [path for path in known_fields() if path.rpartition(".")[2] == name]
    if of_that_name and SequenceMatcher(a=near, b=name).ratio() < SAME:
        return min(of_that_name, key=lambda path: (path.count("."), path))
    return f"{written}.{near}" if near and written else near


@cache
def known_fields() -> tuple[str, ...]:
    """The dotted paths of all settings; a key of a mapping is `*`."""

    def below(node: Node, path: str) -> Iterator[str]:
        for each in _alternatives([node]):
            for name, inner in each.get("properties", {}).items():
                yield f"{path}{name}"
                yield from below(inner, f"{path}{name}.")
            if isinstance(further := each.get("additionalProperties"), dict):
                yield from below(further, f"{path}*.")

    return tuple(dict.fromkeys(below(_schema(), "")))


@cache
def _schema() -> Node:
    from flows.config.run_config import RunConfig  # seconds, which most errors need not

    return RunConfig.model_json_schema()


def takes_text_only(path: Sequence[str]) -> bool:
    """True if the field of this path accepts only a string (or null); False if it is none."""
    types = {str(node.get("type")) for node in _alternatives(_nodes_at(path))}
    return "string" in types and types <= {"string", "null"}


def as_written(place: Place) -> str:
    """The dotted path of a Pydantic error's location, without the names of alternatives."""
    return ".".join(path_of(place))


def path_of(place: Place) -> list[str]:
    """The names on the path of a Pydantic error's location that a user writes."""
    nodes, written = [_schema()], []
    for part in map(str, place):
        if chosen := _alternative(nodes, part):
            nodes = [chosen]
        elif not part.startswith("literal["):
            written.append(part)
            nodes = list(_below(nodes, part))
    return written


def _nodes_at(place: Place) -> list[Node]:
    """The schemas of a place; of a union that of the alternative that the place names."""
    nodes = [_schema()]
    for part in map(str, place):
        chosen = _alternative(nodes, part)
        nodes = [chosen] if chosen else list(_below(nodes, part))
    return nodes


def _alternative(nodes: Sequence[Node], kind: str) -> Node | None:
    mappings = (node.get("discriminator", {}).get("mapping", {}) for node in nodes)
    return next(({"$ref": mapping[kind]} for mapping in mappings if kind in mapping), None)


def _kinds_at(place: Place) -> list[str]:
    mappings = (node.get("discriminator", {}).get("mapping", {}) for node in _nodes_at(place))
    return [kind for mapping in mappings for kind in mapping]


def _choices_at(place: Place) -> list[str]:
    """All values of a field that takes one of several names."""
    plain = [part for part in place if not str(part).startswith("literal[")]
    found = list(_alternatives(_nodes_at(plain)))
    values = (value for node in found for value in node.get("enum", [node.get("const")]))
    return [str(value) for value in values if value is not None]


def _below(nodes: Sequence[Node], name: str) -> Iterator[Node]:
    for node in _alternatives(nodes):
        if name in node.get("properties", {}):
            yield node["properties"][name]
        elif isinstance(node.get("additionalProperties"), dict):
            yield node["additionalProperties"]
        elif isinstance(node.get("items"), dict):
            yield node["items"]


def _alternatives(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        if "$ref" in node:
            yield from _alternatives([_schema()["$defs"][node["$ref"].rpartition("/")[2]]])
        elif options := [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            yield from _alternatives(options)
        else:
            yield node
