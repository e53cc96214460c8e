"""Which worker of environments the next episode begins at."""

from __future__ import annotations

from collections import Counter

from tasks.environments.pools.pool_report import PoolLoad
from tasks.environments.pools.remote_pools import WorkerView, least_wait


def view(step_s: float | None = None, *, own: int = 0, **known: float) -> WorkerView:
    return WorkerView(step_s=step_s, own=own, **{"num_places": 100, **known})  # type: ignore[arg-type]


def begun(views: dict[str, WorkerView], count: int) -> Counter[str]:
    """Where so many episodes go that begin one after the other."""
    views, went = dict(views), Counter[str]()
    for _ in range(count):
        name = least_wait(views)
        views[name] = views[name].begun()
        went[name] += 1
    return went


def test_workers_of_equal_latency_share_episodes() -> None:
    assert begun({"a": view(0.1), "b": view(0.1)}, 10) == {"a": 5, "b": 5}


def test_a_worker_that_answers_half_as_fast_gets_half_as_many() -> None:
    assert begun({"slow": view(0.2), "fast": view(0.1)}, 30) == {"slow": 10, "fast": 20}


def test_a_worker_of_which_nothing_is_known_counts_as_the_mean_of_the_others() -> None:
    went = begun({"new": view(), "slow": view(0.3), "fast": view(0.1)}, 22)
    assert went["fast"] > went["new"] > went["slow"] > 0


def test_without_any_reading_the_emptier_one_is_next() -> None:
    assert least_wait({"a": view(own=2), "b": view(own=1)}) == "b"


def test_episodes_of_other_engines_count() -> None:
    told = view(0.1, own=1).loaded(PoolLoad(num_places=8, num_episodes=6, num_waiting=1))
    assert (told.own, told.others, told.num_places) == (1, 6, 8)
    assert least_wait({"told": told, "empty": view(0.3)}) == "empty"


def test_one_that_is_full_is_passed_over_unless_the_other_is_slower_than_the_wait() -> None:
    full = view(0.1, own=4, num_places=4, held_s=20.0)
    assert least_wait({"full": full, "slow": view(2.0)}) == "slow"
    assert least_wait({"full": full, "stuck": view(60.0)}) == "full"


def test_readings_are_running_means() -> None:
    told = view().stepped(1.0).stepped(2.0).begun().ended(10.0)
    assert told.step_s == 1.2
    assert (told.held_s, told.own) == (10.0, 0)
    assert told.begun().ended().held_s == 10.0
