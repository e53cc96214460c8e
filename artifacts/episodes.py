"""The records of an episode, a response of many turns: its turns, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from artifacts.shown_pictures import ShownPicture


class Ending(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"  # the environment came to an end of its own
    TRUNCATED = "truncated"  # the environment cut it by a bound of its own
    TURNS = "turns"  # the bound on turns
    TOKENS = "tokens"  # the bound on tokens, or what the next observation leaves no room for
    TIME = "time"  # the bound on the episode's time
    CRASHED = "crashed"  # the environment raised, died or broke its protocol
    UNANSWERED = "unanswered"  # a reset or a step took the environment longer than it may

    @property
    def is_failure(self) -> bool:
        """True if the environment failed, so that the ending says nothing about the model."""
        return self in (Ending.CRASHED, Ending.UNANSWERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptObservation:
    """An environment's observation, whose pictures a run has kept."""

    text: str
    pictures: tuple[ShownPicture, ...] = ()  # before the text; they begin at 0, without a place

    @property
    def identity(self) -> str:
        """A text that is the same for equal observations."""
        return "\n".join((self.text, *(picture.content for picture in self.pictures)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of an episode: the environment's observation, the model's action and its reward. Its
    tokens are first the given ones, then the sampled ones. The last turn of a stopped episode may
    lack the environment's answer and some of its sampled tokens."""

    num_given: int  # tokens that nobody sampled: the bridge, with the observation in it
    num_sampled: int  # tokens of the action, its end token included when it was sampled
    observation: str  # the text that the model read
    action: str  # the text that the model answered
    reward: float | None  # of the action, by the environment; None while it has not answered
    asked_s: float  # when the engine was asked for the action
    acted_s: float  # when the action was there
    answered_s: float | None  # when the environment had answered; None while it has not
    # True if its given tokens are the whole history, rewritten behind the prompt: the model then
    # did not read the tokens of the turns before
    starts_over: bool = False
    info: tuple[tuple[str, str], ...] = ()  # details of the environment's answer, by name
    # in the given tokens: of the observation, and of those before it where the history is rewritten
    pictures: tuple[ShownPicture, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Given and sampled tokens together."""
        return self.num_given + self.num_sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An environment's state after the last turn that the environment answered."""

    state: bytes  # pickled; unpickled in processes of environments alone
    observation: KeptObservation  # its last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A response of many turns: the turns and the end."""

    turns: tuple[Turn, ...]  # none where the environment failed before the first, or it was stopped
    ending: Ending | None  # None while it goes on, or when it was stopped
    detail: str = ""  # the reason in a few words, printable ASCII
    last_observation: str = ""  # at the end; the model never read it
    reset_s: float = 0.0  # seconds that the environment's reset took
    num_resumed: int = 0  # times that it went on from a snapshot
    num_replayed: int = 0  # turns that a new environment was led through to go on elsewhere
    num_restarted: int = 0  # times that it began again, as its environment could not go on
    num_forgotten: int = 0  # sampled tokens that it had when it began again
    snapshot: Snapshot | None = None  # to go on from; None once it is over, and when it is recorded

    @property
    def num_sampled(self) -> int:
        """Tokens that the model sampled."""
        return sum(turn.num_sampled for turn in self.turns)


def observations_of(turns: Iterable[Turn]) -> list[KeptObservation]:
    """What the environment said and showed before each turn, from the first turn of an episode
    on."""
    found: list[KeptObservation] = []
    num_shown = 0  # pictures of the observations before
    for turn in turns:
        own = turn.pictures[num_shown:] if turn.starts_over else turn.pictures
        shown = tuple(picture.moved(-picture.begin) for picture in own)
        found.append(KeptObservation(text=turn.observation, pictures=shown))
        num_shown += len(own)
    return found
