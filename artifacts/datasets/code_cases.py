"""The tests of a program: what the gold of a code question holds, as JSON.

Three kinds of cases: a call of a function with its expected value, a whole program's standard
output for a standard input, and an assertion about a function. Values are written by
`plain_values`, so that a tuple comes back as a tuple. NaN and the infinities stand in the JSON by
their names, as Python's own writer has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from artifacts.datasets.plain_values import from_json, to_json

_CONFIG = ConfigDict(
    frozen=True,
    extra="forbid",
    ser_json_inf_nan="constants",
)  # else they are null, which is None


class CallCase(BaseModel):
    """Call the function and compare what it returns."""

    model_config = _CONFIG

    kind: Literal["call"] = Field("call", description="Chooses a call of the function.")
    # Any: JSON of plain values
    arguments: list[Any] = Field(..., description="Positional arguments.")
    # Any: JSON of a plain value
    expected: Any = Field(..., description="What the function must return, in exactly this type.")
    tolerance: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Absolute difference up to which a float is equal.",
    )

    @field_validator("arguments", "expected")
    @classmethod
    def _as_written(cls, data: Any) -> Any:  # Any: JSON of plain values
        """As `to_json` writes it, whoever wrote it; ValueError if it stands for no plain value."""
        return to_json(from_json(data))


class StdioCase(BaseModel):
    """Run the program and compare what it prints."""

    model_config = _CONFIG

    kind: Literal["stdio"] = Field("stdio", description="Chooses a whole program.")
    stdin: str = Field("", description="The program's standard input.")
    stdout: str = Field(
        ...,
        description=(
            "What it must print; white space at the ends of lines and of the text does not count."
        ),
    )


class AssertionCase(BaseModel):
    """Execute a statement that calls the function and must not raise."""

    model_config = _CONFIG

    kind: Literal["assertion"] = Field("assertion", description="Chooses a statement.")
    statement: str = Field(
        ..., description="Python that calls the function by its name, or as `candidate`."
    )


Case = Annotated[CallCase | StdioCase | AssertionCase, Field(discriminator="kind")]


class CodeGold(BaseModel):
    """The tests of one question; its JSON is `Row.gold`."""

    model_config = _CONFIG

    function: str = Field(
        "",
        description=(
            "Name of the function that calls and assertions are about; a whole program needs none."
        ),
    )
    preamble: str = Field(
        "",
        description=(
            "Text put before the response's program, for example the imports that the question"
            " shows."
        ),
    )
    test_setup: str = Field(
        "",
        description="Executed once before the first assertion, apart from the response's program.",
    )
    solution: str = Field(
        "",
        description=(
            "A right program, if one is known: it is executed once, and its running times are the"
            " first anchors of the limits."
        ),
    )
    cases: tuple[Case, ...] = Field(..., min_length=1, description="All must pass.")


def call_case(arguments: Sequence[object], expected: object, tolerance: float = 0.0) -> CallCase:
    """A call case of Python values. ValueError for values that are not plain."""
    return CallCase(
        arguments=[to_json(argument) for argument in arguments],
        expected=to_json(expected),
        tolerance=tolerance,
    )
