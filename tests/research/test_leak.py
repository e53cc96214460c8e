"""Growth of memory between two windows of a run."""

from __future__ import annotations

from research.benchmarks.leak import growth


def test_growth_is_between_the_steps_after_settling_and_the_last_ones() -> None:
    settling = [(step, 10.0 * step) for step in range(8)]
    even = [(step, 100.0 + (step % 2)) for step in range(8, 24)]
    assert growth([*settling, *even], 8, 6, 24) == 0.0
    leaking = [(step, 100.0 + step) for step in range(8, 24)]
    assert growth([*settling, *leaking], 8, 6, 24) == 10.0


def test_a_process_that_was_not_there_in_both_windows_has_no_growth() -> None:
    assert growth([(3, 1.0), (9, 1.0)], 8, 6, 24) is None
    assert growth([(20, 1.0), (23, 5.0)], 8, 6, 24) is None
