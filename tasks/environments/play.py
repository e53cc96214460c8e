"""One episode, played from its first observation to its end.

    reset ─▶ ┌ bridge ─▶ action (the engine) ─▶ answer (the environment) ┐ ─▶ Generated
             └──────────────── the next observation ◀────────────────────┘

An episode that was begun elsewhere is led to where it was: the environment's reset and the recorded
actions give the recorded observations, and if they do not, the episode begins again. Every token of
it keeps its log-probability and its version; an action that was stopped half-way goes on.
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
        self._reset_s = 0.0
        self._num_replayed = 0

    async def run(self) -> Generated:
        """The whole episode, or what there is of it when it is stopped."""
        try:
            end = await self._play()
        except EnvironmentFailed as failure:
            end = End(ending=failure.ending, detail=failure.detail)
        finally:
            self.is_asking = False
            await self._means.hosts.end(self._name)
        return self.generated(end)

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

    # --- the beginning -------------------------------------------------------------------------

    async def _begin(self) -> str:
        """Reset the environment and lead it to where the episode was left; what it says there."""
        observation = await self._reset()
        for turn in self.so_far.turns:
            if observation != turn.observation:
                return await self._begin_again()
            if turn.answered_s is None:
                break
            transition = await self._step(turn.action)
            self._num_replayed += 1
            if transition.terminated or transition.truncated:
                return await self._begin_again()
            observation = transition.observation
        self._begin_s = asyncio.get_running_loop().time()
        if self._is_half_said():
            self.so_far = self.so_far.reopened(self._means.clock())
        return observation

    async def _reset(self) -> str:
        began_s = self._means.clock()
        observation = await self._means.hosts.reset(
            self._name, self._means.settings, self.request.episode_seed
        )
        self._reset_s += self._means.clock() - began_s
        return observation

    async def _begin_again(self) -> str:
        """The environment does not repeat itself: what is kept is not what it would go on from."""
        logger.warning(
            "episode=%s begins again: after %d turns its environment %s says something else than"
            " before",
            self._name,
            self._num_replayed,
            self.request.environment,
        )
        self.so_far = EpisodeSoFar()
        await self._means.hosts.end(self._name)
        return await self._reset()

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
            kept_turns=(),
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
        self.so_far = self.so_far.answered(transition, self._means.clock())
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
        request, so_far, now_s = self.request, self.so_far, self._means.clock()
        episode = Episode(
            turns=so_far.turns,
            ending=end.ending,
            detail=end.detail,
            last_observation=end.last_observation,
            reset_s=self._reset_s,
            num_replayed=self._num_replayed,
        )
        return Generated(
            prompt_id=request.prompt_id,
            index=request.index,
            token_ids=so_far.token_ids,
            logprobs=so_far.logprobs,
            versions=so_far.versions,
            finish_reason=_reason(end.ending),
            text=self._means.bridge.text(so_far.token_ids),
            engine=self._means.engine,
            submitted_s=self._submitted_s,
            first_token_s=now_s if self._first_token_s is None else self._first_token_s,
            finished_s=now_s,
            attempt=request.attempt,
            episode=episode,
        )


def _reason(ending: Ending | None) -> FinishReason:
    if ending is None:
        return "aborted"
    return "length" if ending in BOUNDS else "stop"
