"""Merges a preset, a settings file and --set assignments into the values for RunConfig, and checks
these before a command starts anything."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from artifacts.config_parts import Misfits
from flows.commands.options import PRESET
from flows.config.earlier_settings import new_path, with_todays_names
from flows.config.misfits import misfits_of_places, misfits_of_settings
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig
from flows.config.sentence import takes_text_only
from flows.config.settings_file import read_settings
from flows.resume import beside_resume, effective_config
from tasks.cluster.ports import Wish


def assemble(
    preset: str,
    resume: str,
    assignments: Sequence[str],
    settings: str = "",
    faults: list[str] | None = None,
) -> dict[str, Any]:  # Any: parsed JSON
    """Merge the options of a command into the values for RunConfig. An assignment like
    "learner.lr=1e-5" sets a nested field to JSON, or to text where the field holds text or the
    value is no JSON. settings: a file below the assignments; ValueError if `preset` is not its.
    Raises Misfits with all assignments that cannot be read, unless `faults` takes them."""
    given = {"preset": preset, "resume": resume}
    values: dict[str, Any] = {field: text for field, text in given.items() if text}
    unread = assign(values, assignments, takes_text_only)
    if faults is not None:
        faults += unread
    elif unread:
        raise Misfits(unread)
    kept = read_settings(Path(settings)) if settings else {}
    asked = values.get("preset")  # --set may name one, too
    named = kept.get("preset", asked or PRESET)
    if asked not in (None, named):
        raise ValueError(
            f"--preset must be the one that --settings names ({named!r}), got {asked!r}; drop"
            f" --preset, or the preset in {settings}"
        )
    return overlay(with_todays_names(kept), with_todays_names(values) | {"preset": named})


def checked_configuration(
    options: Namespace, root: str = "", wishes: Iterable[Wish] = ()
) -> RunConfig:
    """The configuration that a run would have: that of --resume, if it is given (an id, a beginning
    or `last`), with its changes. root: the artifact root, if an option names it. wishes: ports of
    the command's own servers. Raises Misfits with everything that keeps the run from starting."""
    assignments = [*([f"keep.artifact_root={root}"] if root else []), *options.set]
    found: list[str] = []
    values = assemble(options.preset, options.resume, assignments, options.settings, found)
    settings = misfits_of_settings(beside_resume(values))
    found, config = [*found, *settings.misfits], settings.config
    if config is not None and config.resume and not found:
        config = effective_config(config)
    if config is not None:
        found = with_fields([*found, *misfits_of_places(config, wishes, settings.replaced)])
    if config is not None and not found:
        from flows.config.trials import left_unchecked, misfits_of_trials  # after quick checks

        found = misfits_of_trials(config)
        if not found and (left := left_unchecked(config)):
            print(left, file=sys.stderr)
    if found or config is None:
        raise Misfits(found)
    return config


def with_fields(found: Sequence[str]) -> list[str]:
    """Leave out what another sentence repeats with its field before it: a rule between parts tells
    of a part of the user's own, too."""
    return [each for each in found if not any(other.endswith(f": {each}") for other in found)]


def configuration_of(options: Namespace) -> RunConfig:
    """The configuration that --preset, --settings and --set describe. Raises Misfits with all its
    unknown fields, wrong values and broken rules; files, rows and ports are not looked at."""
    found: list[str] = []
    values = assemble(options.preset, "", options.set, options.settings, found)
    settings = misfits_of_settings(values)
    if settings.misfits or found or settings.config is None:
        raise Misfits([*found, *settings.misfits])
    return settings.config


def assign(
    values: dict[str, Any],  # Any: parsed JSON
    assignments: Sequence[str],
    is_text: Callable[[Sequence[str]], bool] = lambda path: False,
) -> list[str]:
    """Apply assignments to a mapping; returns a sentence for each that cannot be. is_text: true for
    the path of a field whose value is text."""
    faults = []
    for assignment in assignments:
        try:
            _assign(values, assignment, is_text)
        except ValueError as error:
            faults.append(str(error))
    return faults


def _assign(
    values: dict[str, Any],  # Any: parsed JSON
    assignment: str,
    is_text: Callable[[Sequence[str]], bool],
) -> None:
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
