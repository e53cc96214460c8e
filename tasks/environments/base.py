"""The Environment seam: something a model talks to, in text, for many turns. Observations may
show pictures (`PicturedText`).

    observation = reset(seed) -> step(action text) -> Transition -> ... until terminated or
    truncated

An environment draws random numbers from the seed of its reset only, so that the same actions lead
to the same transcript, and pickles between turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Protocol

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.rows import Message
from artifacts.episodes import Ending
from artifacts.printable import printable_line
from artifacts.shown_pictures import MOST_PICTURES
from tasks.environments.transition import PicturedText as PicturedText
from tasks.environments.transition import Transition as Transition

MOST_PICTURE_BYTES = 4 << 20  # of all pictures of an observation


class Environment(Protocol):
    """An environment, which plays one episode at a time."""

    def reset(self, seed: int) -> str:
        """Begin an episode; returns the first observation."""
        ...

    def step(self, text: str) -> Transition:
        """Take the model's turn. Text that is no valid action never raises."""
        ...


class RequestedProgram(NamedTuple):
    """A program that the model asks to run."""

    text: str  # in Python
    limit_s: float  # wall seconds that it may take
    max_chars: int  # of its output that the model reads


class Recipe(Protocol):
    """Builds an environment inside its process. A recipe pickles."""

    def build(self) -> Environment:
        """Make a new environment. Raises ValueError, with the cure, if it cannot be made."""
        ...


class EnvironmentSettings(FrozenConfig):
    """Settings of any kind of environment, and the questions that every kind answers."""

    needs_network: ClassVar[bool] = False  # its process may open connections
    slow_imports: ClassVar[tuple[str, ...]] = ()  # modules that its processes share, imported once

    max_turns: int = Field(16, ge=1, description="Turns after which an episode is cut.")

    @property
    def class_name(self) -> str:
        """The qualified name of the settings' class, with its module."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def interpreter(self) -> str:
        """Absolute path of the Python of its processes; empty: the run's own."""
        return ""

    @property
    def source(self) -> str:
        """Path of the user's file that its processes import; empty if there is none."""
        return ""

    def recipe(self) -> Recipe:
        """Returns the recipe from which a process builds the environment."""
        return self

    def head(self) -> tuple[Message, ...]:
        """Returns the chat before the first observation, the system's message first."""
        raise NotImplementedError

    def program_in(self, text: str) -> RequestedProgram | None:
        """Returns the program that an action asks to run, None without one. The environment takes
        the turn but never runs the program; the program's output becomes the observation."""
        return None

    def build(self) -> Environment:
        """Make a new environment. Raises ValueError, with the cure, if it cannot be made."""
        raise NotImplementedError


class EnvironmentFailed(RuntimeError):
    """Raised if the environment raised, died or did not answer in time: never the model's fault."""

    def __init__(self, ending: Ending, detail: str) -> None:
        self.detail = printable_line(detail)  # the reason in a few words, printable ASCII
        super().__init__(self.detail)
        self.ending = ending  # CRASHED or UNANSWERED


class Crashed(EnvironmentFailed):
    """Raised if the environment raised, died or broke the protocol, or its process is unusable."""

    def __init__(self, detail: str) -> None:
        super().__init__(Ending.CRASHED, detail)


class EnvironmentLost(Crashed):
    """Raised if the environment's worker is gone; after another `reset` the episode may go on."""


class EnvironmentProcesses(Protocol):
    """The processes in which environments step; each episode has one from `reset` to `end`."""

    async def warm(self) -> None:
        """Start what every episode needs, such as fork servers. Raises ValueError, with the cure,
        if this machine cannot host environments."""
        ...

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str | None:
        """Begin an episode in a free or a new process; returns the first observation. Raises
        EnvironmentFailed, EnvironmentLost if another reset may succeed, and ValueError, with the
        cure, for an environment that cannot work.

        state: a snapshot from which the episode should go on. Returns None if it does.
        """
        ...

    async def step(self, episode_id: str, text: str) -> Transition:
        """Take a turn. Raises EnvironmentFailed, which ends the episode, or EnvironmentLost, after
        which the episode may go on with another reset."""
        ...

    def snapshot(self, episode_id: str) -> bytes:
        """Returns the episode's environment after its last step, pickled, for `reset` in any
        process; empty if it does not pickle or is too large."""
        ...

    async def end(self, episode_id: str) -> None:
        """End an episode: its process becomes free, or is killed if it is in a call."""
        ...

    def close(self) -> None:
        """End every process."""
        ...


# no rules: one token, where the tokenizer begins a text with one
EMPTY_HEAD = (Message(role="system", content=""),)


def head_messages(rules: str, turns: Iterable[tuple[str, str]]) -> tuple[Message, ...]:
    """Returns the rules as the system's turn, then every observation as the user's turn and the
    action that answers it as the assistant's."""
    messages = [Message(role="system", content=rules)]
    for observation, action in turns:
        messages.append(Message(role="user", content=observation))
        messages.append(Message(role="assistant", content=action))
    return tuple(messages)


class AdapterConfig(EnvironmentSettings):
    """An environment of somebody else's, which does not tell a model itself how to play."""

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


def check_pictures(pictures: Sequence[bytes]) -> None:
    """Raises ValueError for more or larger pictures than an observation may have."""
    num_bytes = sum(map(len, pictures))
    if len(pictures) > MOST_PICTURES or num_bytes > MOST_PICTURE_BYTES:
        raise ValueError(
            f"an observation must have at most {MOST_PICTURES} pictures of {MOST_PICTURE_BYTES}"
            f" bytes together, got {len(pictures)} of {num_bytes}; show fewer or smaller ones"
        )
