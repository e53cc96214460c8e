"""Reads and writes settings files: JSON with any fields of `RunConfig`, which are laid over the
preset that the file names. Reads the configuration in a run's manifest, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.config.overlay import overlay
from flows.config.presets import Values
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence

DEVICES = ("device_kind", "num_devices", "roles")
OF_ONE_RUN = ("run_name", "resume")  # fields that a settings file for further runs leaves out


def read_settings(path: Path) -> Values:
    """Read a file's settings, unchecked. ValueError if it cannot be read or is no JSON object."""
    try:
        values = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(
            f"--settings must be a file that can be read, got {path}: {said}; 'rollflow recommend"
            " --write FILE' makes one"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"--settings must be a file of JSON, got {path}, line {error.lineno}: {error.msg};"
            " correct it there"
        ) from None
    if not isinstance(values, dict):
        raise ValueError(
            "--settings must be a JSON object of fields, like"
            f' {{"preset": "tiny", "num_steps": 5}}, got {path} with {values!r:.60}; write one'
        )
    return values


def settings_of(config: RunConfig) -> Values:
    """The shortest settings for a configuration: its preset, and what differs from it. Devices that
    are not those of the preset on this machine are named with their kind."""
    preset: Values = {"preset": config.preset}
    whole = config.model_dump(mode="json", exclude=set(OF_ONE_RUN))
    plain = RunConfig.model_validate(preset).model_dump(mode="json")
    if any(whole["cluster"][name] != plain["cluster"][name] for name in DEVICES):
        preset["cluster"] = {"device_kind": config.cluster.device_kind}
        plain = RunConfig.model_validate(preset).model_dump(mode="json")
    values = overlay(preset, _beyond(whole, plain))
    again = RunConfig.model_validate(values).model_dump(mode="json", exclude=set(OF_ONE_RUN))
    assert again == whole, "what is left out is the preset's"
    return values


def write_settings(path: Path, values: Values) -> None:
    """Write settings as JSON, for `read_settings`; makes missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n")


def _beyond(values: Mapping[str, Any], plain: Mapping[str, Any]) -> Values:  # Any: parsed JSON
    """The values that differ from `plain`; a mapping of another `kind` is kept whole."""
    found: Values = {}
    for key, value in values.items():
        below: Any = plain.get(key)  # Any: parsed JSON
        if key in plain and value == below:
            continue
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        if both and value.get("kind") == below.get("kind"):
            kind = {"kind": value["kind"]} if "kind" in value else {}
            found[key] = kind | _beyond(value, below)
        else:
            found[key] = value
    return found


def kept_config(
    kept: Mapping[str, Any],  # Any: JSON values
    version: str = "the version that wrote it",
) -> RunConfig:
    """Validate the configuration of a manifest. Raises ValueError, with the version to use instead,
    if another one wrote settings that are not known: the reader has not given and cannot mend
    them."""
    try:
        return RunConfig.model_validate(kept)
    except ValidationError as error:
        raise ValueError(
            "the run's manifest must have a configuration of this version, it has another one"
            f" ({sentence(error)}); use {version}"
        ) from None
