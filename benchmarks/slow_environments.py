"""Environments that take time, in virtual time: what a call of theirs takes, and how they fail.

    reset ─▶ latency of turn 0 ─▶ step ─▶ latency of turn 1 ─▶ ... ─▶ the episode's last turn
                                    └─▶ crashes or never returns, at a turn that its seed gives

`SlowHosts` are the processes of an engine as its episodes see them; nothing is computed and nothing
is said. With a `LockStep` all episodes take their turns together: every turn waits for the slowest
action, and then for the slowest environment. Leaves out engines and schedules.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass

from artifacts.episodes import Ending
from artifacts.records import prompt_of
from tasks.engines.simulation.lengths import LengthModel
from tasks.environments.base import EnvironmentFailed, EnvironmentSettings, Transition
from tasks.scheduling.seeds import derive_seed

OBSERVATION = "o" * 20  # a token each
TURNS = LengthModel(median_tokens=5.0, sigma=0.5)  # of turns, not of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How slow and how unreliable environments are."""

    mean_s: float = 0.5  # of a reset or a step; normal, cut at 0
    deviation_s: float = 0.5
    slow_share: float = 0.0  # of the calls
    slow_factor: float = 10.0  # how much longer those take
    hang_share: float = 0.0  # of the episodes: at one of their steps they never return
    crash_share: float = 0.0  # of the episodes: at one of their steps they raise
    limit_s: float = 30.0  # of a call; whoever takes longer is killed
    # of turns that episodes come to by themselves; those of a group resemble each other
    turns: LengthModel = TURNS
    most_turns: int = 10

    def num_turns(self, episode_id: str) -> int:
        """After which the episode is over."""
        index = int(episode_id.rpartition(":")[2])
        return min(self.turns.tokens(prompt_of(episode_id), index), self.most_turns)

    def latency_s(self, seed: int, turn: int) -> float:
        """Seconds of the reset (turn 0) or of a step: a function of seed and turn alone."""
        draws = random.Random(derive_seed(seed, "latency", turn))
        latency_s = max(0.0, draws.gauss(self.mean_s, self.deviation_s))
        return latency_s * (self.slow_factor if draws.random() < self.slow_share else 1.0)

    def failure(self, seed: int, num_turns: int) -> tuple[Ending, int] | None:
        """How the environment fails, and at which step; None if it does not."""
        draws = random.Random(derive_seed(seed, "failure"))
        share = draws.random()
        turn = draws.randint(1, num_turns)
        if share < self.hang_share:
            return Ending.UNANSWERED, turn
        return (Ending.CRASHED, turn) if share < self.hang_share + self.crash_share else None


@dataclass(slots=True, kw_only=True, eq=False)
class Played:
    """An episode that was begun, as its environment saw it."""

    episode_id: str
    seed: int  # of its latencies and its failure
    num_turns: int  # that it takes if nothing fails or stops it
    turn: int = 0  # the last one that was begun
    busy_s: float = 0.0  # in which its environment was in a call


class LockStep:
    """Has all episodes take their turns together. Who begins while a turn is under way waits for
    the next."""

    def __init__(self) -> None:
        self._members: set[str] = set()
        self._acted: dict[str, asyncio.Event] = {}  # wait for the actions of the others
        self._stepping: set[str] = set()
        self._answered: dict[str, asyncio.Event] = {}  # wait for the environments of the others

    async def begin(self, episode_id: str) -> None:
        """Its action is there; returns when those of all are."""
        self._members.add(episode_id)
        await self._wait(self._acted, episode_id)

    async def finish(self, episode_id: str) -> None:
        """Its environment has answered; returns when all have."""
        await self._wait(self._answered, episode_id)

    def leave(self, episode_id: str) -> None:
        """Nobody waits for it any more."""
        self._members.discard(episode_id)
        self._stepping.discard(episode_id)
        self._acted.pop(episode_id, None)
        self._answered.pop(episode_id, None)
        self._open_gates()

    async def _wait(self, gate: dict[str, asyncio.Event], episode_id: str) -> None:
        gate[episode_id] = asyncio.Event()
        # after whatever else happens now: episodes that begin together are members together
        asyncio.get_running_loop().call_soon(self._open_gates)
        await gate[episode_id].wait()

    def _open_gates(self) -> None:
        if self._stepping and self._stepping <= self._answered.keys():
            self._stepping.clear()
            _open(self._answered)
        if not self._stepping and self._members and self._members <= self._acted.keys():
            self._stepping = set(self._members)
            _open(self._acted)


def _open(gate: dict[str, asyncio.Event]) -> None:
    waiting = tuple(gate.values())
    gate.clear()
    for event in waiting:
        event.set()


class SlowHosts:
    """`EnvironmentHosts` whose environments do nothing but take time."""

    def __init__(self, conditions: Conditions, lock_step: LockStep | None = None) -> None:
        self.played: list[Played] = []  # every episode that was begun, in this order
        self._conditions = conditions
        self._lock_step = lock_step
        self._playing: dict[str, Played] = {}

    async def warm(self) -> None: ...

    async def reset(
        self, episode_id: str, settings: EnvironmentSettings, seed: int, state: bytes = b""
    ) -> str:
        played = Played(
            episode_id=episode_id,
            seed=derive_seed(seed, episode_id),  # the members of a group have equal seeds
            num_turns=self._conditions.num_turns(episode_id),
        )
        self.played.append(played)
        self._playing[episode_id] = played
        await self._take(played)
        return OBSERVATION

    async def step(self, episode_id: str, text: str) -> Transition:
        played = self._playing[episode_id]
        played.turn += 1
        await self._take(played)
        is_over = played.turn == played.num_turns
        return Transition(OBSERVATION, float(is_over), is_over, False, {})

    def snapshot(self, episode_id: str) -> bytes:
        return b""

    async def end(self, episode_id: str) -> None:
        self._playing.pop(episode_id, None)
        if self._lock_step is not None:
            self._lock_step.leave(episode_id)

    def close(self) -> None:
        self._playing.clear()

    async def _take(self, played: Played) -> None:
        """The time of a call. Raises EnvironmentFailed where the episode is to fail."""
        if self._lock_step is None:
            await self._call(played)
            return
        await self._lock_step.begin(played.episode_id)
        await self._call(played)
        await self._lock_step.finish(played.episode_id)

    async def _call(self, played: Played) -> None:
        latency_s = self._conditions.latency_s(played.seed, played.turn)
        failure = self._conditions.failure(played.seed, played.num_turns)
        ending, turn = failure or (None, 0)
        if turn == played.turn and ending is Ending.UNANSWERED:
            latency_s = math.inf
        clock = asyncio.get_running_loop()
        began_s = clock.time()
        try:
            await asyncio.sleep(min(latency_s, self._conditions.limit_s))
        finally:
            played.busy_s += clock.time() - began_s
        if latency_s > self._conditions.limit_s:
            raise EnvironmentFailed(Ending.UNANSWERED, "no answer in time")
        if turn == played.turn and ending is Ending.CRASHED:
            raise EnvironmentFailed(Ending.CRASHED, "a crash that its seed gives")
