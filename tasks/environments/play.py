"""One episode, played from its first observation to its end.

    reset ─▶ ┌ bridge ─▶ action (the engine) ─▶ answer (the environment) ┐ ─▶ Generated
             └──────────────── the next observation ◀────────────────────┘

An episode that was begun elsewhere goes on from where it was. Its environment is restored from a
snapshot; where there is none, a new one is led there, whose reset and steps must say what is
recorded; and if they do not, the episode begins again. Every token of it keeps its log-probability
and its version; an action that was stopped half-way goes on.

After every answer of the environment the episode is written down, so that it outlives its engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from artifacts.episodes import Ending, Episode
from artifacts.records import FinishReason, Generated, Request
from tasks.environments.base import (
    EnvironmentFailed,
    EnvironmentHosts,
    EnvironmentSettings,
    Transition,
)
from tasks.environments.bridge import Bridge
from tasks.environments.episode import EpisodeSoFar
from tasks.environments.episode_config import EpisodeConfig
from tasks.scheduling.seeds import derive_seed

logger = logging.getLogger(__name__)

BOUNDS = (Ending.TRUNCATED, Ending.TURNS, Ending.TOKENS, Ending.TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the episodes of an environment are played with."""

    engine: str  # name of the replica
    ask: Callable[[Request], Awaitable[Generated]]  # has the engine speak in a turn
    settings: EnvironmentSettings  # of the environment
    hosts: EnvironmentHosts  # where it steps
    bridge: Bridge  # between the model's turns
    config: EpisodeConfig  # bounds
    # keeps an episode, of which so many turns have been kept before
    write: Callable[[Generated, int], None]
    clock: Callable[[], float]  # Unix seconds, or virtual ones under simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an episode ended."""

    ending: Ending | None  # None of one that was stopped
    detail: str = ""  # the reason in a few words
    last_observation: str = ""  # what the model never read


STOPPED = End(ending=None)


class Play:
    """One episode. `run` plays it; who has set `is_stopped` ends it, at the latest after the turn
    that the engine is in."""

    def __init__(self, request: Request, means: Means) -> None:
        self.request = request
        self.so_far = EpisodeSoFar.of(request)
        self.is_stopped = False
        self.is_asking = False  # whether the engine has it
        self._means = means
        self._name = request.response_id
        self._submitted_s = means.clock()
        self._begin_s = 0.0  # of its first turn here, on the event loop's clock
        self._first_token_s: float | None = None
        self._past = request.kept_episode or Episode(turns=(), ending=None)  # counts of it alone
        self._num_written = 0  # turns

    async def run(self) -> Generated:
        """The whole episode, or what there is of it when it is stopped."""
        if self._past.ending is not None:  # its engine was lost before it had handed it over
            return self.generated(_end_of(self._past))
        try:
            end = await self._play()
        except EnvironmentFailed as failure:
            end = End(ending=failure.ending, detail=failure.detail)
        finally:
            self.is_asking = False
            await self._means.hosts.end(self._name)
        generated = self.generated(end)
        if end.ending is not None and not end.ending.is_failure:
            self._means.write(generated, self._num_written)
        return generated

    async def _play(self) -> End:
        observation = await self._begin()
        while True:
            if not self.so_far.awaits_answer:
                if not self._open_turn(observation):
                    return End(ending=Ending.TOKENS, last_observation=observation)
                await self._act()
                if self.is_stopped:
                    return STOPPED
            transition = await self._answer()
            observation = transition.observation
            ending = self._ending(transition)
            if ending is not None:
                return End(ending=ending, last_observation=observation)
            self._write()

    # --- the beginning -------------------------------------------------------------------------

    async def _begin(self) -> str:
        """Bring an environment to where the episode was left; what it has said there."""
        snapshot = self.so_far.snapshot
        observation = await self._reset(snapshot.state if snapshot else b"")
        if observation is None:
            assert snapshot is not None, "nothing else restores an environment"
            observation = snapshot.observation
        else:
            observation = await self._replayed(observation)
        self._begin_s = asyncio.get_running_loop().time()
        if self.so_far.turns:
            self._past = replace(self._past, num_resumed=self._past.num_resumed + 1)
        if self._is_half_said():
            self.so_far = self.so_far.reopened(self._means.clock())
        return observation

    async def _reset(self, state: bytes = b"") -> str | None:
        """The first observation of an environment; None if it goes on from this state instead."""
        began_s = self._means.clock()
        observation = await self._means.hosts.reset(
            self._name, self._means.settings, self.request.episode_seed, state
        )
        took_s = self._means.clock() - began_s
        self._past = replace(self._past, reset_s=self._past.reset_s + took_s)
        return observation

    async def _replayed(self, observation: str) -> str:
        """Lead an environment, which begins with this, through the recorded actions."""
        for turn in self.so_far.turns:
            if observation != turn.observation:
                return await self._begin_again()
            if turn.answered_s is None:
                break
            transition = await self._step(turn.action)
            self._past = replace(self._past, num_replayed=self._past.num_replayed + 1)
            if transition.terminated or transition.truncated:
                return await self._begin_again()
            observation = transition.observation
        return observation

    async def _begin_again(self) -> str:
        """The environment does not repeat itself: what is kept is not what it would go on from."""
        logger.warning(
            "episode=%s begins again: its environment %s does not repeat itself",
            self._name,
            self.request.environment,
        )
        self._past = replace(
            self._past,
            num_restarted=self._past.num_restarted + 1,
            num_forgotten=self._past.num_forgotten + self.so_far.num_sampled,
        )
        self.so_far = EpisodeSoFar()
        await self._means.hosts.end(self._name)
        observation = await self._reset()
        assert observation is not None, "no state is given"
        return observation

    def _is_half_said(self) -> bool:
        """Whether the last action was stopped before it ended or came to its bound."""
        if not self.so_far.awaits_answer:
            return False
        last, tokens = self.so_far.turns[-1], self.so_far.token_ids
        is_ended = tokens[-1] in self._means.bridge.stop_ids
        return not is_ended and last.num_sampled < self._room(len(tokens) - last.num_sampled)

    # --- a turn --------------------------------------------------------------------------------

    def _open_turn(self, observation: str) -> bool:
        """Whether there is room for an action after this observation. Raises EnvironmentFailed when
        there was none from the beginning: of such an episode there is nothing to judge."""
        if self.so_far.opened is not None:  # begun elsewhere
            return True
        tokens, path, said = self.so_far.token_ids, self.so_far.path, self.so_far.said
        given, starts_over = self._means.bridge.given(path, said, observation)
        if self._room(len(tokens) + len(given)) < 1:
            if tokens:
                return False
            raise EnvironmentFailed(
                Ending.CRASHED,
                f"the first observation has {len(given)} tokens with what stands around it, and"
                f" leaves no room for an action in {self.request.max_new_tokens}",
            )
        self.so_far = self.so_far.given(given, observation, self._means.clock(), starts_over)
        return True

    def _room(self, num_tokens: int) -> int:
        """Tokens that an action may have after so many of the episode."""
        return min(self._means.config.max_turn_tokens, self.request.max_new_tokens - num_tokens)

    async def _act(self) -> None:
        """Have the engine speak."""
        opened = self.so_far.opened
        assert opened is not None, "a turn is opened"
        num_restarts = self.so_far.num_restarts
        asked = replace(
            self.request,
            prompt_tokens=(*self.request.prompt_tokens, *self.so_far.read),
            max_new_tokens=self._room(len(self.so_far.token_ids) + len(opened.given)),
            # noise is a function of seed and position, and positions come back on another path
            seed=derive_seed(self.request.seed, "path", num_restarts)
            if num_restarts
            else self.request.seed,
            kept_tokens=opened.said.token_ids,
            kept_logprobs=opened.said.logprobs,
            kept_versions=opened.said.versions,
            environment="",
            episode_seed=0,
            kept_episode=None,
        )
        self.is_asking = True
        action = await self._means.ask(asked)
        self.is_asking = False
        if self._first_token_s is None and action.token_ids:
            self._first_token_s = action.first_token_s
        self.so_far = self.so_far.sampled(action, self._means.clock())
        self.is_stopped = self.is_stopped or action.finish_reason == "aborted"

    async def _answer(self) -> Transition:
        """Have the environment answer the last action."""
        transition = await self._step(self.so_far.turns[-1].action)
        state = self._means.hosts.snapshot(self._name)
        self.so_far = self.so_far.answered(transition, self._means.clock(), state)
        return transition

    async def _step(self, action: str) -> Transition:
        return await self._means.hosts.step(self._name, action)

    def _ending(self, transition: Transition) -> Ending | None:
        """Whether the episode is over after this, and how it ended."""
        if transition.terminated:
            return Ending.TERMINATED
        if transition.truncated:
            return Ending.TRUNCATED
        if len(self.so_far.turns) >= self._means.settings.max_turns:
            return Ending.TURNS
        passed_s = asyncio.get_running_loop().time() - self._begin_s
        return Ending.TIME if passed_s > self._means.config.episode_s else None

    # --- the record ----------------------------------------------------------------------------

    def generated(self, end: End = STOPPED) -> Generated:
        """The episode as far as it has come, which is over now."""
        return replace(self._as_it_is(end), text=self._means.bridge.text(self.so_far.token_ids))

    def _write(self) -> None:
        """Keep it as far as it has come."""
        self._means.write(self._as_it_is(STOPPED), self._num_written)
        self._num_written = len(self.so_far.turns)

    def _as_it_is(self, end: End) -> Generated:
        """Its record, but for the text."""
        request, so_far, now_s = self.request, self.so_far, self._means.clock()
        episode = replace(
            self._past,
            turns=so_far.turns,
            ending=end.ending,
            detail=end.detail,
            last_observation=end.last_observation,
            snapshot=so_far.snapshot if end.ending is None else None,
        )
        return Generated(
            prompt_id=request.prompt_id,
            index=request.index,
            token_ids=so_far.token_ids,
            logprobs=so_far.logprobs,
            versions=so_far.versions,
            finish_reason=_reason(end.ending),
            text="",
            engine=self._means.engine,
            submitted_s=self._submitted_s,
            first_token_s=now_s if self._first_token_s is None else self._first_token_s,
            finished_s=now_s,
            attempt=request.attempt,
            episode=episode,
        )


def _end_of(episode: Episode) -> End:
    return End(
        ending=episode.ending,
        detail=episode.detail,
        last_observation=episode.last_observation,
    )


def _reason(ending: Ending | None) -> FinishReason:
    if ending is None:
        return "aborted"
    return "length" if ending in BOUNDS else "stop"
