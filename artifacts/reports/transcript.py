"""The transcript of an episode, turn by turn: observation, action, reward, and the seconds that
model and environment took. Every text in a transcript is printable (`printable`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from artifacts.episodes import Episode, Turn, observations_of
from artifacts.printable import printable
from artifacts.records import Outcome, ShownPicture
from artifacts.tables import ResponseRow

STOPPED = "stopped"  # ending of an episode that was not played to its end
UNSCORED = "unscored"  # outcome of a response without a score


class Voice(StrEnum):
    """The speaker of a transcript's line."""

    ENVIRONMENT = "environment"
    MODEL = "model"
    NOTE = ""  # nobody: reward and times of the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptLine:
    """What one speaker says in a turn."""

    turn: str  # the turn's number, where it begins; "end" after the last one
    voice: Voice
    text: str  # printable; may have several lines
    pictures: tuple[ShownPicture, ...] = ()  # that the environment shows with it

    def __str__(self) -> str:
        first, *more = self.text.split("\n")
        return "\n".join(
            (
                f"{self.turn:>3}  {self.voice:<11}  {first}".rstrip(),
                *(f"{'':18}{line}".rstrip() for line in more),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The transcript of one episode, with its result."""

    response_id: str  # of the episode's response
    about: str  # domain, seed, step and weight versions
    outcome: str  # of the score
    ending: str  # how it ended, and the reason where there is one
    reward: float | None  # None without a verdict
    num_turns: int  # a last turn included that the environment has not answered
    num_sampled: int  # tokens that the model sampled
    num_given: int  # tokens that were given to it between
    lines: tuple[TranscriptLine, ...]  # all that was said

    @property
    def result(self) -> str:
        """Outcome, ending, turns and tokens, in one line."""
        turns = "1 turn" if self.num_turns == 1 else f"{self.num_turns} turns"
        tokens = f"{self.num_sampled} sampled and {self.num_given} given tokens"
        return f"{self.outcome}, {self.ending}, {turns}, {tokens}"

    @property
    def headline(self) -> str:
        """Reward and `result`, in one line."""
        reward = "no reward" if self.reward is None else f"reward {self.reward:g}"
        return f"{reward}, {self.result}"


def transcript_of(row: ResponseRow) -> Transcript | None:
    """Make the transcript of a response; None for a response of a single turn."""
    generated, score = row.response.generated, row.response.score
    if generated.episode is None:
        return None
    episode = generated.episode
    ending = ending_of(episode)
    return Transcript(
        response_id=generated.response_id,
        about=_about(row),
        outcome=outcome_of(row),
        ending=f"{ending} ({printable(episode.detail)})" if episode.detail else ending,
        reward=None if score is None else score.reward,
        num_turns=len(episode.turns),
        num_sampled=generated.num_sampled,
        num_given=len(generated.token_ids) - generated.num_sampled,
        lines=tuple(_lines(episode)),
    )


def outcome_of(row: ResponseRow) -> str:
    """The outcome of a response's score; without a score, "aborted" or "unscored"."""
    if row.response.score is not None:
        return row.response.score.outcome
    return Outcome.ABORTED if row.response.generated.finish_reason == "aborted" else UNSCORED


def ending_of(episode: Episode) -> str:
    """The ending of an episode in a word; "stopped" if it was not played to its end."""
    return STOPPED if episode.ending is None else episode.ending


def model_s(turn: Turn) -> float:
    """Seconds that the engine took for the action."""
    return max(0.0, turn.acted_s - turn.asked_s)


def environment_s(turn: Turn) -> float:
    """Seconds that the environment took for the step; 0 while it has not answered."""
    return 0.0 if turn.answered_s is None else max(0.0, turn.answered_s - turn.acted_s)


def _about(row: ResponseRow) -> str:
    seed = row.prompt.episode_seed
    known = [row.prompt.domain, f"{row.kind} round of step {row.step}"]
    if seed is not None:
        known.insert(1, f"seed {seed}")
    versions = list(dict.fromkeys(span.version for span in row.response.generated.versions))
    if versions:
        named = "version" if len(versions) == 1 else "versions"
        known.append(f"{named} {', '.join(map(str, versions))}")
    return ", ".join(known)


def _lines(episode: Episode) -> Iterator[TranscriptLine]:
    # a turn whose history was rewritten was given the pictures before it once more
    seen = observations_of(episode.turns)
    for number, (turn, own) in enumerate(zip(episode.turns, seen, strict=True), 1):
        said = f"{'(picture) ' * len(own.pictures)}{printable(own.text)}"
        yield TranscriptLine(
            turn=str(number), voice=Voice.ENVIRONMENT, text=said, pictures=own.pictures
        )
        if turn.num_sampled or turn.action:
            yield TranscriptLine(turn="", voice=Voice.MODEL, text=printable(turn.action))
        yield TranscriptLine(turn="", voice=Voice.NOTE, text=_note(turn))
    if episode.last_observation:
        last = printable(episode.last_observation)
        yield TranscriptLine(turn="end", voice=Voice.ENVIRONMENT, text=last)


def _note(turn: Turn) -> str:
    """The reward of a turn, and the seconds that it took."""
    taken = f"model {_seconds(model_s(turn))}"
    if turn.answered_s is None:
        return f"the environment has not answered; {taken}"
    reward = "no reward" if turn.reward is None else f"reward {turn.reward:g}"
    return f"{reward}; {taken}, environment {_seconds(environment_s(turn))}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
