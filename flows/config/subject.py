"""What a run is about, in a word: its preset, or the user's own model and questions, after which it
is named.

    preset tiny                                   tiny
    model.path=/models/llama-1b, task.path=x.csv  llama-1b-x
    task.kind=reasoning_gym over the preset tiny  tiny_llama-reasoning_gym
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from pydantic import BaseModel

from flows.config.parts import Parts
from flows.config.presets import OWN, preset_values

LONGEST_WORD = 24  # characters of a model's or a task's name: a run's id has a time, too
OWN_KINDS = ("path", "hub", "files", "custom")  # of models and tasks that are the user's
UNNAMED = re.compile(r"[^a-zA-Z0-9._]+")  # what a run's name does not have


def subject(config: Parts) -> str:
    """The preset, or model and task if one of them is the user's own or of another kind than the
    preset's."""
    kept = preset_values(config.preset)
    parts = {"model": config.model, "task": config.task}
    kinds = {part: _kind(settings) for part, settings in parts.items()}
    is_presets = all(kind == kept[part]["kind"] for part, kind in kinds.items())
    if is_presets and not set(kinds.values()) & set(OWN_KINDS):
        return config.preset
    return "-".join(filter(None, map(_word, parts.values()))) or config.preset


def _kind(settings: BaseModel) -> str:
    return str(getattr(settings, "kind", ""))


def _word(settings: BaseModel) -> str:
    """The name of a directory, file, class or repository, else the kind, as a run's name may have
    it."""
    place = str(getattr(settings, "path", "") or getattr(settings, "repository", ""))
    file, _, name = place.partition(":") if "://" not in place else (place, "", "")
    last = name if name and _kind(settings) == "custom" else PurePosixPath(file).name
    if _kind(settings) == "files":
        last = last.partition(".")[0]
    return UNNAMED.sub("-", last or _kind(settings)).strip("-._")[:LONGEST_WORD].strip("-._")


def lent_questions(config: Parts) -> str:
    """A line that says that a user's model is trained on a demo's questions, which it has not been
    given on purpose; else empty."""
    is_own_model = _kind(config.model) in OWN_KINDS
    if not is_own_model or _kind(config.task) in OWN_KINDS or "task" in config.model_fields_set:
        return ""
    if config.preset == OWN:
        return ""
    return (
        f"{_word(config.model)} learns the questions of the preset {config.preset}"
        f" ({_kind(config.task)}), as no others are given; --preset own asks for yours"
    )
