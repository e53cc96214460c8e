"""Settings of earlier versions: old names are read, removed ones are refused with a cure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from artifacts.fixed_fields import reading_settings
from flows.commands.command_line import assemble
from flows.config import earlier_settings
from flows.config.earlier_settings import REMOVED, RENAMED, with_todays_names
from flows.config.run_config import RunConfig
from flows.config.sentence import takes_text_only

MOST_SETTINGS = 290
NAMES = "__annotations__"


def parts_of(annotation: Any) -> Iterator[type[BaseModel]]:  # Any: types
    """Every configuration class that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from () if field.exclude else parts_of(field.annotation)
    for inner in get_args(annotation):
        yield from parts_of(inner)


FIXED = {
    f"{part.__name__}.{name}": part
    for part in set(parts_of(RunConfig))
    for name, field in part.model_fields.items()
    if field.exclude
}


def nested(path: str, value: object) -> dict[str, Any]:
    """The mapping in which the value stands at this path."""
    for name in reversed(path.replace("*", "domain").split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_read_as_the_new_one(old: str, new: str) -> None:
    assert with_todays_names(nested(old, {"any": 1})) == nested(new, {"any": 1})


@pytest.mark.parametrize(("removed", "cure"), REMOVED.items())
def test_a_removed_setting_is_refused_with_a_cure(removed: str, cure: str) -> None:
    with pytest.raises(ValueError, match=r"is no setting any more: ") as refused:
        with_todays_names(nested(removed, 1))
    assert str(refused.value).endswith(cure)
    assert str(refused.value).startswith(removed.replace("*", "domain"))


@pytest.mark.parametrize("path", sorted(FIXED))
def test_a_fixed_value_is_no_setting(path: str) -> None:
    """Also at a depth that the table of removed settings does not name, as in a list."""
    part, name = path.split(".")
    with pytest.raises(ValueError, match="is no setting; leave it out"), reading_settings():
        FIXED[path].model_validate({name: 1})
    assert part == FIXED[path].__name__


def test_settings_are_few() -> None:
    """Fields without parts and without `kind`; what the alternatives of a union inherit counts
    once."""
    declared = {
        (owners[-1], name)
        for part in set(parts_of(RunConfig))
        for name, field in part.model_fields.items()
        if name != "kind" and not field.exclude and not list(parts_of(field.annotation))
        if (owners := [owner for owner in part.__mro__ if name in vars(owner).get(NAMES, ())])
    }
    assert len(declared) <= MOST_SETTINGS


def test_a_line_names_old_and_new(caplog: pytest.LogCaptureFixture) -> None:
    earlier_settings._log_once.cache_clear()
    given = {"preset": "tiny-elastic", "guests": {"most_guests": 3, "lease_s": 30}}
    config = RunConfig.model_validate(given)
    assert (config.elastic.max_workers, config.elastic.lease_s) == (3, 30)
    told = [record.message for record in caplog.records]
    assert "guests is elastic now; the old name is read until 0.3" in told
    RunConfig.model_validate(given)
    assert len(told) == len(caplog.records), "once in a process"


def test_the_command_line_reads_old_names_too() -> None:
    values = assemble("tiny", "", ["gate.tolerance_nats=0.4", "learner.gate.kind=drift"])
    config = RunConfig.model_validate(values)
    assert (config.weight_check.tolerance_nats, config.learner.sequence_mask.kind) == (0.4, "drift")
    with pytest.raises(ValueError, match=r"learner\.temperature .* set that alone"):
        assemble("tiny", "", ["learner.temperature=0.7"])


def test_both_names_are_refused() -> None:
    both = {"gate": {"enabled": False}, "weight_check": {"enabled": True}}
    with pytest.raises(ValueError, match="weight_check must be given once, got it as gate too"):
        with_todays_names(both)


def test_what_is_given_stays_as_it_is() -> None:
    given = {"alarm": {"steps_in_a_row": 2}}
    with_todays_names(given)
    assert given == {"alarm": {"steps_in_a_row": 2}}


def test_new_names_are_fields() -> None:
    assert not takes_text_only(["monitors"])
    for new in RENAMED.values():
        assert new.split(".")[0] in RunConfig.model_fields
