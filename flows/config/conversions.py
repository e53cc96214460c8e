"""Converts the keys and values of another system into settings here, by the rules of
`other_systems`: each key is taken, needs nothing here, or contradicts.

    keys, values ─▶ rule ─▶ a value of its setting, or several settings ─▶ overlay of all
                       └─▶ Unneeded, Contradiction: a sentence each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import yaml

from flows.config import batch_conversions, part_conversions
from flows.config.foreign_files import Flat, Unresolved, scalar
from flows.config.foreign_values import Contradiction, ForeignValues, Several, Unneeded
from flows.config.other_systems import Rule, rule_for, rules_of
from flows.config.presets import Values

FUNCTIONS = vars(batch_conversions) | vars(part_conversions)  # by their names in the table
BASE: Final = "one-gpu"  # the preset that settings are laid over


class ConvertedKey(NamedTuple):
    """What became of a key."""

    key: str
    value: Any  # Any: a value of YAML
    fate: Literal["taken", "unneeded", "contradicts"]
    settings: Mapping[str, Any]  # that it gives, by dotted path; none where another key gives them
    note: str


@dataclass
class Converted:
    """The settings that a file comes to, and what became of each of its keys."""

    told: list[ConvertedKey] = field(default_factory=list)  # in the file's order
    by_default: list[ConvertedKey] = field(default_factory=list)  # of keys that the file leaves out
    unknown: list[str] = field(default_factory=list)
    values: Values = field(default_factory=lambda: {"preset": BASE})


Chosen = dict[str, tuple[Any, str]]  # by path, the value and the key that gave it. Any: JSON


def convert(family: str, flat: Flat) -> Converted:
    """Convert the values of a file. The first of two keys that give a setting decides it; the
    second contradicts, unless it gives the same."""
    known, done = rules_of(family), Converted()
    given, chosen = ForeignValues(flat, _defaults(known, flat)), Chosen()
    for key, value in flat.items():
        if rule := rule_for(key, known):
            done.told.append(_told(key, value, rule, given, chosen))
        else:
            done.unknown.append(key)
    for key, value in given.defaults.items():
        rule = rule_for(key, known)
        assert rule is not None, "it has this default"
        told = _told(key, value, rule, given, chosen)
        if told.fate != "unneeded":
            done.by_default.append(told)
    for path, (value, _) in chosen.items():
        put(done.values, path, value)
    return done


def _defaults(known: Sequence[Rule], flat: Flat) -> Flat:
    """The defaults of rules none of whose keys is given."""
    return {
        rule.keys[0]: scalar(yaml.safe_load(rule.default))
        for rule in known
        if rule.default and not any(key in flat for key in rule.keys)
    }


def _told(
    key: str, value: Any, rule: Rule, given: ForeignValues, chosen: Chosen
) -> ConvertedKey:  # Any: YAML
    try:
        settings = _settings(key, value, rule, given)
        for path, wanted in settings.items():
            decided, by = chosen.setdefault(path, (wanted, key))
            if decided != wanted:
                raise Contradiction(f"{by} gives {path} {decided!r}, this {wanted!r}")
    except Unneeded as reason:
        return ConvertedKey(key, value, "unneeded", {}, str(reason) or rule.note)
    except Contradiction as reason:
        return ConvertedKey(key, value, "contradicts", {}, str(reason) or rule.note)
    if rule.setting:
        note = "" if settings else f"read {rule.how}"
        return ConvertedKey(key, value, "taken", settings, note)
    return ConvertedKey(key, value, "unneeded", {}, rule.note)


def _settings(
    key: str, value: Any, rule: Rule, given: ForeignValues
) -> Mapping[str, Any]:  # Any: YAML
    """The settings that a key comes to, by dotted path; empty where another key has them, or there
    are none."""
    verb, _, rest = rule.how.partition(" ")
    parts = value if isinstance(value, list) else [value]
    is_open = any(isinstance(part, Unresolved) for part in parts)
    if is_open and (rule.setting or verb == "only"):
        place = f"; set {rule.setting}" if rule.setting else ""
        raise Contradiction(f"only what runs the file knows this value{place}")
    if verb == "only":
        if any(_same(value, yaml.safe_load(one)) for one in rest.split(", ")):
            raise Unneeded("as here")
        raise Contradiction
    if rule.setting and value is None:
        raise Unneeded("nothing is given")
    if verb == "map":
        pairs = dict(pair.split("=") for pair in rest.split(", "))
        found = [new for old, new in pairs.items() if _same(value, yaml.safe_load(old))]
        if not found:
            raise Contradiction
        return {rule.setting: yaml.safe_load(found[0])}
    if not verb:
        return {rule.setting: value} if rule.setting else {}
    if verb == "with":
        return {}
    try:
        made = FUNCTIONS[verb](key, value, given)
    except Contradiction:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise Contradiction("it, or a value beside it, is of another kind than known") from error
    return made if isinstance(made, Several) else {rule.setting: made}


def _same(value: object, other: object) -> bool:
    return str(value).lower() == str(other).lower() or value == other


def put(values: Values, path: str, value: Any) -> None:  # Any: JSON
    """Enter a value at a dotted path; mappings are merged."""
    *parents, last = path.split(".")
    for name in parents:
        values = values.setdefault(name, {})
    values[last] = {**values.get(last, {}), **value} if isinstance(value, dict) else value
