"""What the commands share: presets and --set assignments made into one mapping."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.commands.options import PRESET
from flows.config.earlier_settings import new_path, with_todays_names
from flows.config.fields import takes_text_only
from flows.config.overlay import overlay
from flows.config.settings_file import read_settings


def assemble(
    preset: str, resume: str, assignments: Sequence[str], settings: str = ""
) -> dict[str, Any]:  # Any: parsed JSON
    """The values for RunConfig. "learner.lr=1e-5" sets a nested field; values are JSON, or text
    where they are not or the field is one. An empty `preset` names none. `settings` is a file of
    values below the assignments, whose preset counts. ValueError where another one is asked for,
    too."""
    given = {"preset": preset, "resume": resume}
    values: dict[str, Any] = {field: text for field, text in given.items() if text}
    assign(values, assignments, takes_text_only)
    kept = read_settings(Path(settings)) if settings else {}
    asked = values.get("preset")  # --set may name one, too
    named = kept.get("preset", asked or PRESET)
    if asked not in (None, named):
        raise ValueError(
            f"--preset must be the one that --settings names ({named!r}), got {asked!r}; drop"
            f" --preset, or the preset in {settings}"
        )
    return overlay(with_todays_names(kept), with_todays_names(values) | {"preset": named})


def assign(
    values: dict[str, Any],  # Any: parsed JSON
    assignments: Sequence[str],
    is_text: Callable[[Sequence[str]], bool] = lambda path: False,
) -> None:
    """Put assignments into a mapping; `is_text` says of which fields the value is text, whatever
    it looks like."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ValueError(
                f"--set must read FIELD=VALUE, got {assignment!r}; for example --set num_steps=5"
            )
        *parents, last = path.split(".")
        takes_text = is_text(new_path([*parents, last]))
        if text.startswith(("{", "[")) and not takes_text and not _is_json(text):
            raise ValueError(
                f"--set {path} must be JSON where it begins with {text[0]}, got {text!r} (a shell"
                " takes away quotes that are not quoted themselves); set the fields below it one"
                f" by one: --set {path}.FIELD=VALUE"
            )
        _mapping_at(values, parents, assignment)[last] = _value(text, takes_text)


def _mapping_at(
    values: dict[str, Any], parents: Sequence[str], assignment: str
) -> dict[str, Any]:  # Any: parsed JSON
    below: Any = values  # Any: parsed JSON
    for parent in parents:
        below = below.setdefault(parent, {})
        if not isinstance(below, dict):
            raise ValueError(
                f"--set {assignment} must name a field of a mapping, {parent} is {below!r}; drop"
                " one of the two assignments"
            )
    mapping: dict[str, Any] = below
    return mapping


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _value(text: str, is_text: bool) -> Any:  # Any: parsed JSON
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    # run_name=2026 is a name
    return text if is_text and isinstance(value, bool | int | float | list | dict) else value
