"""How long an elastic worker may take until it holds weights: three limits, and who misses one is
told which.

pull the model ─▶ build the engine ─▶ pull a version ─▶ load it, through the gate
pull_s            build_s             pull_s            load_s
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

Limit = Literal["pull_s", "build_s", "load_s"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
CURES: dict[Limit, str] = {
    "pull_s": "raise it, or give the elastic worker a faster link",
    "build_s": "raise it, or give the elastic worker a faster disk and processor",
    "load_s": "raise it, or give the elastic worker less to do besides",
}
MARGIN_S = 10.0  # a pull ends by itself so much earlier than who waits for it gives up


class LimitMissed(RuntimeError):
    """An elastic worker took longer than one of its limits allows. No TimeoutError, for which
    Dask's futures would be asked again."""

    def __init__(self, limit: Limit, told: str) -> None:
        super().__init__(limit, told)
        self.limit = limit

    def __str__(self) -> str:
        return str(self.args[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one run, seconds."""

    pull_s: float  # each pull, of the model's folder or of a version
    build_s: float  # the engine, when the model's folder is there
    load_s: float  # each load of a version, with the gate

    @property
    def ready_s(self) -> float:
        """All that an elastic worker may take until it holds a version: the newest of those that
        are published meanwhile may be one more."""
        return self.build_s + 3 * (self.pull_s + MARGIN_S) + 2 * self.load_s

    @contextmanager
    def bound(self, limit: Limit, what: str) -> Iterator[None]:
        """What is waited for within the block is bound by this limit. Raises LimitMissed for a
        TimeoutError, or for what was raised because of one. what: the elastic worker and what it
        does."""
        try:
            yield
        except LimitMissed:  # another one, within this
            raise
        except Exception as error:
            if not any(isinstance(each, TimeoutError) for each in (error, error.__cause__)):
                raise
            limit_s: float = getattr(self, limit)
            told = f"{what} must take {limit_s:g} s (elastic.{limit}) at most"
            raise LimitMissed(limit, f"{told}, it took longer; {CURES[limit]}") from error
