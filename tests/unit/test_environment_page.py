"""docs/environments.md says what there is: the code of the example, kinds and fields, the rules."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from examples.guess_environment import Guess
from flows.commands.check import parser
from tasks.environments.conformance import ConformanceRule
from tasks.environments.registry import EnvironmentConfig

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
ADAPTER: TypeAdapter[EnvironmentConfig] = TypeAdapter(EnvironmentConfig)


def section(heading: str) -> str:
    return PAGE.split(f"## {heading}")[1].split("\n## ")[0]


def test_the_code_shown_is_the_example_and_has_twenty_lines() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert shown == inspect.getsource(Guess)
    assert len(shown.split("\n\n", 1)[1].splitlines()) <= 20


def test_the_table_has_every_kind_with_its_fields() -> None:
    schema = ADAPTER.json_schema()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", section("Kinds"), re.MULTILINE)
    named = {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in rows}
    kinds = schema["discriminator"]["mapping"]
    assert set(named) == set(kinds)
    for kind, reference in kinds.items():
        fields = set(schema["$defs"][reference.rpartition("/")[2]]["properties"]) - {"kind"}
        assert named[kind] == fields, kind


def test_configurations_on_the_page_are_valid() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert ADAPTER.validate_json(shown).model_dump()["id"] == "FrozenLake-v1"
    (inline,) = re.findall(r'`(\{"kind": "textarena".*?)`', PAGE)
    assert ADAPTER.validate_json(inline).model_dump()["id"] == "FrozenLake-v0"


def test_the_rules_are_those_of_the_suite() -> None:
    rules = re.findall(r"^\| ([a-z][^|]*) \|", section("One of your own"), re.MULTILINE)
    assert [rule for rule in rules if rule != "rule"] == [str(rule) for rule in ConformanceRule]


def test_the_commands_shown_can_be_parsed() -> None:
    commands = re.findall(r"^rollflow check (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        assert parser().parse_args(shlex.split(command)).part == "environment"


@pytest.mark.parametrize("text", ["9" * 5000, "²"])
def test_what_the_page_says_of_digits_is_so(text: str) -> None:
    assert text.isdigit()
    with pytest.raises(ValueError, match=r"integer string|invalid literal"):
        int(text)
