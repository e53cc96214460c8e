"""A user's own environment, by import path: a class with `reset(seed)` and `step(text)`.

`reset` returns the first observation, `step` the five values (observation, reward, terminated,
truncated, info), as gymnasium has them; a `Transition` will do. An observation is a text, or a pair
of a text and the pictures above it, files as bytes. The model first reads the `rules` and
`examples` of the class, unless the configuration has its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from artifacts.custom_part import CustomPart
from artifacts.datasets.rows import Message
from artifacts.import_path import file_of, load
from tasks.environments.base import (
    AdapterConfig,
    Environment,
    PicturedText,
    ProtocolError,
    Transition,
    checked_text,
    head_messages,
)

CURE = "put it into words, or give a pair of a text and a list of pictures (PNG files as bytes)"


class CustomEnvironmentConfig(CustomPart, AdapterConfig):
    """Play an environment of the user's, a new object for each episode."""

    check: ClassVar[str] = "environment"
    kind: Literal["custom"] = Field("custom", description="Chooses an environment of your own.")

    def head(self) -> tuple[Message, ...]:
        """Returns the head of the configuration, else of the class. Raises ValueError if the class
        cannot be imported or its examples are no pairs of texts."""
        of_class = load(self.path)
        rules = self.rules or str(getattr(of_class, "rules", ""))
        turns = self.examples or getattr(of_class, "examples", ())
        try:
            return head_messages(rules, [(str(seen), str(done)) for seen, done in turns])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"examples must be pairs of an observation and an action, {self.path} has {turns!r}"
                f" ({error}); make them so"
            ) from error

    @property
    def part(self) -> Any:  # Any: a class of the user's
        """The user's class: objects are made episode by episode."""
        return load(self.path)

    @property
    def source(self) -> str:
        return file_of(self.path)

    def build(self) -> Environment:
        return CustomEnvironment(self)


class CustomEnvironment:
    """Wraps a user's object and checks its answers. It pickles if the object does."""

    def __init__(self, config: CustomEnvironmentConfig) -> None:
        self._config = config
        made_by = load(config.path)
        try:
            self._inner = made_by(**config.kwargs)
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise ValueError(
                f"{config.path} must be callable with kwargs {dict(config.kwargs)}, it raised"
                f" {type(error).__name__}: {error}; correct the class or kwargs"
            ) from error
        for name in ("reset", "step"):
            if not callable(getattr(self._inner, name, None)):
                raise ValueError(
                    f"an environment must have reset(seed) and step(text), {config.path} has no"
                    f" {name}; add it"
                )

    def reset(self, seed: int) -> str:
        return self._text(self._inner.reset(seed), "reset")

    def step(self, text: str) -> Transition:
        answer = self._inner.step(text)
        if not isinstance(answer, tuple) or len(answer) != len(Transition._fields):
            raise ProtocolError(
                f"step of {self._config.path} must return the five values"
                f" ({', '.join(Transition._fields)}), got {answer!r:.100}; return a tuple of them"
            )
        observation, reward, terminated, truncated, info = answer
        if not isinstance(info, Mapping):
            raise ProtocolError(
                f"info of {self._config.path} must be a mapping, got {info!r:.100}; return {{}}"
            )
        try:
            number = float(reward)
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"a reward must be a number, step of {self._config.path} gave {reward!r:.60};"
                " return 0.0 for none"
            ) from error
        return Transition(
            observation=self._text(observation, "step"),
            reward=number,
            terminated=bool(terminated),
            truncated=bool(truncated),
            info={str(key): str(value) for key, value in info.items()},
        )

    def _text(self, observation: object, method: str) -> str:
        place = f"{method} of {self._config.path}"
        match observation:
            case (text, [*shown]):
                files = [data for data in shown if isinstance(data, bytes)]
                if len(files) == len(shown):
                    return PicturedText.of(checked_text(text, place, CURE), files)
        return checked_text(observation, place, CURE)

    def __getstate__(self) -> tuple[CustomEnvironmentConfig, bytes]:
        return self._config, pickle.dumps(self._inner)

    def __setstate__(self, state: tuple[CustomEnvironmentConfig, bytes]) -> None:
        self._config, pickled = state
        load(self._config.path)  # the class must be known before its object is read
        self._inner = pickle.loads(pickled)
