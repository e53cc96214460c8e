"""An environment of gymnasium, put into words or shown as pictures.

    observation ──render──▶ text or picture        text ──actions──▶ action

The user's configuration gives names to the actions, which are numbers. Text that names no action
leaves the environment as it is, is answered with the names of the actions, and uses up a turn. The
package is imported when an environment is made, not before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from artifacts.custom_part import ImportPath
from artifacts.import_path import load
from artifacts.urls import Arguments
from tasks.environments.base import (
    AdapterConfig,
    Environment,
    PicturedText,
    Transition,
    checked_text,
)

MODES = ("ansi", "rgb_array")
COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0?m", re.DOTALL)
Renderer = Callable[[Any, Any], str]  # Any: what the environment observes, and the environment


class GymnasiumConfig(AdapterConfig):
    """Play an environment of gymnasium."""

    slow_imports: ClassVar[tuple[str, ...]] = ("gymnasium",)

    kind: Literal["gymnasium"] = Field(
        "gymnasium", description="Chooses an environment of the package gymnasium."
    )
    id: str = Field(..., description="Its id, for example FrozenLake-v1.")
    kwargs: Arguments = Field(
        default_factory=dict, description="Keyword arguments of gymnasium.make."
    )
    actions: Mapping[str, Any] = Field(  # Any: what the environment takes
        ..., min_length=1, description="What the model says -> the action, for example left -> 0."
    )
    render: ImportPath = Field(
        "",
        description=(
            "What a model sees of an observation: 'ansi', the environment's own picture in"
            " characters; 'rgb_array', its picture, for a model that takes some; or the text of a"
            " function of (observation, environment), by import path. Empty: observations are"
            " texts."
        ),
    )

    def build(self) -> Environment:
        return GymnasiumEnvironment(self)


class GymnasiumEnvironment:
    """One environment of gymnasium; it pickles if that does."""

    def __init__(self, config: GymnasiumConfig) -> None:
        self._config = config
        mode = {"render_mode": config.render} if config.render in MODES else {}
        try:
            import gymnasium
        except ImportError as error:
            raise ValueError(
                "an environment of kind gymnasium needs the package gymnasium, which is not"
                " installed; pip install 'gymnasium==1.4.0'"
            ) from error
        try:
            self._inner = gymnasium.make(config.id, **mode, **config.kwargs)
        except Exception as error:  # gymnasium's errors, and whatever an environment raises
            raise ValueError(
                f"gymnasium must be able to make {config.id!r} with kwargs {dict(config.kwargs)},"
                f" it says {type(error).__name__}: {error}; correct id or kwargs"
            ) from error
        if config.render not in ("", *MODES):
            load(config.render)

    def reset(self, seed: int) -> str:
        self._turns_left = self._config.max_turns
        observation, _ = self._inner.reset(seed=seed)
        return self._told(observation)

    def step(self, text: str) -> Transition:
        self._turns_left -= 1
        is_last = self._turns_left <= 0
        name = text.strip().removesuffix(".")
        if name not in self._config.actions:
            said = f"Say one of: {', '.join(self._config.actions)}."
            return Transition(said, 0.0, False, is_last, {"action": "invalid"})
        observation, reward, terminated, truncated, _ = self._inner.step(self._config.actions[name])
        return Transition(
            observation=self._told(observation),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) or (is_last and not terminated),
            info={"action": "valid"},
        )

    def _told(self, observation: Any) -> str:  # Any: whatever the environment observes
        match self._config.render:
            case "":
                told = observation
            case "ansi":
                told = COLOURED.sub(r"[\1]", str(self._inner.render())).strip("\n")
            case "rgb_array":
                return PicturedText.of("", [_file_of(self._inner.render())])
            case path:
                renderer: Renderer = load(path)
                told = renderer(observation, self._inner.unwrapped)
        cure = "set render to 'ansi' or to a function that puts it into words"
        return checked_text(told, self._config.id, cure)


def _file_of(pixels: Any) -> bytes:  # Any: numpy's array, (rows, columns, 3)
    """The PNG file of a picture."""
    from PIL import Image  # pictures alone need it

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()
