"""What a watched run is judged by: slopes after the warm-up."""

from __future__ import annotations

import pytest

from research.benchmarks.soak import Readings, drift_rows, memory_rows, slope


def test_the_slope_is_the_growth_in_a_hundred_steps() -> None:
    assert slope([(step, 500 + 0.02 * step) for step in range(50)]) == pytest.approx(2.0)
    assert slope([(3, 1.0), (3, 2.0)]) == 0.0


def test_memory_that_grows_in_the_warm_up_alone_is_flat() -> None:
    readings = Readings()
    for step in range(101):
        readings.add(step, {"engine-0": 100.0 + min(step, 10), "flow": 50.0 + step})
    assert list(memory_rows(readings, 100)) == [
        ("engine-0", "110", "110", "+0.0"),
        ("flow", "61", "150", "+100.0"),
    ]


def test_a_figure_that_creeps_up_shows_it() -> None:
    steps = [{"lag/mean_versions": 1.0 + step / 1000} for step in range(100)]
    ((name, _, _, growth),) = drift_rows(steps)
    assert (name, growth) == ("lag/mean_versions", "+0.100")
