"""Merge a preset, a settings file and --set assignments into the values for RunConfig."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.commands.options import PRESET
from flows.config.earlier_settings import new_path, with_todays_names
from flows.config.presets import overlay
from flows.config.run_config import RunConfig
from flows.config.sentence import takes_text_only
from flows.config.settings_file import read_settings


def assemble(
    preset: str, resume: str, assignments: Sequence[str], settings: str = ""
) -> dict[str, Any]:  # Any: parsed JSON
    """Merge the options of a command into the values for RunConfig. An assignment like
    "learner.lr=1e-5" sets a nested field to JSON, or to text where the field holds text or the
    value is no JSON. settings: a file below the assignments; ValueError if `preset` is not its."""
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


def configuration_of(options: Namespace) -> RunConfig:
    """The configuration that --preset, --settings and --set describe; ValueError if not valid."""
    values = assemble(options.preset, "", options.set, options.settings)
    return RunConfig.model_validate(values)


def assign(
    values: dict[str, Any],  # Any: parsed JSON
    assignments: Sequence[str],
    is_text: Callable[[Sequence[str]], bool] = lambda path: False,
) -> None:
    """Apply assignments to a mapping. is_text: true for the path of a field whose value is text."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ValueError(
                f"--set must read FIELD=VALUE, got {assignment!r}; for example --set num_steps=5"
            )
        *parents, last = path.split(".")
        takes_text = is_text(new_path([*parents, last]))
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if text.startswith(("{", "[")) and value is text and not takes_text:
            raise ValueError(
                f"--set {path} must be JSON where it begins with {text[0]}, got {text!r} (a shell"
                " takes away quotes that are not quoted themselves); set the fields below it one"
                f" by one: --set {path}.FIELD=VALUE"
            )
        if takes_text and isinstance(value, bool | int | float | list | dict):
            value = text  # run_name=2026 is a name
        below: Any = values  # Any: parsed JSON
        for parent in parents:
            below = below.setdefault(parent, {})
            if not isinstance(below, dict):
                raise ValueError(
                    f"--set {assignment} must name a field of a mapping, {parent} is {below!r};"
                    " drop one of the two assignments"
                )
        below[last] = value
