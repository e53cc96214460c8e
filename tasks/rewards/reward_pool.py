"""The reward workers of a run: made once, kept from round to round, shared out among the kinds of rewards by their backlog.

    submit(prompt, response) -> backlog of its kind -> a free worker -> a reward of that kind, idle or new -> verdict

A worker is a thread that waits for a reward's own process, so `num_workers` bounds the processes that compute. A kind with a long
backlog takes all workers but one for each other kind: a queue of programs never keeps a sum waiting. Second looks (`adaptive_timeout`)
wait until nothing else does, and take half of the workers at most. Lives in the process that scores, one per run (`pool_of`), and ends
with the run, the process, or the next run.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from artifacts.records import Generated, Prompt, Score
from tasks.rewards.adaptive_timeout import Anchor, TimeoutBook, merged, second_looks
from tasks.rewards.base import Reward
from tasks.rewards.code_tests import CodeTests, CodeTestsConfig
from tasks.rewards.registry import RewardConfig, build_reward, config_of, score_with, timeouts_of


def next_kind(backlog: Mapping[str, int], running: Mapping[str, int], num_workers: int) -> str | None:
    """The kind that a free worker turns to, None if it may turn to none: of those with a backlog the one with the fewest workers."""
    most = max(1, num_workers - (len(running) - 1))
    waiting = [kind for kind, count in backlog.items() if count and running[kind] < most]
    return min(waiting, key=lambda kind: (running[kind], -backlog[kind]), default=None)


@dataclass(frozen=True, slots=True)
class _Job:
    """One response to score."""

    prompt: Prompt
    generated: Generated
    verdict: Future[Score]
    is_second_look: bool = False


@dataclass(slots=True, kw_only=True)
class _Kind:
    """Rewards of equal configuration."""

    config: RewardConfig
    backlog: deque[_Job] = field(default_factory=deque)
    idle: list[Reward] = field(default_factory=list)
    second_looks: deque[_Job] = field(default_factory=deque)
    num_running: int = 0


class RewardPool:
    """Scores responses side by side; rewards are built when a backlog asks for them, and never more than there are workers."""

    def __init__(self, configs: Mapping[str, RewardConfig], num_workers: int, book: TimeoutBook) -> None:
        self.book = book
        self._configs = dict(configs)
        self._num_workers = num_workers
        self._kinds = {config.model_dump_json(): _Kind(config=config) for config in configs.values()}
        self._num_looking = 0
        self._relearned: dict[str, Anchor] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="reward")

    def submit(self, prompt: Prompt, generated: Generated) -> Future[Score]:
        """A verdict to come. Cancel it when nobody needs it any more. ValueError for a domain without a reward."""
        config, verdict = config_of(self._configs, prompt.domain), Future[Score]()
        with self._lock:
            self._kinds[config.model_dump_json()].backlog.append(_Job(prompt, generated, verdict))
        self._threads.submit(self._work)
        return verdict

    def look_again(self, scored: Sequence[tuple[Prompt, Generated, Score]]) -> list[Future[Score]]:
        """Execute some of a round's early killed programs once more, when nothing else is to do; see `relearned`."""
        looks: list[Future[Score]] = []
        for kind in self._kinds.values():
            if not isinstance(kind.config, CodeTestsConfig):
                continue
            own = [one for one in scored if config_of(self._configs, one[0].domain) == kind.config]
            places = second_looks(kind.config.timeout, self.book.anchors, [score.cases for _, _, score in own], self._num_workers)
            for prompt, generated, _ in (own[place] for place in places):
                looks.append(Future())
                with self._lock:
                    kind.second_looks.append(_Job(prompt, generated, looks[-1], is_second_look=True))
                self._threads.submit(self._work)
        return looks

    def relearned(self) -> dict[str, Anchor]:
        """What second looks have told since this was last called; the book knows it already."""
        with self._lock:
            told, self._relearned = self._relearned, {}
        return told

    def close(self) -> None:
        """Drop the backlog, wait for what runs, end the rewards' processes."""
        with self._lock:
            for kind in self._kinds.values():
                for jobs in (kind.backlog, kind.second_looks):
                    while jobs:
                        jobs.popleft().verdict.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for kind in self._kinds.values():
            while kind.idle:
                kind.idle.pop().close()

    def _work(self) -> None:
        """One worker, until there is nothing that it may turn to."""
        while (found := self._turn_to()) is not None:
            kind, job = found
            try:
                self._score(kind, job)
            finally:
                with self._lock:
                    kind.num_running -= 1
                    self._num_looking -= job.is_second_look

    def _turn_to(self) -> tuple[_Kind, _Job] | None:
        with self._lock:
            backlog = {name: len(kind.backlog) for name, kind in self._kinds.items()}
            running = {name: kind.num_running for name, kind in self._kinds.items()}
            name = next_kind(backlog, running, self._num_workers)
            if name is not None:
                found = self._kinds[name], self._kinds[name].backlog.popleft()
            elif self._num_looking < self._num_workers // 2 and (kinds := [kind for kind in self._kinds.values() if kind.second_looks]):
                found = kinds[0], kinds[0].second_looks.popleft()
            else:
                return None
            found[0].num_running += 1
            self._num_looking += found[1].is_second_look
            return found

    def _score(self, kind: _Kind, job: _Job) -> None:
        if not job.verdict.set_running_or_notify_cancel():
            return
        reward = None
        try:
            with self._lock:
                reward = kind.idle.pop() if kind.idle else None
            reward = reward or build_reward(kind.config, self.book)
            look = self._look if job.is_second_look else score_with
            job.verdict.set_result(look(reward, job.prompt, job.generated))
        except BaseException as error:  # the boundary of the thread: whoever waits for the verdict raises it
            job.verdict.set_exception(error)
        finally:
            if reward is not None:
                with self._lock:
                    kind.idle.append(reward)

    def _look(self, reward: Reward, prompt: Prompt, generated: Generated) -> Score:
        assert isinstance(reward, CodeTests), "only programs are looked at again"
        score = reward.look_again(prompt, generated)
        told = timeouts_of(self._configs, [(prompt.domain, score)])
        self.book.learn(told)
        with self._lock:
            self._relearned = merged(self._relearned, told)
        return score


_pools: dict[str, RewardPool] = {}
_pools_lock = threading.Lock()


def pool_of(run_id: str, make: Callable[[], RewardPool]) -> RewardPool:
    """The run's pool in this process, made on first use; those of other runs are closed."""
    with _pools_lock:
        for other in [name for name in _pools if name != run_id]:
            _pools.pop(other).close()
        if run_id not in _pools:
            _pools[run_id] = make()
        return _pools[run_id]


@atexit.register
def close_pools() -> None:
    """End every pool of this process; harmless without one."""
    with _pools_lock:
        while _pools:
            _pools.popitem()[1].close()
