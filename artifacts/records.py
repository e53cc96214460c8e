"""The records that travel through a step: prompt -> generated response -> score -> group.

They cross process borders as the bytes of `pack` (a bare list of ints costs Dask 60 ms a thousand).
Times are Unix seconds of the machine that measured them (virtual seconds under simulation).

The model samples only some tokens of an episode. The other tokens were given to the model, and
enter no loss and no count (invariant 14, docs/architecture.md):

    tokens      bridge, observation | action | bridge, observation | action
    sampled                           ^^^^^^                         ^^^^^^
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, chain, groupby
from typing import Any, Literal, TypeVar

from artifacts.episodes import Episode
from artifacts.prompt_ids import adapter_of
from artifacts.quickly_packed import quickly_packed
from artifacts.shown_pictures import ShownPicture as ShownPicture

FinishReason = Literal["stop", "length", "aborted"]


class Outcome(StrEnum):
    """The typed result of a response. Only OK, WRONG, TIMEOUT, TRUNCATED and VIOLATION carry a
    reward."""

    OK = "ok"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"
    VIOLATION = "violation"
    INFRA = "infra"
    ABORTED = "aborted"


class Running(StrEnum):
    """What an engine does with its running responses when it loads newer weights
    (`BECOMES_OF_RUNNING`)."""

    DROP = "drop"
    INTERRUPT = "interrupt"
    DRAIN = "drain"
    KEEP = "keep"


BECOMES_OF_RUNNING = {  # the running responses ...
    Running.DROP: "are given up, with what nobody has collected: nobody waits for them",
    Running.INTERRUPT: "go on from their tokens, whose KV cache is computed again",
    Running.DRAIN: "are finished first; none begins meanwhile, and none is of two versions",
    Running.KEEP: "go on over the KV cache of the older weights, which no new response shares",
}


class Fate(StrEnum):
    """What became of generated tokens: the columns of the token ledger."""

    TRAINED = "trained"  # in a group that was trained
    ABORTED = "aborted"  # in a response stopped half-way
    DISCARDED = "discarded"  # in a finished response that no group took
    FILTERED = "filtered"  # in a complete group that was not worth training on
    # of another attempt at the round, of weights that the round does not allow, or of an episode
    # that had to begin again
    STALE = "stale"
    EVALUATED = "evaluated"  # in an answer to a held-out prompt
    JUDGED = "judged"  # written by a judge model


# the column of the token ledger beside the fates: tokens that a round counted as trained, in a step
# that made no update
NO_UPDATE = "no_update"


class CaseVerdict(StrEnum):
    """The result of one test case of a program."""

    PASS = "pass"
    WRONG = "wrong"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"
    OUTPUT = "output"
    FORGED = "forged"
    SABOTAGE = "sabotage"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of executing one test case of a program."""

    key: str  # which test case: equal in all responses to a question, and in all runs
    verdict: CaseVerdict  # how it ended
    wall_s: float  # seconds it took
    limit_s: float  # seconds it had


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question, already tokenised."""

    # "<epoch>/<row>", and "@<adapter>" in a run of several: unique, never derived from the text
    prompt_id: str
    domain: str  # reward domain and quota key, for example "add" or "letters"
    token_ids: tuple[int, ...]  # the rendered chat prompt
    gold: str  # what the reward compares with; its format belongs to the reward
    text: str  # the question as a person would read it: all turns of a conversation
    episode_seed: int | None = None  # of the environment's reset; None for a question of one turn
    pictures: tuple[ShownPicture, ...] = ()  # in the order of their tokens

    @property
    def adapter(self) -> str:
        """The adapter that answers; empty in a run of one, or of none."""
        return adapter_of(self.prompt_id)

    @property
    def identity(self) -> str:
        """A text that is the same for equal questions about equal pictures."""
        return "\n".join((self.text, *(picture.content for picture in self.pictures)))


@quickly_packed
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to generate one response: the prompt's tokens and, if the response was migrated or
    resumed, the tokens that it already has."""

    prompt_id: str  # the prompt's id
    index: int  # which response of the prompt, from 0
    prompt_tokens: tuple[int, ...]  # token ids of the prompt
    max_new_tokens: int  # bound on generated tokens, the kept ones included
    temperature: float  # sampling temperature; 0 is greedy
    top_p: float  # nucleus bound
    seed: int  # derived from the run's; with the position it says the noise of a token
    kept_tokens: tuple[int, ...] = ()  # tokens generated elsewhere before this submission
    kept_logprobs: tuple[float, ...] = ()  # their behaviour log-probabilities
    kept_versions: tuple[VersionSpan, ...] = ()  # the weight versions that sampled them
    attempt: int = 0  # which attempt at which round asks; its response says the same
    oldest_version: int = 0  # of the weights that may generate it
    environment: str = ""  # the domain whose environment answers; empty for a single turn
    episode_seed: int = 0  # of the environment's reset
    kept_episode: Episode | None = None  # what the kept tokens of an episode consist of
    pictures: tuple[ShownPicture, ...] = ()  # in the prompt

    @property
    def response_id(self) -> str:
        return response_id(self.prompt_id, self.index)

    @property
    def adapter(self) -> str:
        """The adapter to generate with; empty in a run of one, or of none."""
        return adapter_of(self.prompt_id)

    @property
    def num_kept(self) -> int:
        """Tokens that the model had sampled before this submission."""
        if self.kept_episode is None:
            return len(self.kept_tokens)
        return self.kept_episode.num_sampled + self.kept_episode.num_forgotten


@quickly_packed
@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """A run of consecutive tokens sampled by one weight version."""

    version: int  # weight version
    num_tokens: int  # tokens it sampled


@quickly_packed
@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The experts that a mixture's routers chose for the tokens of a prompt and its response, as
    the engine that ended the response computed them."""

    width: int  # expert numbers of a token: routed layers, in their order, times experts of each
    num_bytes: int  # of a number: 1 up to 256 experts, else 2
    data: bytes  # (tokens, layers, experts), from the prompt's first token to the last one computed

    @property
    def num_tokens(self) -> int:
        return len(self.data) // (self.width * self.num_bytes)


@quickly_packed
@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """An engine's response to a request: finished, or partial when it was aborted."""

    prompt_id: str  # the prompt's id
    index: int  # which response of the prompt
    # all tokens after the prompt: what was sampled, the end-of-sequence token included, and of an
    # episode what was given between
    token_ids: tuple[int, ...]
    # behaviour log-probability of each of them, as the engine sampled; 0 of given ones
    logprobs: tuple[float, ...]
    # which version sampled which tokens; the counts sum to len(token_ids), and given tokens count
    # with what was sampled after them
    versions: tuple[VersionSpan, ...]
    # "stop" at an end token, "length" at the bound, "aborted" on request
    finish_reason: FinishReason
    text: str  # the decoded tokens without special tokens
    engine: str  # name of the replica
    submitted_s: float  # when the engine took the request
    first_token_s: float  # when its first token came
    finished_s: float  # when its last token came
    attempt: int = 0  # the attempt that asked for it, as the request had it
    episode: Episode | None = None  # its turns; None for a response of a single one
    routes: Routes | None = None  # None of a model without experts, or where nobody recorded them

    @property
    def response_id(self) -> str:
        return response_id(self.prompt_id, self.index)

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the model sampled; only these enter counts and losses."""
        if self.episode is None:
            return len(self.token_ids)
        return self.episode.num_sampled

    @property
    def num_forgotten(self) -> int:
        """Number of sampled tokens that the response lost when its episode began again."""
        return self.episode.num_forgotten if self.episode is not None else 0

    @property
    def sampled(self) -> tuple[range, ...]:
        """Positions of the sampled tokens in `token_ids`: one range per turn, empty for a turn
        without sampled tokens."""
        if self.episode is None:
            return (range(len(self.token_ids)),)
        found: list[range] = []
        end = 0
        for turn in self.episode.turns:
            begin = end + turn.num_given
            end = begin + turn.num_sampled
            found.append(range(begin, end))
        return tuple(found)

    @property
    def pictures(self) -> tuple[ShownPicture, ...]:
        """The pictures that environments showed, by their places in `token_ids`."""
        turns = self.episode.turns if self.episode else ()
        begins = accumulate((turn.num_tokens for turn in turns), initial=0)
        placed = zip(begins, turns, strict=False)
        return tuple(each.moved(begin) for begin, turn in placed for each in turn.pictures)

    @property
    def restarts(self) -> tuple[int, ...]:
        """Positions in `token_ids` at which the context starts over: the chat template rewrote the
        history, so from there the model reads the prompt and only the tokens from that position."""
        turns = self.episode.turns if self.episode else ()
        begins = accumulate((turn.num_tokens for turn in turns), initial=0)
        return tuple(begin for begin, turn in zip(begins, turns, strict=False) if turn.starts_over)


@quickly_packed
@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A response's reward with its outcome; `reward` is None exactly when no verdict could be
    reached (Outcome.INFRA)."""

    prompt_id: str  # the prompt's id
    index: int  # which response of the prompt
    reward: float | None  # the verdict, or None for infra
    outcome: Outcome  # typed result
    detail: str  # reason in a few words, for example "no_answer" or "verify_timeout"
    scorer: str  # which reward decided
    started_s: float  # when scoring began
    finished_s: float  # when the verdict was there
    cases: tuple[CaseResult, ...] = ()  # the test cases, where a program was executed


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A generated response with its score (None while it waits for one)."""

    generated: Generated
    score: Score | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A prompt with its R0 scored responses that are trained: the unit of acceptance and of
    advantage."""

    prompt: Prompt
    responses: tuple[Response, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRef:
    """A reference to the file of a weight version."""

    version: int  # produced by the step of the same number; 0 is the model the run started from
    path: str  # a safetensors file, bf16, tied weights once
    digest: str  # blake2b over names, shapes and fingerprints of the tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval of work on one device; the Gantt chart and the bubble ledger are made of
    these."""

    device: str  # device name, for example "cpu:0"
    actor: str  # who worked, for example "engine-0"
    kind: str  # "rollout", "reward", "train", "update", "publish", "gate", "evaluate"
    start_s: float  # Unix seconds
    end_s: float  # Unix seconds


def response_id(prompt_id: str, index: int) -> str:
    """The id of a response: "<prompt id>:<index>"."""
    return f"{prompt_id}:{index}"


def prompt_of(response_id: str) -> str:
    """The prompt's id within a response's id."""
    return response_id.rpartition(":")[0]


def pack(records: Any) -> bytes:  # Any: whatever records of this module, alone or in tuples
    """Pickle records for another process that runs the same version of this code."""
    return pickle.dumps(records, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(payload: bytes) -> Any:  # Any: what `pack` was given
    """The inverse of `pack`. Call it only on bytes from the run's own workers: it unpickles."""
    return pickle.loads(payload)


Value = TypeVar("Value")


def of_sampled(generated: Generated, values: Sequence[Value]) -> tuple[Value, ...]:
    """Select the values of the sampled tokens from `values`, which has one value per token."""
    parts = (values[places.start : places.stop] for places in generated.sampled)
    return tuple(chain.from_iterable(parts))


def sampled_versions(generated: Generated) -> tuple[VersionSpan, ...]:
    """The version spans of the sampled tokens alone. Adjacent tokens of one version are one span,
    and the spans' counts sum to `num_sampled`."""
    if generated.episode is None:
        return generated.versions
    by_token = [span.version for span in generated.versions for _ in range(span.num_tokens)]
    runs = groupby(of_sampled(generated, by_token))
    return tuple(VersionSpan(version=version, num_tokens=len([*run])) for version, run in runs)


def num_computed(generated: Generated) -> int:
    """Number of tokens that a learner's layers must process to predict every sampled token: all
    tokens up to the last sampled one, given tokens included."""
    return max((places.stop for places in generated.sampled if places), default=0)
