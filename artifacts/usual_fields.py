"""Parts of a configuration whose defaults are not those of their class."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BeforeValidator


def beside(usual: Mapping[str, object]) -> BeforeValidator:
    """For a part of which one field is given: the others are the usual ones, not the class's."""

    def whole(given: object) -> object:
        return {**usual, **given} if isinstance(given, Mapping) else given

    return BeforeValidator(whole)
