"""Turns an error into one sentence for the user."""

from __future__ import annotations

from pydantic import ValidationError

from artifacts.urls import hidden, without_secrets
from flows.config.fields import as_written


def sentence(error: object) -> str:
    """An error as one line without secrets. For a validation error, the line lists every fault with
    its field."""
    if isinstance(error, ValidationError):
        return "; ".join(
            _fault(fault["loc"], fault["msg"], fault["type"], fault.get("input"))
            for fault in error.errors()
        )
    return without_secrets(" ".join(str(error).split())) or type(error).__name__


def _fault(place: tuple[int | str, ...], message: str, kind: str, given: object) -> str:
    field, message = without_secrets(as_written(place)), without_secrets(message)
    if kind == "extra_forbidden":
        return (
            f"{field} must be a known field, it is not one; 'rollflow explain --fields --all' lists"
            " them"
        )
    if kind == "value_error":
        return f"{field + ': ' if field else ''}{message.removeprefix('Value error, ')}"
    return f"{field} is wrong: {message[0].lower()}{message[1:]}, got {hidden(given)!r}; correct it"
