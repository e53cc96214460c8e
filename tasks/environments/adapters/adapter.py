"""The base of the adapters: the rules of somebody else's environment stand in the configuration,
because the environment itself does not tell a model how to play."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from artifacts.datasets.rows import Message
from artifacts.urls import Location
from tasks.environments.base import EnvironmentSettings, head_messages
from tasks.isolation.import_path import absolute

ImportPath = Annotated[Location, AfterValidator(absolute)]


class ProtocolError(TypeError):
    """Raised if an environment breaks the protocol: the environment's fault, never the model's."""


def checked_text(observation: object, place: str, cure: str) -> str:
    """Returns an observation. Raises ProtocolError if it is no text; place: where it came from."""
    if not isinstance(observation, str):
        raise ProtocolError(
            f"an observation must be text, {place} gave {type(observation).__name__}"
            f" {observation!r:.60}; {cure}"
        )
    return observation


class AdapterConfig(EnvironmentSettings):
    """An environment of somebody else's."""

    rules: str = Field(
        "",
        description="System turn before the first observation: what the game is, how to reply.",
    )
    examples: tuple[tuple[str, str], ...] = Field(
        (),
        description=(
            "Observations with the actions that answer them, shown to the model as turns of the"
            " chat before the first observation."
        ),
    )

    def head(self) -> tuple[Message, ...]:
        return head_messages(self.rules, self.examples)
