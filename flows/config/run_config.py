"""RunConfig: the only parameter of the training flow.

`preset` names a complete configuration of `flows.config.presets`; every other given field overrides
that preset's value, at any depth. Without it, the environment variable ROLLFLOW_PRESET names the
preset: a deployment sets it, so that its runs may give only the fields that they change."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from artifacts.config_parts import Misfits
from artifacts.datasets.hub_rows import HubRows
from artifacts.fixed_fields import reading_settings
from artifacts.models.registry import HubModelConfig
from artifacts.reports.mlflow_client import sqlite_uri
from artifacts.urls import hidden, without_secrets
from flows.config.consistency import broken_rules
from flows.config.device_choice import AUTO, with_devices, with_fast_products
from flows.config.earlier_settings import with_todays_names
from flows.config.limits import fill_in_limits
from flows.config.overlay import overlay
from flows.config.parts import Parts
from flows.config.presets import Values, preset_values
from tasks.learner.learner_config import LearnerConfig

PRESET_VARIABLE = "ROLLFLOW_PRESET"
AS_PRESET: JsonSchemaValue = {
    "title": "as the preset",
    "type": "object",
    "properties": {},
    "additionalProperties": False,
    "description": "What the preset has.",
}


class RunConfig(Parts):
    """The configuration of one training run."""

    @model_validator(mode="wrap")
    @classmethod
    def _over_preset(
        cls,
        given: Any,  # Any: whatever the caller gave
        handler: ModelWrapValidatorHandler[Self],
    ) -> Self:
        """Lay the given values over the preset's; only given fields count as set."""
        if not isinstance(given, Mapping):
            return handler(given)
        try:
            given = _without_auto(with_todays_names(given))
            with reading_settings():
                placed = with_devices(_over_its_preset(given), given)
                config = handler(with_fast_products(placed, given))
        except ValueError as error:
            raise _without_secrets(error, given) from None
        mark_as_set(config, given)
        return config

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        reference = handler(core)
        leave_to_preset(reference, handler)
        return reference

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Self:
        """Check the rules between parts. A list as context collects what is broken instead of an
        error, so that further checks find a configuration."""
        _check_finite(self.model_dump())
        fill_in_limits(self)
        # a resume's values must fit the run's kept ones, not known here
        broken = [] if self.resume else broken_rules(self)
        if isinstance(info.context, list):
            info.context.extend(broken)
        elif broken:
            raise Misfits(broken)
        return self

    def local_root(self) -> Path | None:
        """The artifact root as an absolute local path, as `Store.open` has it; None if a URL."""
        root = self.keep.artifact_root
        return None if "://" in root else Path(root).expanduser().resolve()

    def tracking_uri(self) -> str:
        """MLflow's tracking URI, by default SQLite in a local root; ValueError if there is
        neither."""
        root = self.local_root()
        if self.keep.tracking_uri:
            return self.keep.tracking_uri
        if root is None:
            raise ValueError(
                "keep.tracking_uri must be given when keep.artifact_root is a URL"
                f" ({self.keep.artifact_root}); set it to an MLflow server or to"
                " sqlite:///path/mlflow.db"
            )
        return sqlite_uri(root / "mlflow.db")


def _over_its_preset(given: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: parsed JSON
    preset = str(given.get("preset") or os.environ.get(PRESET_VARIABLE, "smollm2"))
    kinds = {  # so that a setting of the engine or of the loss need not name its kind
        "engine": {"kind": "vllm"},
        "learner": LearnerConfig().model_dump(mode="json"),
    }
    whole = overlay(overlay(kinds, preset_values(preset)), {**given, "preset": preset})
    return without_training(whole) if whole.get("trains") is False else whole


def without_training(values: Mapping[str, Any]) -> Values:  # Any: JSON values
    """The values of a run that only generates and scores: nothing that trains or publishes."""
    off = {"enabled": False}
    parts = ("stream_trainer", "seeding", "elastic", "weight_check")
    cluster = values.get("cluster")
    roles = cluster.get("roles") if isinstance(cluster, Mapping) else None
    kept = re.sub(r"\s*[,;]?\s*learner\s*:[\d\s,-]*(?=[,;]\s*[a-z]|$)", "", str(roles or ""))
    placed = {"cluster": {"roles": kept.lstrip(",; ")}} if roles else {}
    return overlay(values, {**dict.fromkeys(parts, off), **placed})


def _without_auto(given: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: parsed JSON
    """Leave out a device_kind of auto: what the machine decides does not count as set."""
    cluster = given.get("cluster")
    if not isinstance(cluster, Mapping) or cluster.get("device_kind") != AUTO:
        return given
    return {**given, "cluster": {k: v for k, v in cluster.items() if k != "device_kind"}}


def _without_secrets(error: ValueError, given: object) -> ValidationError:
    """The same errors with secrets removed: Prefect logs those of a deployment."""
    if not isinstance(error, ValidationError):
        fault = PydanticCustomError("value_error", without_secrets(str(error)))
        return ValidationError.from_exception_data(
            RunConfig.__name__, [InitErrorDetails(type=fault, input=hidden(given))]
        )
    faults = [
        InitErrorDetails(
            type=PydanticCustomError(fault["type"], without_secrets(fault["msg"])),
            loc=tuple(hidden(fault["loc"])),
            input=hidden(fault["input"]),
        )
        for fault in error.errors()
    ]
    return ValidationError.from_exception_data(error.title, faults)


def _check_finite(values: Mapping[str, Any], place: str = "") -> None:  # Any: values of fields
    """Raise ValueError for an infinity or not-a-number, which a manifest of JSON cannot hold."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _check_finite(value, f"{place}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{place}{name} must be finite, got {value}; give a large number")


def mark_as_set(model: BaseModel, given: Mapping[str, Any]) -> None:  # Any: parsed JSON
    """Restrict `model_fields_set`, at every depth, to the fields in `given`, the user's own."""
    model.__pydantic_fields_set__.intersection_update(given)
    for name in type(model).model_fields:
        below, value = getattr(model, name), given.get(name, {})
        if isinstance(below, BaseModel) and isinstance(value, Mapping):
            mark_as_set(below, value)


def pinned(config: RunConfig) -> RunConfig:
    """Return the configuration with every hub model and data set at its present commit: branches
    and tags may move between a run and its resumes. Raises ValueError for one that is not there."""
    found: RunConfig = _pinned(config)
    return found


def _pinned(value: Any) -> Any:  # Any: configurations and values of their fields
    match value:
        case HubModelConfig() | HubRows():
            return value.pinned()
        case BaseModel():
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            found = {name: _pinned(item) for name, item in fields.items()}
            changed = {name: item for name, item in found.items() if item != fields[name]}
            return value.model_copy(update=changed) if changed else value
        case Mapping():
            return {key: _pinned(item) for key, item in value.items()}
        case tuple():
            return tuple(map(_pinned, value))
    return value


def leave_to_preset(schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    """Adapt a schema and all schemas below it to Prefect's form, in place.

    The form fills in every default that it finds, and demands every required field. But fields that
    a user leaves out shall have the preset's values: so no field is required, and only fields of
    alternatives have defaults. Alternatives become "anyOf", each titled by its kind, after a first
    one "as the preset": the form shows "anyOf" as a choice, but "oneOf" as raw JSON.
    """
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
