"""One episode, played from its first observation to its end.

    reset ─▶ ┌ bridge ─▶ action (the engine) ─▶ answer (the environment) ┐ ─▶ Generated
             └──────────────── the next observation ◀────────────────────┘

An episode that was begun elsewhere, or whose environment was lost with its worker, goes on from
where it was, by a snapshot of the environment or by the recorded actions; where the environment
does not repeat them, it begins again. Every token keeps its log-probability and its version; an
action that was stopped half-way goes on. After every answer of the environment the episode is
written down, so that it outlives its engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from artifacts.episodes import Ending, Episode, KeptObservation
from artifacts.records import Generated, Request, ShownPicture
from tasks.environments.base import (
    Crashed,
    EnvironmentFailed,
    EnvironmentLost,
    EnvironmentProcesses,
    EnvironmentSettings,
    Transition,
)
from tasks.environments.config import EpisodeConfig
from tasks.environments.episodes.bridge import Bridge
from tasks.environments.episodes.episode import STOPPED, End, EpisodeSoFar, Opened
from tasks.environments.tools.programs import ProgramRunner
from tasks.environments.transition import pictures_in
from tasks.scheduling.prompt_stream import derive_seed

logger = logging.getLogger(__name__)

Keep = Callable[[bytes], Awaitable[ShownPicture]]  # raises ValueError for a file that is none
MAX_LOST = 3  # environments that an episode may lose with their workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The parts that all episodes of one environment share."""

    engine: str  # name of the replica
    ask: Callable[[Request], Awaitable[Generated]]  # has the engine speak in a turn
    settings: EnvironmentSettings  # of the environment
    processes: EnvironmentProcesses  # where it steps
    programs: ProgramRunner  # of those that actions ask to run
    bridge: Bridge  # between the model's turns
    # keeps a picture that an environment shows; None for a model of text alone
    keep: Keep | None
    config: EpisodeConfig  # bounds
    # keeps an episode, of which so many turns have been kept before
    write: Callable[[Generated, int], None]
    clock: Callable[[], float]  # Unix seconds, or virtual ones under simulation


class Play:
    """One episode, which `run` plays; `is_stopped` ends it after a turn that is being generated."""

    def __init__(self, request: Request, means: Means) -> None:
        self.request = request
        self.so_far = EpisodeSoFar.of(request)
        self.is_stopped = False
        self.is_asking = False  # whether the engine has it
        self._means = means
        self._name = request.response_id
        self._submitted_s = means.clock()
        self._begin_s: float | None = None  # of its first turn here, on the event loop's clock
        self._first_token_s: float | None = None
        # what is counted of the episode from its first reset on; its turns are not kept here
        self._counted = request.kept_episode or Episode(turns=(), ending=None)
        self._num_written = 0  # turns

    async def run(self) -> Generated:
        """Play the episode; returns all of it, or the turns so far if it is stopped."""
        kept = self.request.kept_episode
        if kept is not None and kept.ending is not None:
            # its engine was lost before it had handed it over
            return self.generated(
                End(
                    ending=kept.ending,
                    detail=kept.detail,
                    last_observation=kept.last_observation,
                )
            )
        try:
            end = await self._play()
        except EnvironmentFailed as failure:
            end = End(ending=failure.ending, detail=failure.detail)
        finally:
            self.is_asking = False
            await self._means.processes.end(self._name)
        generated = self.generated(end)
        if end.ending is not None and not end.ending.is_failure:
            self._means.write(generated, self._num_written)
        return generated

    async def _play(self) -> End:
        """Play to the end, again from where the episode is when its environment is lost."""
        num_lost = 0
        while True:
            try:
                return await self._play_on(await self._begin())
            except EnvironmentLost as lost:
                num_lost += 1
                logger.warning(
                    "episode=%s loses its worker of environments for the %d. time: %s",
                    self._name,
                    num_lost,
                    lost,
                )
                if num_lost > MAX_LOST:
                    raise Crashed(
                        f"its workers of environments were lost {num_lost} times, at last: {lost}",
                    ) from lost

    async def _play_on(self, observation: KeptObservation) -> End:
        while True:
            if not self.so_far.awaits_answer:
                if not self._open_turn(observation):
                    return End(ending=Ending.TOKENS, last_observation=observation.text)
                await self._act()
                if self.is_stopped:
                    return STOPPED
            transition = await self._step(self.so_far.turns[-1].action)
            state = self._means.processes.snapshot(self._name)
            observation = await self._kept(transition.observation)
            self.so_far = self.so_far.answered(transition, observation, self._means.clock(), state)
            ending = self._ending(transition)
            if ending is not None:
                return End(ending=ending, last_observation=observation.text)
            self._means.write(self._record(STOPPED), self._num_written)
            self._num_written = len(self.so_far.turns)

    # --- the beginning -------------------------------------------------------------------------

    async def _begin(self) -> KeptObservation:
        """Bring an environment to where the episode is; returns the observation there."""
        observation = await self._resume()
        if observation is None:
            logger.warning(
                "episode=%s begins again: its environment %s does not repeat itself",
                self._name,
                self.request.environment,
            )
            self._counted = replace(
                self._counted,
                num_restarted=self._counted.num_restarted + 1,
                num_forgotten=self._counted.num_forgotten + self.so_far.num_sampled,
            )
            self.so_far, self._num_written = EpisodeSoFar(), 0
            observation = await self._resume()
            assert observation is not None, "there is nothing to repeat"
        if self._begin_s is None:
            self._begin_s = asyncio.get_running_loop().time()
        if self.so_far.awaits_answer:
            last, tokens = self.so_far.turns[-1], self.so_far.token_ids
            is_ended = tokens[-1] in self._means.bridge.stop_ids
            if not is_ended and last.num_sampled < self._room(len(tokens) - last.num_sampled):
                self.so_far = self.so_far.reopened(self._means.clock())  # it was stopped half-way
        return observation

    async def _resume(self) -> KeptObservation | None:
        """Bring an environment there; None, without one, if it does not repeat the record."""
        means, snapshot = self._means, self.so_far.snapshot
        began_s = means.clock()
        first = await means.processes.reset(
            self._name,
            means.settings,
            self.request.episode_seed,
            snapshot.state if snapshot else b"",
        )
        took_s = means.clock() - began_s
        self._counted = replace(self._counted, reset_s=self._counted.reset_s + took_s)
        if first is None:
            assert snapshot is not None, "nothing else restores an environment"
            observation: KeptObservation | None = snapshot.observation
        else:
            observation = await self._replayed(await self._kept(first))
        if observation is None:
            await means.processes.end(self._name)
        elif self.so_far.turns:
            self._counted = replace(self._counted, num_resumed=self._counted.num_resumed + 1)
        return observation

    async def _replayed(self, observation: KeptObservation) -> KeptObservation | None:
        """Repeat the recorded actions; returns the last observation, None if one differs."""
        for turn, (seen, _) in zip(self.so_far.turns, self.so_far.said, strict=True):
            if observation != seen:
                return None
            if turn.answered_s is None:
                break
            transition = await self._step(turn.action)
            self._counted = replace(self._counted, num_replayed=self._counted.num_replayed + 1)
            is_over = transition.terminated or transition.truncated
            if is_over or transition.reward != turn.reward:
                return None
            observation = await self._kept(transition.observation)
        return observation

    async def _kept(self, observation: str) -> KeptObservation:
        """Keep the pictures of an observation. Raises Crashed for a file that is none, and
        ValueError where the model sees none."""
        shown, keep = pictures_in(observation), self._means.keep
        if not shown:
            return KeptObservation(text=observation)
        if keep is None:
            raise ValueError(
                "an environment that shows pictures needs a model with a vision tower,"
                f" {self.request.environment} shows {len(shown)}; choose one of docs/models.md"
            )
        try:
            kept = [await keep(data) for data in shown]
        except ValueError as error:
            raise Crashed(str(error)) from error
        return KeptObservation(text=str(observation), pictures=tuple(kept))

    # --- a turn --------------------------------------------------------------------------------

    async def _step(self, action: str) -> Transition:
        transition = await self._means.processes.step(self._name, action)
        return await self._means.programs.observe(self._means.settings, action, transition)

    def _open_turn(self, observation: KeptObservation) -> bool:
        """Open a turn; false if there is no room for an action. Raises EnvironmentFailed if there
        never was: such an episode has nothing to judge."""
        if self.so_far.opened is not None:  # begun elsewhere
            return True
        tokens, path, said = self.so_far.token_ids, self.so_far.path, self.so_far.said
        given, pictures, starts_over = self._means.bridge.given(path, said, observation)
        if self._room(len(tokens) + len(given)) < 1:
            if tokens:
                return False
            raise Crashed(
                f"the first observation has {len(given)} tokens with what stands around it, and"
                f" leaves no room for an action in {self.request.max_new_tokens}",
            )
        opened = Opened(
            given=given,
            observation=observation.text,
            pictures=pictures,
            asked_s=self._means.clock(),
            starts_over=starts_over,
        )
        self.so_far = replace(self.so_far, opened=opened)
        return True

    def _room(self, num_tokens: int) -> int:
        """Returns the most tokens of an action after num_tokens of the episode."""
        return min(self._means.config.max_turn_tokens, self.request.max_new_tokens - num_tokens)

    async def _act(self) -> None:
        opened = self.so_far.opened
        assert opened is not None, "a turn is opened"
        path, seen = self.so_far.path, self.so_far.path_pictures
        if opened.starts_over:
            path, seen = (), ()
        begin = len(self.request.prompt_tokens)
        shown = [each.moved(begin) for each in seen]
        shown += [each.moved(begin + len(path)) for each in opened.pictures]
        num_restarts = sum(turn.starts_over for turn in self.so_far.turns) + opened.starts_over
        asked = replace(
            self.request,
            prompt_tokens=(*self.request.prompt_tokens, *path, *opened.given),
            max_new_tokens=self._room(len(self.so_far.token_ids) + len(opened.given)),
            # noise is a function of seed and position, and positions come back on another path
            seed=derive_seed(self.request.seed, "path", num_restarts)
            if num_restarts
            else self.request.seed,
            kept_tokens=opened.said_ids,
            kept_logprobs=opened.said_logprobs,
            kept_versions=opened.said_versions,
            pictures=(*self.request.pictures, *shown),
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

    def _ending(self, transition: Transition) -> Ending | None:
        if transition.terminated:
            return Ending.TERMINATED
        if transition.truncated:
            return Ending.TRUNCATED
        if len(self.so_far.turns) >= self._means.settings.max_turns:
            return Ending.TURNS
        assert self._begin_s is not None, "a turn was taken"
        passed_s = asyncio.get_running_loop().time() - self._begin_s
        return Ending.TIME if passed_s > self._means.config.episode_s else None

    # --- the record ----------------------------------------------------------------------------

    def generated(self, end: End = STOPPED) -> Generated:
        """Returns the record of the episode so far, with its text. end: how the episode ended."""
        return replace(self._record(end), text=self._means.bridge.decode(self.so_far.token_ids))

    def _record(self, end: End) -> Generated:
        request, so_far, now_s = self.request, self.so_far, self._means.clock()
        episode = replace(
            self._counted,
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
            finish_reason=end.finish_reason,
            text="",
            engine=self._means.engine,
            submitted_s=self._submitted_s,
            first_token_s=now_s if self._first_token_s is None else self._first_token_s,
            finished_s=now_s,
            attempt=request.attempt,
            episode=episode,
            routes=so_far.routes,
        )
