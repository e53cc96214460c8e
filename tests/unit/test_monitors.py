"""The alarm: which figures raise it, when, and that it says what to do."""

from __future__ import annotations

import math

import pytest

from tasks.metrics.monitors import MonitorConfig, StepWarning, warnings_of

FINE = {
    "train/tokens_scored": 100.0,
    "train/effective_sample_fraction": 0.98,
    "train/mismatch_k3": 0.002,
    "train/cut_fraction": 0.05,
    "train/entropy_nats": 1.5,
}
SILENT = dict.fromkeys(FINE, 0.0)  # of a step that scored nothing


def raised(*values: float, figure: str, config: MonitorConfig | None = None) -> list[StepWarning]:
    """The alarms of a run whose steps have these values of a figure."""
    steps = [(step, FINE | {figure: value}) for step, value in enumerate(values, 1)]
    return list(warnings_of(steps, config or MonitorConfig()))


def test_a_run_within_its_limits_raises_none() -> None:
    assert warnings_of([(step, FINE) for step in range(1, 9)], MonitorConfig()) == ()
    assert warnings_of([], MonitorConfig()) == ()


@pytest.mark.parametrize(
    ("figure", "beyond", "within"),
    [
        ("train/effective_sample_fraction", 0.49, 0.5),
        ("train/mismatch_k3", 0.031, 0.03),
        ("train/cut_fraction", 0.31, 0.3),
        ("train/mismatch_k3", math.nan, 0.03),
    ],
)
def test_a_limit_must_be_passed_three_times_in_a_row(
    figure: str, beyond: float, within: float
) -> None:
    assert raised(beyond, beyond, within, beyond, beyond, figure=figure) == []
    (alarm,) = raised(within, beyond, beyond, beyond, beyond, beyond, figure=figure)
    assert alarm.step == 4
    assert alarm.text.startswith(f"{figure} was {beyond:.3g} in step 4, ")
    assert f" {within:.3g} for 3 steps in a row: " in alarm.text


def test_it_is_told_again_only_after_a_step_within_the_limit() -> None:
    values = (0.4, 0.4, 0.4, 0.4, 0.9, 0.4, 0.4, 0.3)
    first, second = raised(*values, figure="train/effective_sample_fraction")
    assert (first.step, second.step) == (3, 8)
    assert " was 0.3 in step 8, " in second.text


def test_entropy_is_held_against_that_of_the_first_step() -> None:
    figure = "train/entropy_nats"
    assert raised(0.2, 0.1, 0.1, 0.1, figure=figure) == []
    (alarm,) = raised(2.0, 0.19, 0.19, 0.19, figure=figure)
    assert alarm.step == 4
    assert "below 0.2 for" in alarm.text


def test_steps_that_scored_nothing_neither_count_nor_end_a_row() -> None:
    low = FINE | {"train/effective_sample_fraction": 0.1}
    steps = [(1, SILENT), (2, SILENT), (3, low), (4, SILENT), (5, low)]
    assert warnings_of(steps, MonitorConfig()) == ()
    (alarm,) = warnings_of([*steps, (6, low)], MonitorConfig())
    assert alarm.step == 6


def test_it_names_the_figure_the_value_the_limit_and_the_cure() -> None:
    config = MonitorConfig(steps_in_a_row=2, max_cut_fraction=0.25)
    (alarm,) = raised(0.5, 0.4, figure="train/cut_fraction", config=config)
    told = alarm.text
    expected = "train/cut_fraction was 0.4 in step 2, above 0.25 for 2 steps in a row: "
    assert told.startswith(expected)
    assert "scheduling.async_ratio" in told
    assert "learner.optimizer.learning_rate" in told


def test_limits_can_be_switched_off() -> None:
    config = MonitorConfig(
        min_effective_sample_fraction=0,
        max_mismatch_k3=math.inf,
        max_cut_fraction=1,
        min_entropy_share=0,
    )
    ruined = {
        "train/tokens_scored": 9.0,
        "train/effective_sample_fraction": 0.0,
        "train/mismatch_k3": 1e9,
        "train/cut_fraction": 1.0,
        "train/entropy_nats": 0.0,
    }
    assert warnings_of([(1, FINE), *((step, ruined) for step in range(2, 9))], config) == ()
