"""An episode as a person reads it: what the environment said, what the model answered, what it was
paid and how long both took, turn by turn.

    ResponseRow ─▶ Transcript ─▶ lines: terminal, page and Markdown give them colours or none

Every text in it is printable (`printable`). Leaves out which episodes are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from artifacts.episodes import Episode, Turn
from artifacts.printable import printable
from artifacts.records import Generated, Outcome
from artifacts.tables import ResponseRow

STOPPED = "stopped"  # how an episode ended that was not played to its end
UNSCORED = "unscored"  # outcome of a response without a score


class Voice(StrEnum):
    """Who speaks in a line."""

    ENVIRONMENT = "environment"
    MODEL = "model"
    NOTE = ""  # nobody: what there is to say of the turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptLine:
    """What one voice says in a turn."""

    turn: str  # the turn's number, where it begins; "end" after the last one
    voice: Voice
    text: str  # printable; may have several lines

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
    """One episode."""

    response_id: str  # its response
    about: str  # which episode it is: domain, seed, step and weight versions
    outcome: str  # what its score calls it
    ending: str  # how it ended, and the reason where there is one
    reward: float | None  # None where there is no verdict
    num_turns: int  # the last one included where the environment has not answered it
    num_sampled: int  # tokens that the model sampled
    num_given: int  # tokens that were given to it between
    lines: tuple[TranscriptLine, ...]  # what was said

    @property
    def result(self) -> str:
        """What came of it, but for the reward."""
        turns = "1 turn" if self.num_turns == 1 else f"{self.num_turns} turns"
        tokens = f"{self.num_sampled} sampled and {self.num_given} given tokens"
        return f"{self.outcome}, {self.ending}, {turns}, {tokens}"

    @property
    def headline(self) -> str:
        """What came of it."""
        paid = "no reward" if self.reward is None else f"reward {self.reward:g}"
        return f"{paid}, {self.result}"


def transcript_of(row: ResponseRow) -> Transcript | None:
    """The transcript of a response, or None for one of a single turn."""
    generated, score = row.response.generated, row.response.score
    if generated.episode is None:
        return None
    return Transcript(
        response_id=generated.response_id,
        about=_about(row),
        outcome=outcome_of(row),
        ending=_ending(generated.episode),
        reward=None if score is None else score.reward,
        num_turns=len(generated.episode.turns),
        num_sampled=generated.num_sampled,
        num_given=len(generated.token_ids) - generated.num_sampled,
        lines=tuple(_lines(generated.episode)),
    )


def outcome_of(row: ResponseRow) -> str:
    """What the score says; of a response without one whether it was stopped half-way."""
    if row.response.score is not None:
        return row.response.score.outcome
    return Outcome.ABORTED if row.response.generated.finish_reason == "aborted" else UNSCORED


def ending_of(episode: Episode) -> str:
    """How it ended, in a word."""
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
    return ", ".join([*known, *_versions(row.response.generated)])


def _versions(generated: Generated) -> list[str]:
    """The weight versions that sampled it, as a list of one or no element."""
    versions = list(dict.fromkeys(span.version for span in generated.versions))
    named = "version" if len(versions) == 1 else "versions"
    return [f"{named} {', '.join(map(str, versions))}"] if versions else []


def _ending(episode: Episode) -> str:
    ending = ending_of(episode)
    return f"{ending} ({printable(episode.detail)})" if episode.detail else ending


def _lines(episode: Episode) -> Iterator[TranscriptLine]:
    for number, turn in enumerate(episode.turns, 1):
        said = printable(turn.observation)
        yield TranscriptLine(turn=str(number), voice=Voice.ENVIRONMENT, text=said)
        if turn.num_sampled or turn.action:
            yield TranscriptLine(turn="", voice=Voice.MODEL, text=printable(turn.action))
        yield TranscriptLine(turn="", voice=Voice.NOTE, text=_note(turn))
    if episode.last_observation:
        last = printable(episode.last_observation)
        yield TranscriptLine(turn="end", voice=Voice.ENVIRONMENT, text=last)


def _note(turn: Turn) -> str:
    """What the turn was worth and how long it took."""
    taken = f"model {_seconds(model_s(turn))}"
    if turn.answered_s is None:
        return f"the environment has not answered; {taken}"
    paid = "no reward" if turn.reward is None else f"reward {turn.reward:g}"
    return f"{paid}; {taken}, environment {_seconds(environment_s(turn))}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
