"""The walls of `landlock` are tried on every machine, also where root's programs, as nobody, cannot
reach the interpreter's library: a run is refused it there, but a wall is a wall."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.isolation.isolation import Isolation
from tasks.rewards.programs.sandbox import self_test

OUT_OF_REACH = "a program cannot read Python"


@pytest.fixture(scope="session", autouse=True)
def landlock_without_a_library() -> Iterator[None]:
    """Where that alone speaks against it, the self-test does not ask for it."""
    if not self_test.holds(Isolation.LANDLOCK).startswith(OUT_OF_REACH):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_test, "IMPORT", "pass")
        self_test.holds.cache_clear()
        yield
    self_test.holds.cache_clear()


@pytest.fixture(autouse=True)
def hosts_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of environments have imported what the tests need."""
    monkeypatch.setattr("tasks.environments.processes.fork_servers.closed_to_nobody", lambda _: "")
