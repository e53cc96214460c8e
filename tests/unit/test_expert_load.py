"""A mixture's loads: added over rows and ranks, told as two figures, warned about."""

from __future__ import annotations

from tasks.learner.reports import AccumulateReport, ExpertLoad, token_means
from tasks.metrics.monitors import MonitorConfig, warnings_of


def test_loads_of_rows_and_ranks_add_up() -> None:
    first = AccumulateReport(expert_load=ExpertLoad(((3, 1, 0, 0), (1, 1, 1, 1))))
    second = AccumulateReport(expert_load=ExpertLoad(((1, 3, 0, 0), (2, 2, 2, 2))))
    total = first + AccumulateReport() + second
    assert total.expert_load.tokens == ((4, 4, 0, 0), (3, 3, 3, 3))
    figures = token_means(total)
    assert figures["train/expert_load_max"] == 2.0
    assert figures["train/dead_expert_fraction"] == 0.25


def test_a_dense_model_has_no_figures_of_experts() -> None:
    assert not [name for name in token_means(AccumulateReport()) if "expert" in name]


def test_dead_experts_are_warned_about() -> None:
    steps = [
        (step, {"train/tokens_scored": 9.0, "train/dead_expert_fraction": dead})
        for step, dead in enumerate((0.0, 0.2, 0.2, 0.2), 1)
    ]
    (warning,) = warnings_of(steps, MonitorConfig())
    assert warning.step == 4
    assert "experts die" in warning.text
