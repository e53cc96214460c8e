"""The inputs and the result of a round, and the driver's interfaces to the reward stage and to the
training of other steps."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from artifacts.new_tokens import NewTokens
from artifacts.prompt_ids import question_of
from artifacts.records import (
    Generated,
    Group,
    Prompt,
    Request,
    Response,
    Score,
    VersionSpan,
    response_id,
    sampled_versions,
)
from tasks.engines.base import Engine, SamplingConfig
from tasks.rounds.elastic_engines import ElasticWorkers
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.prompt_stream import derive_seed
from tasks.scheduling.queue_state import RoundEnd
from tasks.scheduling.stream_training import (
    FreesDevices,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)


class ScoreFeed(Protocol):
    """The driver's interface to the reward stage."""

    async def publish(self, generated: Sequence[Generated]) -> None:
        """Hand finished responses over for scoring."""
        ...

    async def scored(self, wait_s: float) -> list[Score]:
        """Return the verdicts since the last call; waits up to wait_s for the first."""
        ...


class Publications(Protocol):
    """The driver's interface to the training of earlier steps."""

    async def published(self, wait_s: float) -> list[int]:
        """Return the weight versions that have reached every engine since the last call; waits up
        to wait_s for the first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A response that a round left running on its engine, for the next round to adopt."""

    engine: str  # name of the replica
    prompt_id: str  # the prompt's id
    index: int  # which response of the prompt
    attempt: int  # the attempt that requested it
    num_kept: int  # sampled tokens that the response had when it was sent to the engine
    oldest_version: int = 0  # of the weights that may go on with it

    @property
    def response_id(self) -> str:
        return response_id(self.prompt_id, self.index)


async def _nothing_begun() -> Mapping[str, Generated]:
    return {}


async def _ignore(decision: ScaleDown) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInputs:
    """Everything that the driver needs to play a round."""

    plan: RoundPlan  # the prompts to launch, and the groups to accept
    versions: range  # weight versions whose tokens may be trained; of a synchronous round just one
    prompts: Mapping[str, Prompt]  # the plan's prompts, by id
    scheduler: RoundScheduler  # decides; fresh, for it remembers the round
    engines: Sequence[Engine]  # the replicas; nothing but adopted responses runs on them
    feed: ScoreFeed  # the reward stage
    sampling: SamplingConfig  # how responses are drawn
    # responses of an earlier attempt or round: whole ones stand in for their launches, partial ones
    # are continued
    recorded: Sequence[Response]
    seed: int  # the run's; every request derives its own from it
    deadline_s: float  # how long there may be no token, no response and no verdict
    on_finished: Callable[[Sequence[Generated]], None]  # called with whole responses
    on_accept: Callable[[Group], Awaitable[None]]  # takes accepted groups, in training order
    # decides which devices stop generating in mid-round; fresh, too
    stream_trainer: FreesDevices = field(
        default_factory=lambda: StreamTrainer(StreamTrainerConfig(), groups=(), accept_prompts=0)
    )
    # called with each decision of the stream trainer once the engines are empty
    on_freed: Callable[[ScaleDown], Awaitable[None]] = _ignore
    # how long there may be no engine at all, where elastic workers may come
    empty_s: float = math.inf
    attempt: int = 0  # unlike that of any other attempt or round of the run; requests carry it
    adopted: Sequence[InFlight] = ()  # responses that the round before left running
    leaves_running: bool = False  # whether carried responses may run on after the round
    publications: Publications | None = None  # of a round that overlaps the training of others
    elastic_workers: ElasticWorkers | None = None  # of a round that engines may join while it runs
    # how a round with elastic workers distributes its responses
    balancing: BalancingConfig = field(default_factory=BalancingConfig)
    # reads the recorded parts of responses that this or an earlier attempt began, by response id
    begun: Callable[[], Awaitable[Mapping[str, Generated]]] = _nothing_begun
    report_tokens: int = 0  # steps between two reports of an engine; 0 without reports
    # records the tokens of running responses that engines report, for `begun`
    on_new_tokens: Callable[[Sequence[NewTokens]], None] = lambda new_tokens: None

    @property
    def max_running(self) -> int | None:
        """Requests that each engine runs at a time; None for any number."""
        limit = self.balancing.max_running if self.elastic_workers is not None else 0
        return limit or None

    def goes_on_with(self, found: Generated) -> bool:
        """True if the round may launch this response's prompt and train its tokens."""
        return found.prompt_id in self.prompts and self.allows(found)

    def allows(self, generated: Generated) -> bool:
        """True if all sampled tokens of a response are of versions that the round may train."""
        return self.allows_versions(sampled_versions(generated))

    def allows_versions(self, spans: Sequence[VersionSpan]) -> bool:
        """True if tokens of these weight versions may be trained."""
        return all(span.version in self.versions for span in spans)

    def may_use(self, version: int) -> bool:
        """True if the round can use an elastic worker with this weight version. A round that
        overlaps training can use an older version, too: the worker will pull newer weights."""
        may_lag = self.publications is not None and version < self.versions.start
        return version in self.versions or may_lag

    def request(self, prompt_id: str, index: int) -> Request:
        """The request for a response of this round."""
        prompt = self.prompts[prompt_id]
        is_episode = prompt.episode_seed is not None
        return Request(
            prompt_id=prompt_id,
            index=index,
            prompt_tokens=prompt.token_ids,
            max_new_tokens=self.sampling.max_response_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            # without the step: a deferred prompt draws as it did before; without the adapter: each
            # of a sweep draws as it would in a run of its own
            seed=derive_seed(self.seed, question_of(prompt_id), index),
            attempt=self.attempt,
            environment=prompt.domain if is_episode else "",
            episode_seed=prompt.episode_seed or 0,
            pictures=prompt.pictures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRound(RoundEnd):
    """The end of a round, and what happened on its engines."""

    late: Sequence[str] = ()  # of the deferred and dropped prompts, those that came too late
    freed: Sequence[str] = ()  # learners whose devices were freed in mid-round, in this order
    # responses of carried prompts that run on; empty in a report that is read back: they may be
    # lost
    in_flight: tuple[InFlight, ...] = ()
    awaited_weights_s: float = 0.0  # seconds in which engines idled for newer weights
    num_interrupted: int = 0  # responses that ran on an engine when it was lost
    interrupted: Sequence[str] = ()  # names of these engines
    # the most tokens that each of these responses lost; empty where engines report no tokens
    lost_tokens_bounds: Sequence[int] = ()
    # devices of every engine that joined the round, by its name
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult(PlayedRound):
    """The result of a round. `generated`, `carried_responses` and `stale_tokens` together have
    every sampled token once."""

    groups: tuple[Group, ...]  # accepted, in acceptance order
    generated: tuple[Generated, ...]  # every response, aborted ones included
    # partial responses that moved to another engine; their tokens are in `generated`, too
    migrated: tuple[Generated, ...]
    scores: tuple[Score, ...]  # every verdict that came in time
    stale_tokens: int = 0  # of responses that another attempt asked for, or of weights not allowed
    freed_s: tuple[float, ...] = ()  # when each learner was freed, seconds of the round
    took_s: float = 0.0  # seconds of the round, until none of its responses ran
    # of carried prompts: whole responses for the next round to count, and stopped ones that it goes
    # on with
    carried_responses: tuple[Response, ...] = ()
