"""The JSON schema of a configuration as Prefect's form needs it.

The form fills in every default that it finds and asks for whatever is required. What a user leaves
out shall be the preset's: so nothing is required, and nothing but an alternative's fields has a
default. Alternatives are "anyOf", each under its kind and after "as the preset": the form draws
them as a choice, "oneOf" as raw JSON.
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
    """Change a schema, and all below it, into what the form shows."""
    resolved = handler.resolve_ref_schema(schema)
    resolved.pop("required", None)
    schema.pop("default", None)
    if schema.get("type") == "boolean":
        # drawn as a switch, a boolean would be sent as false by whoever does not touch it
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
    """Chosen in the form, an alternative sends its defaults: the form tells by the fields that are
    filled in which one it is."""
    properties = alternative["properties"]
    for field in properties.values():
        is_nested = "items" in field or "$ref" in field
        inner = handler.resolve_ref_schema(field.get("items", field)) if is_nested else {}
        for part in (field, *inner.get("properties", {}).values()):
            if "oneOf" in part:
                # a mixture's tasks and a judge's model: named as alternatives of their own
                part["anyOf"] = part.pop("oneOf")
    alternative["title"] = properties["kind"]["default"] = properties["kind"]["const"]
    for name in alternative.pop("required", ()):
        if properties[name].get("type") == "string":
            properties[name].setdefault("default", "")
