"""What is seen of a run's processes while it is injected: places that are filled again, zombies,
what outlives its parent, shared memory."""

from __future__ import annotations

import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from artifacts.handover import PREFIX
from research.kills.descendants import (
    SHARED_MEMORY,
    is_alive,
    is_zombie,
    origins,
    owner,
    reap,
    shared_files,
    worker_name,
)
from research.kills.injected_run import InjectedRun

ZOMBIE_S = 20.0  # for so long a process may have ended without its parent's taking note
SETTLED_S = 10.0  # for so long a worker's environments have been seen when its places are full
GONE_S = 120.0  # within which a process ends whose run has ended, or was killed


class InjectionWatch:
    """Looks again and again, at one run."""

    def __init__(self, run: InjectedRun) -> None:
        self.zombies: set[str] = set()
        self.leftovers: set[str] = set()
        self._run = run
        self._ended_s: dict[psutil.Process, float] = {}  # zombies, with when they were seen first
        self._orphans: dict[psutil.Process, float] = {}  # with when they must be gone
        # by worker, since the last kill: the most at once, and when the first was seen
        self._num_hosts: dict[str, int] = {}
        self._begun_s: dict[str, float] = {}
        self._shared: set[Path] = set()

    def look(self) -> None:
        """See what there is now."""
        processes, now_s = self._run.look(), time.monotonic()
        reap(processes, attended=self._run.flow.pid)
        ended = [process for process in processes if is_zombie(process)]
        self._ended_s = {process: self._ended_s.get(process, now_s) for process in ended}
        attended = self._run.flow.pid
        for process, since_s in self._ended_s.items():
            if now_s - since_s > ZOMBIE_S and process.pid != attended:
                self.zombies.add(f"process {process.pid}")
        for origin, hosts in origins(processes).items():
            name = owner(origin)  # empty if the worker was just killed
            if name and hosts:
                self._num_hosts[name] = max(self._num_hosts.get(name, 0), len(hosts))
                self._begun_s.setdefault(name, now_s)
        self._check_orphans(now_s)

    def before_kill(self) -> None:
        """Something is about to be killed: places have to be filled from now on."""
        self._num_hosts.clear()
        self._begun_s.clear()
        self._shared.update(shared_files(self._run.processes))

    def orphan(self) -> None:
        """The flow has ended: all else that there is must end, too."""
        gone_s = time.monotonic() + GONE_S
        for process in self._run.look():
            self._orphans.setdefault(process, gone_s)

    def unhealed(self, num_hosts: int) -> int:
        """Places of environments that were not filled again since the last kill, of so many that
        each worker has. A worker that took part in nothing since then, or came back at the very
        end, has none to be filled."""
        settled_s = time.monotonic() - SETTLED_S
        return sum(
            max(0, num_hosts - most)
            for name, most in self._num_hosts.items()
            if self._begun_s[name] < settled_s
        )

    def end(self) -> None:
        """The run is over: wait until all of it is gone, and note what stays."""
        self.orphan()
        while self._orphans:
            self.look()
            time.sleep(0.1)
        own = Path(SHARED_MEMORY) / f"{PREFIX}{self._run.name}"
        self.leftovers.update(str(path) for path in (own, *self._shared) if path.exists())

    def _check_orphans(self, now_s: float) -> None:
        """Forget those that are gone; note those that should be, and end them."""
        for process, gone_s in list(self._orphans.items()):
            if not is_alive(process):
                del self._orphans[process]
            elif now_s > gone_s:
                name = worker_name(process) or " ".join(process.cmdline()[:3])
                self.leftovers.add(f"{name} ({process.pid})")
                process.kill()
                del self._orphans[process]
