"""An episode as far as it has come: a pure accumulator, from the first observation to the record.

    opened(bridge, observation) ─▶ sampled(what the engine said) ─▶ answered(what followed) ─▶ ...

Given tokens are added together with the action that follows them: an episode that stops before an
action does not contain them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from artifacts.episodes import (
    Ending,
    Episode,
    KeptObservation,
    Snapshot,
    Turn,
    observations_of,
)
from artifacts.new_tokens import extend_spans, join_spans, split_spans
from artifacts.records import (
    FinishReason,
    Generated,
    Request,
    Routes,
    ShownPicture,
    VersionSpan,
)
from tasks.environments.base import Transition

BOUNDS = (Ending.TRUNCATED, Ending.TURNS, Ending.TOKENS, Ending.TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of an episode."""

    ending: Ending | None  # None of one that was stopped
    detail: str = ""  # the reason in a few words
    last_observation: str = ""  # what the model never read

    @property
    def finish_reason(self) -> FinishReason:
        """The finish reason, in the vocabulary of responses of a single turn."""
        if self.ending is None:
            return "aborted"
        return "length" if self.ending in BOUNDS else "stop"


STOPPED = End(ending=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A turn whose action the model has not ended."""

    given: tuple[int, ...]  # token ids in front of the action
    observation: str  # what the model reads
    pictures: tuple[ShownPicture, ...] = ()  # of the observation, or of the history, in `given`
    asked_s: float  # when the engine was asked for the action
    starts_over: bool = False  # whether `given` is the whole history, written anew
    # of an action that was stopped half-way: its tokens so far, their behaviour log-probabilities
    # and the weight versions that sampled them
    said_ids: tuple[int, ...] = ()
    said_logprobs: tuple[float, ...] = ()
    said_versions: tuple[VersionSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSoFar:
    """The turns of an episode so far, and their tokens in order."""

    turns: tuple[Turn, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # 0 of given tokens
    versions: tuple[VersionSpan, ...] = ()  # given tokens count with what was sampled after them
    opened: Opened | None = None  # the next turn, whose tokens are not among those above
    routes: Routes | None = None  # of prompt and tokens, as the last action's engine has them
    # the environment after the last turn that it has answered; None where none was taken of it
    snapshot: Snapshot | None = None

    @classmethod
    def of(cls, request: Request) -> EpisodeSoFar:
        """Returns the episode that a request continues."""
        kept = request.kept_episode or Episode(turns=(), ending=None)
        return cls(
            turns=kept.turns,
            token_ids=request.kept_tokens,
            logprobs=request.kept_logprobs,
            versions=request.kept_versions,
            snapshot=kept.snapshot,
        )

    @property
    def awaits_answer(self) -> bool:
        """True if the environment has not answered the last action."""
        return bool(self.turns) and self.turns[-1].answered_s is None

    @property
    def num_sampled(self) -> int:
        """Tokens that the model sampled in the turns, without the opened one."""
        return sum(turn.num_sampled for turn in self.turns)

    @property
    def said(self) -> list[tuple[KeptObservation, str]]:
        """Every observation with the action that answered it."""
        actions = (turn.action for turn in self.turns)
        return list(zip(observations_of(self.turns), actions, strict=True))

    @property
    def path(self) -> tuple[int, ...]:
        """The tokens of the turns since the history was last rendered anew, if ever."""
        num_read = 0
        for turn in self.turns:
            num_read = turn.num_tokens + (0 if turn.starts_over else num_read)
        return self.token_ids[len(self.token_ids) - num_read :]

    @property
    def path_pictures(self) -> tuple[ShownPicture, ...]:
        """The pictures of `path`, by their places in it."""
        found: tuple[ShownPicture, ...] = ()
        num_read = 0
        for turn in self.turns:
            if turn.starts_over:
                found, num_read = (), 0
            found += tuple(picture.moved(num_read) for picture in turn.pictures)
            num_read += turn.num_tokens
        return found

    @property
    def num_held(self) -> int:
        """Tokens after the prompt that an engine holds, without those that it is sampling."""
        return len(self.token_ids) + (len(self.opened.given) if self.opened is not None else 0)

    def reopened(self, asked_s: float) -> EpisodeSoFar:
        """Returns the episode with its last turn, whose action was stopped, opened again."""
        last = self.turns[-1]
        begun = len(self.token_ids) - last.num_sampled
        num_before = begun - last.num_given
        before, spans = split_spans(self.versions, num_before)
        return replace(
            self,
            turns=self.turns[:-1],
            token_ids=self.token_ids[:num_before],
            logprobs=self.logprobs[:num_before],
            versions=before,
            opened=Opened(
                given=self.token_ids[num_before:begun],
                observation=last.observation,
                pictures=last.pictures,
                asked_s=asked_s,
                starts_over=last.starts_over,
                said_ids=self.token_ids[begun:],
                said_logprobs=self.logprobs[begun:],
                said_versions=split_spans(spans, last.num_given)[1],
            ),
        )

    def sampled(self, action: Generated, acted_s: float) -> EpisodeSoFar:
        """Returns the episode after an action; an action without a token makes no turn."""
        assert self.opened is not None, "somebody was asked"
        if not action.token_ids:
            return replace(self, opened=None)
        num_given = len(self.opened.given)
        first, *later = action.versions
        versions = extend_spans(self.versions, first.version, num_given + first.num_tokens)
        versions = join_spans(versions, later)
        turn = Turn(
            num_given=num_given,
            num_sampled=len(action.token_ids),
            observation=self.opened.observation,
            action=action.text,
            reward=None,
            asked_s=self.opened.asked_s,
            acted_s=acted_s,
            answered_s=None,
            starts_over=self.opened.starts_over,
            pictures=self.opened.pictures,
        )
        after = replace(
            self,
            turns=(*self.turns, turn),
            token_ids=(*self.token_ids, *self.opened.given, *action.token_ids),
            logprobs=(*self.logprobs, *(0.0,) * num_given, *action.logprobs),
            versions=versions,
            opened=None,
        )
        return replace(after, routes=after.routes_with(action.routes))

    def routes_with(self, latest: Routes | None) -> Routes | None:
        """The routes after an action: its own, which are of the prompt and all that was read since
        the history was last written anew; before that, those known so far, if they are."""
        num_path = len(self.path)
        begin = len(self.token_ids) - num_path
        if latest is None or not begin:
            return latest
        if self.routes is None:
            return None
        num_prompt = latest.num_tokens - num_path + 1  # the last token was not computed
        row = latest.width * latest.num_bytes
        before = self.routes.data[: (num_prompt + begin) * row]
        unused = bytes((num_prompt + begin) * row - len(before))  # a path's last token
        return replace(latest, data=before + unused + latest.data[num_prompt * row :])

    def answered(
        self,
        transition: Transition,
        observation: KeptObservation,
        answered_s: float,
        state: bytes = b"",
    ) -> EpisodeSoFar:
        """Returns the episode after an answer. observation: the answer's, with its pictures kept.
        state: the environment's, empty without one."""
        last = replace(
            self.turns[-1],
            reward=transition.reward,
            answered_s=answered_s,
            info=tuple(transition.info.items()),
        )
        taken = Snapshot(state=state, observation=observation) if state else None
        return replace(self, turns=(*self.turns[:-1], last), snapshot=taken)
