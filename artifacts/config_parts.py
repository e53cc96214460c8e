"""Parts that several configurations share: their base, their errors, where a service's token is
stored, and defaults of a part that differ from those of its class."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from artifacts.urls import Location


class FrozenConfig(BaseModel):
    """A part of the configuration: it never changes, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Misfits(ValueError):
    """Several errors of a configuration at once, a sentence each."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("; ".join(found))
        self.found = tuple(found)


class TokenPlace(BaseModel):
    """Where a service's token is stored: in an environment variable or a file."""

    token_variable: str = Field(
        "",
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        description=(
            "Environment variable with the service's token, which is sent as 'Authorization: Bearer"
            " TOKEN', or as it is where it begins with a scheme of its own ('Basic ...'); empty:"
            " none."
        ),
    )
    token_file: Location = Field(
        "", description="File with that token, instead of a variable; empty: none."
    )

    @field_validator("token_file")
    @classmethod
    def _holds_anywhere(cls, file: str) -> str:
        return os.path.abspath(os.path.expanduser(file)) if file else ""

    @model_validator(mode="after")
    def _lies_in_one_place(self) -> Self:
        if self.token_variable and self.token_file:
            raise ValueError(
                "a service's token must come from token_variable or token_file, got both; leave one"
                " out"
            )
        return self

    def authorization(self) -> dict[str, str]:
        """The Authorization header of a request; empty if no token is configured. Raises ValueError
        for a token that cannot be read or is no valid header; the message does not repeat it."""
        if not (self.token_variable or self.token_file):
            return {}
        token = self._token()
        if not re.fullmatch(r"[!-~]+( [!-~]+)*", token):
            raise ValueError(
                f"the token of {self.token_file or self.token_variable} must be one line of ASCII,"
                " it is not; write it there as the service has it"
            )
        return {"Authorization": token if " " in token else f"Bearer {token}"}

    def _token(self) -> str:
        if self.token_variable:
            token = os.environ.get(self.token_variable, "").strip()
            if not token:
                raise ValueError(
                    f"token_variable must name a variable of the environment, {self.token_variable}"
                    " is not set; export it where the run's workers start"
                )
            return token
        try:
            return Path(self.token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ValueError(
                f"token_file must be a file that can be read, got {self.token_file} ({reason});"
                " correct it"
            ) from None


def with_defaults(usual: Mapping[str, object]) -> BeforeValidator:
    """A validator that fills the missing fields of a part from `usual`, not from its class's
    defaults."""

    def whole(given: object) -> object:
        return {**usual, **given} if isinstance(given, Mapping) else given

    return BeforeValidator(whole)
