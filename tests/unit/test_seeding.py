"""The seeding window: it follows what steps waited for, and remembers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.store import Store
from flows.seeding_windows import read_windows, write_windows
from tasks.scheduling.seeding import (
    Seeding,
    SeedingConfig,
    SeedingTimes,
    SeedingWindow,
    after_step,
    workers_worth_holding,
)
from tasks.scheduling.stream_training import Moment, StreamTrainer, StreamTrainerConfig

CONFIG = SeedingConfig()
TIMES = SeedingTimes(
    window_s=90.0,
    train_wait_s=0.0,
    remote_wait_s=0.0,
    remote_s=100.0,
    train_s=120.0,
    num_own=4,
    num_workers=2,
    is_steady=True,
)
seconds = st.floats(0, 1e4)


def test_training_that_waited_lengthens_the_window_and_waiting_workers_shorten_it() -> None:
    longer = after_step(Seeding(), replace(TIMES, train_wait_s=30.0), CONFIG)
    shorter = after_step(Seeding(), replace(TIMES, remote_wait_s=30.0), CONFIG)
    assert (longer.window_s, shorter.window_s) == (100.0, 80.0)


def test_a_window_that_closed_early_goes_on_from_what_it_was() -> None:
    planned = Seeding(window_s=500.0)
    assert after_step(planned, replace(TIMES, window_s=60.0), CONFIG).window_s == 60.0


def test_a_number_of_workers_that_comes_back_gets_its_window_back() -> None:
    known = after_step(Seeding(), TIMES, CONFIG)
    other = after_step(known, replace(TIMES, window_s=40.0, num_workers=4), CONFIG)
    assert other.window_for(2, CONFIG) == 90.0
    assert other.window_for(4, CONFIG) == 40.0
    assert other.window_for(3, CONFIG) == 40.0  # never seen: the last step's
    assert other.window_for(2, SeedingConfig(remembers=False)) == 40.0


def test_a_step_in_which_workers_came_or_went_is_not_remembered() -> None:
    changed = after_step(Seeding(), replace(TIMES, is_steady=False), CONFIG)
    assert (changed.window_s, changed.memory_s) == (90.0, {})


def test_a_step_without_workers_teaches_nothing() -> None:
    before = Seeding(window_s=70.0, memory_s={1: 70.0})
    assert after_step(before, replace(TIMES, num_workers=0), CONFIG) == before


def test_the_workers_worth_holding_would_generate_the_step_while_it_trains() -> None:
    assert workers_worth_holding(TIMES) == pytest.approx((100 * 2 + 90 * 4) / 120)
    assert workers_worth_holding(replace(TIMES, train_s=0.0)) is None


def closes(window_s: float | None, elapsed_s: float, num_running: int, num_workers: int) -> bool:
    """Whether a window closes at this moment of a round, where nothing else frees a device."""
    window = SeedingWindow(window_s, (), StreamTrainer(StreamTrainerConfig(), (), 0))
    moment = Moment(
        num_accepted=0,
        elapsed_s=elapsed_s,
        num_running=num_running,
        num_elastic_workers=num_workers,
    )
    return window.is_due(moment)


def test_the_window_closes_when_its_time_is_up_or_its_work_is_done() -> None:
    assert closes(60.0, 60.0, num_running=9, num_workers=1)
    assert closes(60.0, 5.0, num_running=0, num_workers=1)
    assert not closes(60.0, 59.0, num_running=9, num_workers=1)
    assert not closes(None, 1e6, num_running=9, num_workers=1)


@given(st.none() | seconds, seconds, st.integers(0, 99))
def test_the_window_never_closes_while_nobody_else_is_there(
    window_s: float | None, elapsed_s: float, num_running: int
) -> None:
    assert not closes(window_s, elapsed_s, num_running, num_workers=0)


@given(st.floats(20, 400), st.floats(0, 1000), st.floats(1, 5))
def test_a_balance_that_is_there_is_found_whatever_the_first_window_was(
    balance_s: float, first_s: float, damping: float
) -> None:
    """Waits grow with the distance from the balance, as where training and workers both idle for
    as long as the window is wrong."""
    config, seeding = SeedingConfig(damping=damping), Seeding(window_s=first_s)
    for _ in range(60):
        window_s = seeding.window_for(2, config)
        assert window_s is not None
        off_s = balance_s - window_s
        waits = {"train_wait_s": max(0.0, off_s), "remote_wait_s": max(0.0, -off_s)}
        seeding = after_step(seeding, replace(TIMES, window_s=window_s, **waits), config)
    assert seeding.window_s == pytest.approx(balance_s, abs=0.5)


@given(st.lists(st.tuples(seconds, seconds, seconds, st.integers(0, 6)), max_size=20))
def test_windows_are_never_negative(steps: list[tuple[float, float, float, int]]) -> None:
    seeding = Seeding()
    for window_s, train_wait_s, remote_wait_s, num_workers in steps:
        times = replace(
            TIMES,
            window_s=window_s,
            train_wait_s=train_wait_s,
            remote_wait_s=remote_wait_s,
            num_workers=num_workers,
        )
        seeding = after_step(seeding, times, CONFIG)
        assert all(kept_s >= 0 for kept_s in seeding.memory_s.values())
        assert seeding.window_s is None or seeding.window_s >= 0


def test_windows_are_kept_by_model_and_class_beside_the_runs(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    assert read_windows(store, "8B", "spot") == {}
    write_windows(store, "8B", "spot", {1: 190.0, 2: 160.0})
    write_windows(store, "8B", "spot", {2: 150.0})
    write_windows(store, "14B", "spot", {1: 346.0})
    assert read_windows(store, "8B", "spot") == {1: 190.0, 2: 150.0}
    assert read_windows(store, "8B", "reserved") == {}
