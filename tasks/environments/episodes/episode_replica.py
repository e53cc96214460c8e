"""An engine that plays episodes: a Replica around a Replica.

    submit ─▶ request with an environment ─▶ a `Play` each ─▶ `TurnBatcher` ─▶ inner replica
           └▶ any other ─────────────────────────────────────────▶ inner replica
    collect ◀─ whole episodes, stopped ones, and what the inner replica has for others

The inner engine sees turns, each a request by itself, so that an episode holds no slot of the inner
engine while its environment computes. At new weights DROP ends every episode with its environment;
INTERRUPT and KEEP let turns and episodes go on; DRAIN finishes the running turns, not the episodes:
their later turns are sampled by the new version.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from artifacts.attempt_log import TurnLog
from artifacts.new_tokens import News
from artifacts.records import Generated, Request, Running, WeightsRef
from tasks.engines.base import Attestation, EngineLost, EngineStats, Replica, check_room
from tasks.engines.mailbox import Mailbox
from tasks.engines.picture_prompts import PictureKeeper
from tasks.environments.base import EnvironmentProcesses, EnvironmentSettings
from tasks.environments.config import EpisodeConfig
from tasks.environments.episodes.bridge import Bridge, bridge_of
from tasks.environments.episodes.play import Keep, Means, Play
from tasks.environments.episodes.turn_batcher import TurnBatcher
from tasks.environments.pools.remote_pools import RemotePools
from tasks.environments.pools.status_board import ReportingPool
from tasks.environments.registry import EnvironmentConfig
from tasks.environments.tools.programs import ProgramRunner
from tasks.isolation.isolation import Isolation


class EpisodeReplica(Replica):
    """Plays episodes, turn by turn, on an inner replica. Belongs to one event loop."""

    def __init__(
        self,
        inner: Replica,
        processes: EnvironmentProcesses,
        environments: Mapping[str, EnvironmentSettings],
        bridges: Mapping[str, Bridge],
        config: EpisodeConfig,
        max_model_len: int,
        clock: Callable[[], float] = time.time,
        log: TurnLog | None = None,
        keep: Keep | None = None,
    ) -> None:
        """environments, bridges: by domain. max_model_len: of the inner replica. clock: of the
        inner replica's times. log: where the turns of running episodes are kept, if anywhere.
        keep: keeps a picture that an environment shows, where the model sees pictures."""
        self.name = inner.name
        self._inner = inner
        self._processes = processes
        self._programs = ProgramRunner(Isolation(config.hosts.isolation))
        self._max_model_len = max_model_len
        self._done = Mailbox[News]()
        self._turns = TurnBatcher(inner, self._done.put, self._lose)
        self._lost: EngineLost | ValueError | None = None
        self._log = log
        self._plays: dict[str, tuple[Play, asyncio.Task[Generated]]] = {}  # by response id
        self._means = {
            domain: Means(
                engine=inner.name,
                ask=self._turns.turn,
                settings=settings,
                processes=processes,
                programs=self._programs,
                bridge=bridges[domain],
                keep=keep,
                config=config,
                clock=clock,
                write=log.write if log is not None else lambda generated, num_written: None,
            )
            for domain, settings in environments.items()
        }

    async def submit(self, requests: Sequence[Request]) -> None:
        """Submit requests. Raises ValueError, and submits none, if an episode is unfit."""
        self._check_alive()
        episodes = [request for request in requests if request.environment]
        self._check(episodes)
        plain = [request for request in requests if not request.environment]
        if plain:
            await self._turns.pass_on(plain)
        for request in episodes:
            play = Play(request, self._means[request.environment])
            task = asyncio.create_task(play.run())
            self._plays[request.response_id] = (play, task)
            task.add_done_callback(partial(self._ended, play))

    async def collect(self, wait_s: float) -> list[News]:
        self._check_alive()
        done = await self._done.take(wait_s)
        self._check_alive()
        return done

    async def abort(self, response_ids: Sequence[str]) -> None:
        """Stop responses. An episode whose turn is in the engine stops there. One that waits for
        its environment ends with its turns so far, and its environment is killed."""
        self._check_alive()
        if not response_ids:
            self._done.wake()
        in_engine: list[str] = []
        for name in response_ids:
            play, task = self._plays.get(name, (None, None))
            if play is None or task is None:
                in_engine.append(name)  # no episode, or over
            elif not play.is_stopped:
                play.is_stopped = True
                if play.is_asking:
                    in_engine.append(name)
                else:
                    task.cancel()
        await self._turns.abort(in_engine)

    async def load_weights(
        self,
        weights: WeightsRef,
        probes: Sequence[tuple[int, ...]],
        running: Running = Running.DROP,
    ) -> Attestation:
        self._check_alive()
        if running is Running.DROP:
            await self._drop()
        load = self._inner.load_weights(weights, probes, running)
        attestation, _ = await asyncio.gather(load, self._processes.warm())
        return attestation

    async def stats(self) -> EngineStats:
        """Returns the inner replica's reading. The progress of an episode is its number of tokens,
        given tokens included, even while it waits for its environment."""
        self._check_alive()
        reading = await self._inner.stats()
        begun = {
            name: play.so_far.num_held + reading.progress.get(name, 0) * play.is_asking
            for name, (play, _) in self._plays.items()
        }
        return replace(reading, progress={**reading.progress, **begun})

    async def sleep(self) -> None:
        await self._inner.sleep()

    def close(self) -> None:
        self._lose(EngineLost(f"{self.name} was closed"))
        self._programs.close()
        self._processes.close()
        self._inner.close()
        if self._log is not None:
            self._log.close()

    def _ended(self, play: Play, task: asyncio.Task[Generated]) -> None:
        """Hand back an episode that is over. A cancelled task was stopped, or dropped."""
        name = play.request.response_id
        del self._plays[name]
        if task.cancelled():
            if play.is_stopped and self._lost is None:
                self._done.put(play.generated())
            return
        error = task.exception()
        if error is None:
            self._done.put(task.result())
        elif isinstance(error, ValueError):  # an environment that cannot work, with the cure
            self._lose(error)
        else:  # a fault of ours, or of the processes
            cause = "".join(traceback.format_exception(error))
            self._lose(EngineLost(f"the episode {name} died of {type(error).__name__}\n{cause}"))

    async def _drop(self) -> None:
        """End every episode with its environment, and forget uncollected responses."""
        await self._turns.clear()
        plays = dict(self._plays)
        for play, task in plays.values():
            play.is_stopped = False  # nobody waits for it any more
            task.cancel()
        await asyncio.gather(*(task for _, task in plays.values()), return_exceptions=True)
        # once more, where a second stop broke off the first
        await asyncio.gather(*map(self._processes.end, plays))
        self._done.drop()

    def _lose(self, error: EngineLost | ValueError) -> None:
        """Have later calls raise this error, and end all episodes with their environments."""
        self._lost = self._lost or error
        self._turns.close()
        for _, task in self._plays.values():
            task.cancel()
        self._done.drop()

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))

    def _check(self, episodes: Sequence[Request]) -> None:
        """Raise ValueError for the first episode that cannot be played."""
        seen = {*self._plays}
        for request in episodes:
            name = request.response_id
            check_room(request, self._max_model_len)
            if request.environment not in self._means:
                raise ValueError(
                    f"an episode needs an environment of the run, {name} asks for"
                    f" {request.environment!r}, known are {', '.join(self._means)}; add it to"
                    " environments"
                )
            if name in seen:
                raise ValueError(
                    f"a response may be submitted once at a time, got {name} twice; abort it first"
                )
            kept = request.kept_episode.turns if request.kept_episode is not None else ()
            num_tokens = sum(turn.num_tokens for turn in kept)
            if num_tokens != len(request.kept_tokens) or num_tokens > request.max_new_tokens:
                raise ValueError(
                    "the kept tokens of an episode must be those of its kept turns, and at most"
                    f" max_new_tokens ({request.max_new_tokens}), {name} has"
                    f" {len(request.kept_tokens)} and {num_tokens}; take all from one Generated"
                )
            seen.add(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlayer:
    """Wraps the replica that an engine's process has built into an `EpisodeReplica`."""

    environments: Mapping[str, EnvironmentConfig]  # by domain
    config: EpisodeConfig
    model_path: str  # Hugging Face directory, for its chat template
    max_model_len: int  # of the engine
    run_id: str
    pictures: str = ""  # folder or URL of the run's; empty for a model of text alone
    workers: tuple[str, ...] = ()  # of the role environment; none: the processes are the engine's
    turns_folder: Path | None = None  # where running episodes are kept; None where they are not

    def __call__(self, inner: Replica) -> Replica:
        hosts = self.config.hosts
        processes: EnvironmentProcesses
        if self.workers:
            processes = RemotePools.of(self.run_id, inner.name, self.workers, hosts)
        else:
            expected = self.environments.values()
            processes = ReportingPool(hosts, expected, self.run_id, inner.name)
        return EpisodeReplica(
            inner,
            processes,
            self.environments,
            {
                domain: bridge_of(self.model_path, settings.head())
                for domain, settings in self.environments.items()
            },
            self.config,
            self.max_model_len,
            log=TurnLog(self.turns_folder, inner.name) if self.turns_folder is not None else None,
            keep=self._keep() if self.pictures else None,
        )

    def _keep(self) -> Keep:
        keeper = PictureKeeper.of(self.model_path, self.pictures)
        return lambda data: asyncio.to_thread(keeper.keep, data)
