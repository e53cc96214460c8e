"""How often an environment may fail in a row before it counts as one that cannot work. Pure."""

from __future__ import annotations

from tasks.environments.base import EnvironmentSettings


class Restarts:
    """Failures without a success between them, of processes of equal settings.

    Processes that ran side by side fail side by side: a failure counts only if its process was
    started after the last one that counted.
    """

    def __init__(self, settings: EnvironmentSettings, max_restarts: int) -> None:
        self.settings = settings
        self.wave = 0  # of processes that start now
        self._max_restarts = max_restarts
        self._num_failed = 0
        self._last = ""

    def succeeded(self) -> None:
        """A reset or a step was answered."""
        self._num_failed = 0

    def failed(self, wave: int, detail: str) -> None:
        """A process of this wave failed."""
        if wave == self.wave:
            self.wave += 1
            self._num_failed += 1
            self._last = detail

    def check(self) -> None:
        """ValueError once there were too many."""
        if self._num_failed > self._max_restarts:
            kind = type(self.settings)
            raise ValueError(
                "an environment must answer at least once in"
                f" {self._max_restarts} restarts of its process,"
                f" {kind.__module__}.{kind.__qualname__} failed {self._num_failed} times in a row,"
                f" the last time: {self._last}; mend the environment, or raise hosts.reset_s,"
                " hosts.memory_mb or hosts.max_restarts"
            )
