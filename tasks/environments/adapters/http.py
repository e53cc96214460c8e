"""An environment behind an HTTP server, in the shapes that OpenEnv and ROCK (GEM) speak.

    openenv   POST /reset {seed, episode_id}  ->  {observation: {...}, reward, done}
              POST /step {action: {...}, episode_id}
    gem       POST /make {env_id} -> {sandbox_id}    POST /reset {sandbox_id, seed}
              POST /step {sandbox_id, action} -> {observation, reward, terminated, truncated, info}
              POST /close {sandbox_id}, when an episode has ended

An OpenEnv server that takes no notice of `episode_id` has one episode at a time.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from artifacts.config_parts import TokenPlace
from artifacts.fixed_fields import DerivedSeconds
from artifacts.urls import ServiceUrl
from tasks.environments.base import AdapterConfig, Environment, Transition, checked_text

Json = Any  # Any: parsed JSON


class HttpConfig(AdapterConfig, TokenPlace):
    """Play an environment behind a server."""

    needs_network: ClassVar[bool] = True

    kind: Literal["http"] = Field("http", description="Chooses an environment behind a server.")
    url: ServiceUrl = Field(
        ...,
        pattern=r"^https?://",
        description="Where its calls are, for example http://host:8000; /reset is added to it.",
    )
    shape: Literal["openenv", "gem"] = Field(
        "openenv", description="What the server speaks: OpenEnv's calls, or GEM's as ROCK has them."
    )
    environment_id: str = Field(
        "", description="Which environment `gem` makes, for example game:Sokoban-v0-easy."
    )
    action_field: str = Field(
        "message", description="Field of an OpenEnv action that takes the model's text."
    )
    observation_field: str = Field(
        "text", description="Field of an OpenEnv observation that the model reads."
    )
    timeout_s: DerivedSeconds = 60.0  # for an answer of the server

    def recipe(self) -> HttpRecipe:
        """Returns a recipe that contains the server's token, because processes behind walls see
        neither its environment variable nor its file. Raises ValueError if the token cannot be
        read."""
        return HttpRecipe(self, self.authorization())

    def build(self) -> Environment:
        return self.recipe().build()


class HttpRecipe(NamedTuple):
    """The recipe of an environment behind a server, for its process."""

    config: HttpConfig
    authorization: dict[str, str]

    def build(self) -> Environment:
        """Make the environment. Its pickles are stored, so it does not hold the token itself."""
        _authorizations[self.config.url] = self.authorization
        return HttpEnvironment(self.config)


# headers by server's URL, of this process
_authorizations: dict[str, dict[str, str]] = {}


class HttpEnvironment:
    """One episode at a server. An unpickled copy goes on with the same episode there."""

    def __init__(self, config: HttpConfig) -> None:
        self._config, self._is_gem = config, config.shape == "gem"
        self._episode = dict[str, str]()  # the field that names the episode in every call

    def reset(self, seed: int) -> str:
        self._turns_left = self._config.max_turns
        if self._is_gem:  # an episode has a sandbox of its own
            self._end()
            made = post(self._config, "make", {"env_id": self._config.environment_id})
            self._episode = {"sandbox_id": str(made.get("sandbox_id", ""))}
        else:
            self._episode = {"episode_id": uuid.uuid4().hex}
        return self._text(post(self._config, "reset", {"seed": seed, **self._episode}))

    def step(self, text: str) -> Transition:
        action = text if self._is_gem else {self._config.action_field: text}
        answer = post(self._config, "step", {"action": action, **self._episode})
        self._turns_left -= 1
        terminated = bool(answer.get("terminated", answer.get("done", False)))
        truncated = bool(answer.get("truncated", False))
        if truncated:  # `done` alone does not tell the two apart
            terminated = bool(answer.get("terminated", False))
        is_cut = truncated or (self._turns_left <= 0 and not terminated)
        if terminated or is_cut:
            self._end()
        info = answer.get("info") or answer.get("metadata") or {}
        return Transition(
            observation=self._text(answer),
            reward=float(answer.get("reward") or 0.0),
            terminated=terminated,
            truncated=is_cut,
            info={str(key): str(value) for key, value in dict(info).items()},
        )

    def _text(self, answer: Json) -> str:
        observation = answer.get("observation")
        if not self._is_gem and isinstance(observation, Mapping):
            observation = observation.get(self._config.observation_field, observation)
        cure = "name the field that has the text in observation_field"
        return checked_text(observation, "the server", cure)

    def _end(self) -> None:
        """Close the sandbox, if there is one; the server may have ended it by itself."""
        if self._is_gem and self._episode.get("sandbox_id"):
            episode, self._episode = self._episode, {"sandbox_id": ""}
            with contextlib.suppress(RuntimeError):
                post(self._config, "close", episode)


def post(config: HttpConfig, call: str, body: Mapping[str, Json]) -> Json:
    """Send a call; returns the server's answer, a JSON object. Raises RuntimeError without one."""
    place = f"{config.url.rstrip('/')}/{call}"
    request = urllib.request.Request(
        place, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for name, value in _authorizations.get(config.url, {}).items():
        request.add_unredirected_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=config.timeout_s) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        said = error.read(200).decode(errors="replace")
        raise RuntimeError(
            f"the environment's server refused {call}: {error.code} {said}"
        ) from error
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"the environment's server gave no answer at {place}: {error}"
        ) from error
    if not isinstance(answer, dict):
        raise RuntimeError(f"the environment's server must answer an object, got {answer!r:.100}")
    return answer
