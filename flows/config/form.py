"""The form that Prefect shows for a run: the fields that people set, and one for all others.

A caller gives `config` as ever, at any depth. The form is RunConfig's schema, cut down to FIELDS;
what only its field `advanced` has is laid below the other fields. Leaves out how an alternative is
shown (`flows.config.run_config`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from flows.config.overlay import overlay
from flows.config.run_config import RunConfig

ADVANCED = "advanced"
FIELDS = (  # by dotted path, in the form's order
    "num_steps",
    "model",
    "task",
    "rewards",
    "learner.optimizer.learning_rate",
    "batch.prompts_per_step",
    "batch.responses_per_prompt",
    "sampling.max_response_tokens",
    "evaluation.num_prompts",
    "resume",
    "preset",
)
ALL_OTHERS: JsonSchemaValue = {
    "title": "All other fields",
    "type": "object",
    "additionalProperties": True,
    "description": (
        "A JSON object with any other field, as {\"seed\": 1}; 'rollflow explain --fields' lists"
        " them. A field above goes before the same one here."
    ),
}


def with_advanced(given: object) -> object:
    """Lay a form's values over those of its field `advanced`. ValueError if that is no object."""
    if not isinstance(given, Mapping) or ADVANCED not in given:
        return given
    below = given[ADVANCED]
    if not isinstance(below, Mapping | None):
        raise ValueError(f"{ADVANCED} must be a JSON object of fields, got {below!r}; give {{}}")
    return overlay(below or {}, {name: given[name] for name in given if name != ADVANCED})


class FormSchema:
    """Annotation of a RunConfig whose JSON schema is the form."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        whole = handler.resolve_ref_schema(handler(core))
        form = _cut(whole, [path.split(".") for path in FIELDS], handler)
        form["properties"][ADVANCED] = ALL_OTHERS
        names = sorted([*whole["properties"], ADVANCED])
        # the server refuses an unknown name at once; fields below are checked by the run
        return {**form, "propertyNames": {"enum": names}}


FormConfig = Annotated[RunConfig, FormSchema(), BeforeValidator(with_advanced)]


def _cut(
    node: JsonSchemaValue, paths: Sequence[Sequence[str]], handler: GetJsonSchemaHandler
) -> JsonSchemaValue:
    """A copy of an object's schema that shows these paths alone and accepts all its fields."""
    shown: dict[str, Any] = {}  # Any: JSON schema
    for first in dict.fromkeys(path[0] for path in paths):
        field = node["properties"][first]
        below = [path[1:] for path in paths if path[0] == first and path[1:]]
        if below:
            part = handler.resolve_ref_schema(field)
            title, told = first.capitalize(), field.get("description", "")
            field = {**_cut(part, below, handler), "title": title, "description": told}
        shown[first] = field
    return {
        "title": node.get("title", ""),
        "type": "object",
        "properties": shown,
        "additionalProperties": True,
    }


def with_preset(form: JsonSchemaValue, preset: str) -> JsonSchemaValue:
    """A copy of the form that says at every field what the preset has."""
    return _telling(form, RunConfig.model_validate({"preset": preset}), f"{preset} has")


def _telling(node: JsonSchemaValue, values: BaseModel, words: str) -> JsonSchemaValue:
    told = dict(node["properties"])
    for name, field in told.items():
        value = getattr(values, name, None)
        if "properties" in field and isinstance(value, BaseModel):
            told[name] = _telling(field, value, words)
        elif value not in (None, ""):
            described = f"{field['description']} {words} {_short(value)}."
            told[name] = {**field, "description": described}
    return {**node, "properties": told}


def _short(value: Any) -> str:  # Any: the value of a field
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_short(below)}" for name, below in value.items())
    kind = getattr(value, "kind", None)
    return str(kind) if kind is not None else json.dumps(value)
