"""The reward workers of a run, kept from round to round and divided among the kinds of rewards by
backlog.

    submit(prompt, response) ─▶ backlog of its kind ─▶ a free worker with such a reward ─▶ verdict
    verdict.cancel() ─▶ dropped from the backlog; if a worker has it, its running work is ended
    leave(verdicts) ─▶ kept although this round cancels them ─▶ the next round's submit joins them

A worker is a thread that waits for a reward's own process. A kind with a long backlog may take all
`num_workers`. A kind without a worker then still gets one more, so that a queue of programs, each
of which may be endless, never delays a quick check of a number.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from artifacts.records import Generated, Prompt, Score
from tasks.isolation.interrupt import Interrupted
from tasks.rewards.base import ProcessReward, Reward
from tasks.rewards.programs.adaptive_timeout import Anchor, MeasuredTimes, merged
from tasks.rewards.programs.code_tests import CodeTests, CodeTestsConfig, SecondLooks
from tasks.rewards.registry import RewardConfig, config_of, score_with


class PendingVerdict(Future[Score]):
    """A future verdict that several callers may need; when the last cancels it, its work is
    ended."""

    def __init__(self, prompt: Prompt, generated: Generated) -> None:
        super().__init__()
        self.prompt, self.generated = prompt, generated
        self.key = generated.response_id, generated.attempt  # unique within the run
        self._guard = threading.Lock()
        self._num_needing = 1
        self._reward: ProcessReward | None = None  # the reward that works on the verdict

    def need(self) -> None:
        """Count one more caller that will cancel or await the verdict."""
        with self._guard:
            self._num_needing += 1

    def cancel(self) -> bool:
        """Count one caller less; if none is left, cancel the verdict and interrupt its reward.
        Returns False while another caller needs the verdict, or if a reward was already at work."""
        with self._guard:
            self._num_needing -= 1
            if self._num_needing > 0:
                return False
            if self._reward is not None:
                self._reward.interrupt.set()
        return super().cancel()

    @contextmanager
    def reached_by(self, reward: Reward) -> Iterator[None]:
        """Within this context, `cancel` interrupts this reward; after it, never. Raises Interrupted
        if the verdict was cancelled before."""
        with self._guard:
            if self._num_needing == 0:
                raise Interrupted("nobody needs the verdict")
            self._reward = reward if isinstance(reward, ProcessReward) else None
        try:
            yield
        finally:
            with self._guard:
                if self._reward is not None and self._num_needing == 0:
                    self._reward.interrupt.clear()
                self._reward = None


@dataclass(slots=True, kw_only=True)
class _Kind:
    """The backlog and the rewards of one configuration."""

    config: RewardConfig
    backlog: deque[PendingVerdict] = field(default_factory=deque)
    idle: list[Reward] = field(default_factory=list)
    running: set[PendingVerdict] = field(default_factory=set)


class RewardPool:
    """Scores responses in parallel, with at most `num_workers` rewards of each kind, built when
    needed."""

    def __init__(
        self, configs: Mapping[str, RewardConfig], num_workers: int, times: MeasuredTimes
    ) -> None:
        """configs: by domain. times: the run's measured running times, which all its rewards
        share."""
        self.times = times
        self._configs = dict(configs)
        self._num_workers = num_workers
        self._kinds = {
            config.model_dump_json(): _Kind(config=config) for config in configs.values()
        }
        self._looks = [
            SecondLooks(kind.config, times, num_workers)
            for kind in self._kinds.values()
            if isinstance(kind.config, CodeTestsConfig)
        ]
        self._lock = threading.Lock()
        self._left: dict[tuple[str, int], PendingVerdict] = {}  # verdicts kept by `leave`, by key
        self._threads = ThreadPoolExecutor(
            num_workers + max(0, len(self._kinds) - 1), thread_name_prefix="reward"
        )

    def submit(self, prompt: Prompt, generated: Generated) -> PendingVerdict:
        """Queue a response to be scored, or join the pending verdict that an earlier round left on
        it. The caller cancels the verdict when it is no longer needed. Raises ValueError for a
        domain without a reward."""
        config = config_of(self._configs, prompt.domain)
        verdict = PendingVerdict(prompt, generated)
        with self._lock:
            left = self._left.pop(verdict.key, None)
            if left is not None:
                return left
            self._kinds[config.model_dump_json()].backlog.append(verdict)
        self._threads.submit(self._work)
        return verdict

    def leave(self, verdicts: Iterable[PendingVerdict]) -> None:
        """Keep these verdicts although the caller cancels them next: `submit` of the responses
        joins them."""
        with self._lock:
            for verdict in verdicts:
                verdict.need()
                self._left[verdict.key] = verdict

    def drop_left(self, but_of: Container[str] = ()) -> int:
        """Cancel the verdicts that `leave` kept and no `submit` has joined since, except those of
        the prompts `but_of`. Returns how many of the cancelled verdicts were unfinished."""
        with self._lock:
            unneeded = [
                verdict for verdict in self._left.values() if verdict.prompt.prompt_id not in but_of
            ]
            for verdict in unneeded:
                del self._left[verdict.key]
        num_open = sum(not verdict.done() for verdict in unneeded)
        for verdict in unneeded:
            verdict.cancel()
        return num_open

    def look_again(self, scored: Sequence[tuple[Prompt, Generated, Score]]) -> list[Future[Score]]:
        """Execute some of a round's early killed programs again, at the lowest priority."""
        looks: list[Future[Score]] = []
        for own in self._looks:
            looks += own.look_again(
                [pair for pair in scored if config_of(self._configs, pair[0].domain) == own.config]
            )
        return looks

    def relearned(self) -> dict[str, Anchor]:
        """Running times that second looks measured since the last call; `times` has them
        already."""
        found: dict[str, Anchor] = {}
        for looks in self._looks:
            found = merged(found, looks.relearned())
        return found

    def close(self) -> None:
        """Drop the backlog, end running work, and close the rewards."""
        self.drop_left()
        with self._lock:
            unneeded: list[PendingVerdict] = []
            for kind in self._kinds.values():
                unneeded += (*kind.backlog, *kind.running)
                kind.backlog.clear()
        for verdict in unneeded:
            verdict.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for looks in self._looks:
            looks.close()
        for kind in self._kinds.values():
            while kind.idle:
                kind.idle.pop().close()

    def _work(self) -> None:
        """Run one worker: score one response after the other, until `next_kind` has none for it."""
        while True:
            with self._lock:
                backlog = {name: len(kind.backlog) for name, kind in self._kinds.items()}
                running = {name: len(kind.running) for name, kind in self._kinds.items()}
                name = next_kind(backlog, running, self._num_workers)
                if name is None:
                    return
                kind = self._kinds[name]
                verdict = kind.backlog.popleft()
                kind.running.add(verdict)
            try:
                self._score(kind, verdict)
            finally:
                with self._lock:
                    kind.running.remove(verdict)

    def _score(self, kind: _Kind, verdict: PendingVerdict) -> None:
        if not verdict.set_running_or_notify_cancel():
            return
        reward = None
        try:
            with self._lock:
                reward = kind.idle.pop() if kind.idle else None
            if reward is None and isinstance(kind.config, CodeTestsConfig):
                reward = CodeTests(kind.config, self.times)
            reward = reward or kind.config.build_reward()
            with verdict.reached_by(reward):
                score = score_with(reward, verdict.prompt, verdict.generated)
            verdict.set_result(score)
        # the boundary of the thread: the verdict raises it in its callers
        except BaseException as error:
            verdict.set_exception(error)
        finally:
            if reward is not None:
                with self._lock:
                    kind.idle.append(reward)


_pools: dict[str, RewardPool] = {}
_pools_lock = threading.Lock()


def pool_of(run_id: str, make: Callable[[], RewardPool]) -> RewardPool:
    """The run's pool in this process, made at the first call; pools of other runs are closed."""
    with _pools_lock:
        for other in [name for name in _pools if name != run_id]:
            _pools.pop(other).close()
        if run_id not in _pools:
            _pools[run_id] = make()
        return _pools[run_id]


@atexit.register
def close_pools() -> None:
    """Close every pool of this process, if there are any."""
    with _pools_lock:
        while _pools:
            _pools.popitem()[1].close()


def next_kind(
    backlog: Mapping[str, int], running: Mapping[str, int], num_workers: int
) -> str | None:
    """Choose the kind of the next job for a free worker: among kinds with a backlog, the one with
    the fewest running workers. None if no kind may have another worker.

    With `num_workers` running, only a kind without a worker may still get one. Pure; the simulated
    pool uses the same rule.
    """
    is_full = sum(running.values()) >= num_workers
    waiting = [kind for kind, count in backlog.items() if count and not (is_full and running[kind])]
    return min(waiting, key=lambda kind: (running[kind], -backlog[kind]), default=None)
