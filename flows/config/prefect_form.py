"""Adapts the JSON schema of a configuration to Prefect's form.

The form fills in every default that it finds, and demands every required field. But fields that a
user leaves out shall have the preset's values: so no field is required, and only fields of
alternatives have defaults. Alternatives become "anyOf", each titled by its kind, after a first one
"as the preset": the form shows "anyOf" as a choice, but "oneOf" as raw JSON.
"""

from __future__ import annotations

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue

AS_PRESET: JsonSchemaValue = {
    "title": "as the preset",
    "type": "object",
    "properties": {},
    "additionalProperties": False,
    "description": "What the preset has.",
}


def leave_to_preset(schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    """Adapt a schema and all schemas below it to the form, in place."""
    resolved = handler.resolve_ref_schema(schema)
    resolved.pop("required", None)
    schema.pop("default", None)
    if schema.get("type") == "boolean":
        # the form would show a boolean as a switch, and send false if the user does not touch it
        schema["enum"] = [True, False]
        del schema["type"]
    if "oneOf" in schema:
        for option in schema["oneOf"]:
            _name_alternative(handler.resolve_ref_schema(option), handler)
        schema["anyOf"] = [AS_PRESET, *schema.pop("oneOf")]
    further = schema.get("additionalProperties")
    for part in (
        *resolved.get("properties", {}).values(),
        *([further] if isinstance(further, dict) else []),
    ):
        leave_to_preset(part, handler)


def _name_alternative(alternative: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    """Title an alternative by its kind, and give its kind and its required texts a default. The
    form sends the defaults of a chosen alternative, and recognises by filled-in fields which
    alternative was chosen."""
    properties = alternative["properties"]
    for field in properties.values():
        is_nested = "items" in field or "$ref" in field
        inner = handler.resolve_ref_schema(field.get("items", field)) if is_nested else {}
        for part in (field, *inner.get("properties", {}).values()):
            if "oneOf" in part:
                # a mixture's tasks and a judge's model get their titles elsewhere
                part["anyOf"] = part.pop("oneOf")
    alternative["title"] = properties["kind"]["default"] = properties["kind"]["const"]
    for name in alternative.pop("required", ()):
        if properties[name].get("type") == "string":
            properties[name].setdefault("default", "")
