"""What an engine left at a worker of environments that was lost is ended when it is back."""

from __future__ import annotations

from artifacts.records import pack
from tasks.environments.hosts.host_workers import HostWorker
from tasks.environments.hosts.report import PoolLoad

LOAD = pack(PoolLoad(num_places=1, num_episodes=0, num_waiting=0))


class Reached:
    """A connection over which a call that was made before the loss is given up late."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.worker: HostWorker | None = None

    async def call(self, method: str, *args: object, deadline_s: float) -> bytes:
        if method == "end":
            self.ended.append(str(args[-1]))
            if self.worker is not None and len(self.ended) == 1:
                self.worker.abandoned.append("late")
        return LOAD


async def test_an_episode_that_is_given_up_while_another_is_ended_is_ended_too() -> None:
    reached = Reached()

    async def connect(name: str) -> Reached:
        return reached

    worker = reached.worker = HostWorker("environment-0", "engine-0:1", connect)
    worker.abandoned += ["early"]
    assert await worker.look()
    assert sorted(reached.ended) == ["early", "late"]
    assert not worker.abandoned
