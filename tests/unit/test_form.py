"""Prefect's form of a run: the fields that people set, one for the rest, the preset's values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no stubs
from prefect.utilities.callables import parameter_schema
from pydantic import TypeAdapter, ValidationError

from flows.config.form import ADVANCED, FIELDS, FormConfig, with_preset
from flows.config.run_config import RunConfig
from flows.train import train

Json = dict[str, Any]  # Any: JSON values
SCHEMA = parameter_schema(train).model_dump()
FORM: Json = SCHEMA["properties"]["config"]
ADAPTER: TypeAdapter[RunConfig] = TypeAdapter(FormConfig)


def shown(node: Json, path: str = "") -> Iterator[str]:
    for name, field in node["properties"].items():
        if "properties" in field:
            yield from shown(field, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_the_form_shows_ten_fields_the_preset_and_one_for_the_rest() -> None:
    assert sorted(shown(FORM)) == sorted([*FIELDS, ADVANCED])
    assert len(FIELDS) == 11


@pytest.mark.parametrize(
    "given",
    [
        {"num_steps": 10},
        {"learner": {"loss": {"clip_high": 0.3}}, "seed": 3},
        {"preset": "tiny", "keep": {"artifact_root": "/runs"}},
        {"num_steps": 3, ADVANCED: {"seed": 1}},
    ],
)
def test_a_configuration_of_any_fields_passes_the_server(given: Json) -> None:
    top = {**FORM, "definitions": SCHEMA["definitions"]}
    assert Draft202012Validator(top).is_valid(given)
    assert not Draft202012Validator(top).is_valid({**given, "num_stepz": 10})


def test_advanced_fields_lie_below_those_of_the_form() -> None:
    batch = {"prompts_per_step": 4}
    rest = {"seed": 7, "num_steps": 9, "batch": {"responses_per_prompt": 6}}
    given = {"preset": "tiny", "num_steps": 3, "batch": batch, ADVANCED: rest}
    config = ADAPTER.validate_python(given)
    assert (config.seed, config.num_steps) == (7, 3)
    assert (config.batch.prompts_per_step, config.batch.responses_per_prompt) == (4, 6)
    assert ADAPTER.validate_python({"preset": "tiny", ADVANCED: None}).preset == "tiny"
    assert ADAPTER.validate_python(config) is config


def test_an_advanced_field_that_is_wrong_is_told() -> None:
    with pytest.raises(ValidationError, match="advanced must be a JSON object of fields, got 3"):
        ADAPTER.validate_python({ADVANCED: 3})
    with pytest.raises(ValidationError, match="num_stepz"):
        ADAPTER.validate_python({"preset": "tiny", ADVANCED: {"num_stepz": 3}})


def test_a_form_says_what_its_preset_has() -> None:
    told = with_preset(FORM, "tiny")["properties"]
    assert told["num_steps"]["description"].endswith(" tiny has 36.")
    rate = told["learner"]["properties"]["optimizer"]["properties"]["learning_rate"]
    assert rate["description"] == "Learning rate after the warm-up. tiny has 0.0002."
    assert told["task"]["description"] == "Where the prompts come from. tiny has chain_sum."
    assert told["resume"] == FORM["properties"]["resume"]
