"""Prices: the published pairs of throughput and tokens per dollar, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_factories import make_report, span
from report_factories import make_commit
from worker_factories import make_elastic_worker

from artifacts.commit import StepCommit
from artifacts.prices import PriceConfig, gain
from artifacts.records import Fate
from artifacts.reports.device_cost import run_cost
from flows.commands.compare import cost_totals, cost_verdict
from flows.config.run_config import RunConfig
from tasks.metrics.report import StepReport
from tasks.metrics.step_cost import cost_metrics

TRAINER, PAIR = 83.79, 5.32  # dollars an hour: 8 reserved H100, 2 spot ones (RLBoost, appendix A)
PRICES = PriceConfig(classes={"reserved": 36.0, "spot": 9.0})


@pytest.mark.parametrize(
    ("throughput_ratio", "num_pairs", "published"),
    [
        (1.2, 1, 1.128),  # the artifact's 8B table, 10,000 tokens/s without workers
        (1.4, 2, 1.242),
        (1.6, 3, 1.344),
        (1.8, 4, 1.435),
        (18_000 / 10_400, 4, 1.380),
        (2.22, 6, 1.61),  # appendix E: 14B, 14K tokens
        (1.47, 3, 1.24),  # appendix E: 14B, 5K tokens
    ],
)
def test_the_gain_is_the_published_one(
    throughput_ratio: float, num_pairs: int, published: float
) -> None:
    cost_ratio = 1 + num_pairs * PAIR / TRAINER
    assert gain(throughput_ratio, cost_ratio) == pytest.approx(published, abs=0.006)


def test_the_first_instance_saves_what_the_paper_says() -> None:
    assert 1 - 1 / gain(1.37, 1 + PAIR / TRAINER) == pytest.approx(0.224, abs=0.001)


def test_a_class_without_a_price_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"one of prices.classes \(reserved, spot\), got 'free'"):
        PRICES.dollars_per_s("free")
    with pytest.raises(ValueError, match=r"got .mine.; add prices\.classes\.mine"):
        RunConfig.model_validate(
            {"preset": "tiny", "prices": {"classes": {"spot": 1.0}, "own_class": "mine"}}
        )


@pytest.mark.parametrize("classes", [{"reserved": -1}, {"reserved": float("nan")}, {"A b": 1}])
def test_impossible_prices_and_names_are_refused(classes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"prices|price class"):
        PriceConfig(classes=classes)


def priced_at(report: StepReport, prices: PriceConfig) -> StepReport:
    run = replace(report.plan.run, prices=prices)
    return replace(report, plan=replace(report.plan, run=run))


def test_an_elastic_worker_is_paid_for_while_it_is_there() -> None:
    report = make_report(())
    begun_s, ended_s = report.started_s, report.finished_s
    came = make_elastic_worker("spot", since_s=begun_s - 100.0, until_s=begun_s + 2.0)
    stays = make_elastic_worker("spot", since_s=ended_s - 1.0, until_s=None)
    unseen = make_elastic_worker("spot", since_s=ended_s + 5.0, until_s=None)
    prices = PriceConfig(classes={"reserved": 36.0, "spot": 3.6})
    figures = cost_metrics(priced_at(report, prices), 0.0, [came, stays, unseen])
    assert figures["cost/spot_worker_s"] == pytest.approx(3.0)
    assert figures["cost/spot_idle_s"] == pytest.approx(3.0)
    assert figures["cost/spot_dollars"] == pytest.approx(0.003)
    own_s = figures["cost/reserved_worker_s"]
    assert figures["cost/dollars"] == pytest.approx(own_s / 100 + 0.003)


def test_a_step_pays_for_its_devices_and_says_what_they_did() -> None:
    report = make_report((span("rollout", 0, 4), span("train", 5, 8)))
    report = replace(report, rollout=replace(report.rollout, tokens={Fate.TRAINED: 500}))
    figures = cost_metrics(priced_at(report, PRICES), before_s=0.0)
    num_devices = len({*report.plan.run.devices.values()} - {"host"})
    held_s = report.duration_s * num_devices
    assert figures["cost/reserved_worker_s"] == pytest.approx(held_s)
    assert figures["cost/dollars"] == pytest.approx(held_s / 100)
    assert figures["cost/tokens_per_dollar"] == pytest.approx(500 / held_s * 100)
    assert figures["cost/throughput_all_devices"] == pytest.approx(500 / report.duration_s)
    assert figures["cost/reserved_generating_s"] == pytest.approx(4)
    assert figures["cost/reserved_training_s"] == pytest.approx(3)
    assert figures["cost/reserved_idle_s"] == pytest.approx(held_s - 7)


def test_seconds_that_the_step_before_paid_are_not_paid_again() -> None:
    report = make_report(())
    middle_s = (report.started_s + report.finished_s) / 2
    figures = cost_metrics(priced_at(report, PRICES), before_s=middle_s)
    assert figures["cost/added_s"] == pytest.approx(report.duration_s / 2)


def test_without_prices_seconds_are_told_and_no_dollars() -> None:
    figures = cost_metrics(make_report(()), before_s=0.0)
    assert figures["cost/reserved_worker_s"] > 0
    assert not [name for name in figures if "dollar" in name]


def priced(step: int, spot_s: float = 0.0) -> StepCommit:
    """A step of ten seconds on two reserved devices, with these seconds of spot ones."""
    made = make_commit(step)
    figures = {
        "cost/added_s": 10.0,
        "cost/reserved_dollars": 0.2,
        "cost/reserved_generating_s": 12.0,
        "cost/reserved_idle_s": 8.0,
        "cost/spot_dollars": spot_s / 400,
        "cost/dollars": 0.2 + spot_s / 400,
    }
    return replace(made, metrics={**made.metrics, **figures})


def test_the_cost_of_a_run_is_the_sum_of_its_steps() -> None:
    cost = run_cost([priced(1).metrics, priced(2).metrics], PRICES)
    assert cost is not None
    assert cost.dollars == {"reserved": pytest.approx(0.4)}
    assert "500 trained tokens a dollar, 10 a second" in cost.headline
    assert cost.rows[1] == ("reserved, generating", 24.0, 0.6)
    assert run_cost([make_commit(1).metrics], PRICES) is None
    assert run_cost([priced(1).metrics], PriceConfig()) is None


def test_a_comparison_tells_both_costs_and_the_gain() -> None:
    runs = []
    for name, spot_s, tokens in (("alone", 0.0, 100.0), ("helped", 20.0, 180.0)):
        metrics = priced(1, spot_s).metrics | {"ledger/trained_tokens": tokens}
        by_step = {metric: {1: value} for metric, value in metrics.items()}
        runs.append(cost_totals(name, by_step))
    told = "\n".join(cost_verdict(*runs))
    assert "alone: 2000 dollars a million trained tokens, 500 tokens a dollar." in told
    assert "helped: 1389 dollars a million trained tokens, 720 tokens a dollar." in told
    assert "R = 1.800" in told
    assert "N*c/C = 1.250" in told
    assert "= 1.440 in tokens per dollar" in told
    bare = cost_totals("bare", {"cost/added_s": {1: 10.0}})
    assert cost_verdict(bare, bare) == []
    assert len(cost_verdict(bare, runs[0])) == 1
