"""Quantiles of counted durations; failures in a row are counted one wave at a time."""

from __future__ import annotations

import random

import pytest
from pydantic import ValidationError

from tasks.environments.base import EnvironmentSettings
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.pools.pool import Restarts
from tasks.environments.pools.pool_report import PoolReport, WallTimes


def times(durations_s: list[float]) -> WallTimes:
    counted = WallTimes()
    for wall_s in durations_s:
        counted.add(wall_s)
    return counted


def test_quantiles_are_off_by_a_twentieth_at_most() -> None:
    draws = random.Random(0)
    durations_s = [draws.lognormvariate(-4, 2) for _ in range(2_000)]
    for share in (0.5, 0.99):
        exact_s = sorted(durations_s)[int(share * 2_000) - 1]
        assert times(durations_s).quantile_s(share) == pytest.approx(exact_s, rel=0.06)


def test_nothing_took_no_time_and_what_takes_for_ever_is_counted() -> None:
    assert PoolReport().step_times.quantile_s(0.5) == 0.0
    assert times([0.0]).quantile_s(0.5) == pytest.approx(1e-5)
    assert times([1e9]).quantile_s(0.5) > 1_000


def restarts(max_restarts: int) -> Restarts:
    return Restarts(EnvironmentSettings(), max_restarts)


def test_failures_of_one_wave_count_once() -> None:
    tried = restarts(1)
    for _ in range(10):
        tried.failed(0, "no")
    tried.check()
    tried.failed(tried.wave, "once more")
    with pytest.raises(ValueError, match=r"1 restarts .* 2 times in a row, the last time: once"):
        tried.check()


def test_a_success_forgives() -> None:
    tried = restarts(1)
    for _ in range(5):
        tried.failed(tried.wave, "no")
        tried.succeeded()
    tried.failed(tried.wave, "no")
    tried.check()


def test_without_restarts_the_first_failure_counts() -> None:
    tried = restarts(0)
    tried.check()
    tried.failed(0, "no")
    with pytest.raises(ValueError, match=r"raise deadlines\.environment_s"):
        tried.check()


def test_a_step_has_some_time() -> None:
    with pytest.raises(ValidationError):
        EnvironmentProcessConfig(step_s=0.0)
