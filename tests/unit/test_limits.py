"""The time limits of a run's parts follow from its table `deadlines`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from flows.commands.command_line import assemble
from flows.config.presets import PRESETS
from flows.config.run_config import RunConfig


def derived(part: Any, path: str = "") -> Iterator[tuple[str, float, float]]:
    """Every derived limit below a part: its path, what its class has, and what it is."""
    if isinstance(part, BaseModel):
        for name, field in type(part).model_fields.items():
            value = getattr(part, name)
            if field.exclude and name.endswith("_s"):
                yield f"{path}{name}", field.default, value
            else:
                yield from derived(value, f"{path}{name}.")
    elif isinstance(part, dict):
        for value in part.values():
            yield from derived(value, f"{path}*.")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_usual_table_gives_the_usual_limits(preset: str) -> None:
    limits = list(derived(RunConfig.model_validate({"preset": preset})))
    assert len(limits) >= 10
    assert all(value == usual for _, usual, value in limits)


def test_every_limit_follows_its_row() -> None:
    table = {"start_s": 1200, "call_s": 600, "weights_s": 600, "reward_s": 120, "environment_s": 60}
    given = {"preset": "smollm2-judged", "deadlines": table}
    for path, usual, value in derived(RunConfig.model_validate(given)):
        if not path.startswith("balancing"):
            assert value == 2 * usual, path


def test_limits_are_not_kept_and_come_back() -> None:
    config = RunConfig.model_validate({"preset": "tiny", "deadlines": {"start_s": 50}})
    assert config.cluster.start_deadline_s == 10
    kept = config.model_dump(mode="json")
    assert "start_deadline_s" not in kept["cluster"]
    assert RunConfig.model_validate(kept) == config
    assert "start_deadline_s" not in config.cluster.model_fields_set


def test_a_floor_above_the_longest_limit_is_refused() -> None:
    given = assemble("tinycode", "", ["rewards.*.timeout.floor_s=31"])
    with pytest.raises(ValueError, match=r"at most half of deadlines\.reward_s \(30\), got 31"):
        RunConfig.model_validate(given)
    RunConfig.model_validate({**given, "deadlines": {"reward_s": 90}})
