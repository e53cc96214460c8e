"""Fields of a configuration that users cannot set one by one.

    a profile's name, file or numbers ─▶ `with_profile` ─▶ fixed fields of the part
    the run's table `deadlines` ───────▶ `flows.config.limits` ─▶ derived limits

Tests and experiments pass such fields to the classes. Neither the JSON schema of the settings nor
a run's stored settings contain them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from artifacts.urls import Arguments, Location

T = TypeVar("T")
Numbers = Mapping[str, object]

_reads_settings: ContextVar[bool] = ContextVar("_reads_settings", default=False)


class _OfProfile(NamedTuple):
    """A field's value that came from a profile, not from the user's settings."""

    value: object


@contextmanager
def reading_settings() -> Iterator[None]:
    """Make every validation within the block refuse fixed fields."""
    token = _reads_settings.set(True)
    try:
        yield
    finally:
        _reads_settings.reset(token)


def _checked(given: object) -> object:
    if isinstance(given, _OfProfile):
        return given.value
    if _reads_settings.get():
        raise ValueError("is no setting; leave it out, or put it into the part's profile")
    return given


# A value that a user cannot set on its own.
Fixed = Annotated[SkipJsonSchema[T], Field(exclude=True), BeforeValidator(_checked)]
# A limit in seconds, derived from the run's table `deadlines`.
DerivedSeconds = Annotated[
    SkipJsonSchema[float], Field(gt=0, exclude=True), BeforeValidator(_checked)
]
# A profile: its name, the path of a JSON or YAML file that holds one, or its numbers.
Profile = Location | Arguments


def with_profile(
    values: Any,  # Any: whatever is validated
    profiles: Mapping[str, Numbers],
    usual: str,
) -> Any:
    """Add the numbers of a part's profile to the part's values; the numbers of a profile file
    replace its path. Raises ValueError if the profile does not exist."""
    if not isinstance(values, Mapping):
        return values
    profile = values.get("profile", usual)
    if isinstance(profile, str):
        if profile in profiles:
            numbers = profiles[profile]
        else:
            numbers = _read(profile, profiles)
            values = {**values, "profile": numbers}
    elif isinstance(profile, Mapping):
        numbers = profile
    else:
        return values
    return {**{name: _OfProfile(number) for name, number in numbers.items()}, **values}


def _read(path: str, profiles: Mapping[str, Numbers]) -> Numbers:
    import yaml  # here, because few configurations name a file

    rule = f"profile must be {', '.join(profiles)} or a file of JSON or YAML"
    try:
        text = Path(path).expanduser().read_text()
        found = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{rule}, got {path!r} ({error}); correct it") from None
    if not isinstance(found, dict):
        raise ValueError(f"{rule} with a mapping, got {path!r} with {found!r:.60}; correct it")
    return found
