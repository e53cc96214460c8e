"""Plots draw whatever a run may hand them; timeline and summary add up."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
from rich.console import Console

from artifacts.records import Span
from artifacts.reports import canvas, plots
from artifacts.reports.command_plots import RunCurves, comparison
from artifacts.reports.plots import LAG, staleness
from artifacts.reports.summary import (
    Estimate,
    RunSummary,
    markdown,
    mean_interval,
    paired_difference,
    rich_summary,
    shares,
    unpaired,
)
from artifacts.reports.timeline import bubble_shares, device_times, orchestration_s, stage_s, union

DEVICES = ("cpu:0", "cpu:1")
KINDS = ("rollout", "reward", "train", "update", "publish", "gate", "evaluate", "sleep", "new-kind")
TIMES = st.floats(0, 100, allow_nan=False)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start, end = sorted((draw(TIMES), draw(TIMES)))
    device = draw(st.sampled_from((*DEVICES, "host")))
    return Span(
        device=device,
        actor=f"{device}-actor",
        kind=draw(st.sampled_from(KINDS)),
        start_s=start,
        end_s=end,
    )


def a_span(kind: str, start: float, end: float, device: str = "cpu:0") -> Span:
    return Span(device=device, actor=f"{kind}-{device}", kind=kind, start_s=start, end_s=end)


def shape(png: bytes) -> tuple[int, ...]:
    return tuple(imread(io.BytesIO(png)).shape)


def test_union_merges_what_touches_and_drops_what_is_empty() -> None:
    assert union([(3, 4), (0, 1), (1, 2), (0.5, 0.7), (5, 5)]) == [(0, 2), (3, 4)]


@settings(max_examples=80)
@given(st.lists(spans(), max_size=12))
def test_every_device_second_has_one_cause(given_spans: list[Span]) -> None:
    times = device_times(given_spans, DEVICES, 10.0, 90.0)
    for time in times:
        assert time.total_s == pytest.approx(80.0)
        assert min(*time.work_s.values(), *time.bubble_s.values()) >= 0
        own = [span for span in given_spans if span.device == time.device]
        work = sum(
            b - a
            for a, b in union(
                (max(s.start_s, 10.0), min(s.end_s, 90.0)) for s in own if s.kind in time.work_s
            )
        )
        assert sum(time.work_s.values()) == pytest.approx(work)
    assert 0 <= orchestration_s(given_spans, 10.0, 90.0) <= 80.0 + 1e-9


def test_bubbles_are_named_by_what_the_others_do() -> None:
    step = [
        a_span("rollout", 0, 2),
        a_span("rollout", 0, 6, "cpu:1"),
        a_span("reward", 5, 7, "host"),
        a_span("train", 8, 10),
        a_span("publish", 10, 11),
        a_span("sleep", 11, 12),
    ]
    first, second = device_times(step, DEVICES, 0, 13)
    assert {cause: s for cause, s in first.bubble_s.items() if s} == {
        "tail": 4,
        "reward_wait": 1,
        "idle": 2,
        "sync": 1,
        "sleep_wake": 1,
    }
    assert {cause: s for cause, s in second.bubble_s.items() if s} == {
        "reward_wait": 1,
        "sync": 3,
        "idle": 3,
    }
    assert bubble_shares([first, second])["tail"] == pytest.approx(4 / 26)
    assert orchestration_s(step, 0, 13) == 2
    assert stage_s(step, "rollout", 0, 13) == 6


def test_every_plot_is_a_picture() -> None:
    run = RunCurves(
        name="a", steps=[1, 2], reward=[0.1, 0.2], step_s=[3.0, 4.0], is_long=[False, True]
    )
    estimate = Estimate(mean=0.2, low=0.1, high=0.4, num_samples=8)
    pictures = [
        plots.reward_curve([1, 2], [0.1, 0.2], {0: estimate, 2: estimate}),
        plots.step_times(
            [1, 2], ["short", "long"], {"rollout": [1.0, 2.0], "something new": [0.5, 0.5]}
        ),
        plots.response_lengths({"short": [1, 5, 9], "long": [200]}),
        plots.timelines({"Step 1": [a_span("rollout", 0, 1), a_span("other", 1, 2)]}, DEVICES),
        comparison(run, run),
    ]
    assert all(
        height > 200 and width > 600 for height, width, _ in map(shape, map(canvas.png, pictures))
    )


def test_a_run_without_data_still_draws() -> None:
    empty = RunCurves(name="a", steps=[], reward=[], step_s=[], is_long=[])
    plots.reward_curve([], [], {})
    plots.step_times([], [], {})
    plots.response_lengths({"short": []})
    plots.timelines({"nothing": []}, [])
    plots.learning_curves([])
    plots.policy_curves([])
    comparison(empty, empty)


def test_a_device_that_hardly_works_has_no_lane() -> None:
    spans = [a_span("rollout", 0, 10), a_span("reward", 3, 3.01, "host")]
    (axes,) = plots.timelines({"Step 1": spans}, []).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cpu:0"]


def test_smoothing_keeps_length_and_constants() -> None:
    assert plots.smoothed([2.0] * 7) == [2.0] * 7
    assert plots.smoothed([0.0, 3.0]) == [1.5, 1.5]


def test_a_paired_difference_ignores_what_prompts_differ_in() -> None:
    before = {f"p{index}": float(index % 10) for index in range(50)}
    gain = paired_difference(before, {name: value + 0.5 for name, value in before.items()}, seed=0)
    assert (gain.mean, gain.low, gain.high, gain.num_samples) == (0.5, 0.5, 0.5, 50)


def test_an_interval_covers_the_mean_and_follows_its_seed() -> None:
    scores = {f"p{index}": float(index % 7) for index in range(40)}
    interval = mean_interval(scores, seed=3)
    assert interval.low < interval.mean < interval.high
    assert interval == mean_interval(scores, seed=3)


def test_prompts_that_ask_the_same_question_are_one_sample() -> None:
    scores = {f"p{index}": float(index // 10) for index in range(20)}
    one_each = mean_interval(scores, seed=0)
    two_questions = mean_interval(
        scores, seed=0, question_of={name: str(value) for name, value in scores.items()}
    )
    assert (two_questions.mean, two_questions.num_samples) == (one_each.mean, 2)
    assert two_questions.high - two_questions.low > one_each.high - one_each.low


def test_different_prompts_cannot_be_paired() -> None:
    with pytest.raises(
        ValueError,
        match="needs prompts that were scored before and after, got 1 and 1 with none in common",
    ):
        paired_difference({"a": 0.0}, {"b": 1.0}, seed=0)


def test_a_prompt_without_a_verdict_on_one_side_is_left_out_and_counted() -> None:
    before, after = {"a": 0.0, "b": 0.25, "c": 1.0}, {"a": 0.5, "b": 0.75, "d": 0.0}
    gain = paired_difference(before, after, seed=0)
    assert (gain.mean, gain.num_samples, unpaired(before, after)) == (0.5, 2, 2)


def a_summary(gain: Estimate) -> RunSummary:
    return RunSummary(
        run_id="r1",
        num_steps=3,
        run_s=61.0,
        reward_before=0.25,
        reward_after=0.5,
        gain=gain,
        num_unpaired=0,
        time_s={"train": 20.0, "rollout": 30.0},
        ledger_tokens={"trained": 900, "aborted": 100},
        links={"prefect": "http://localhost:4200", "report": "runs/r1/report"},
    )


def test_the_summary_states_gain_shares_and_links() -> None:
    page = markdown(a_summary(Estimate(mean=0.25, low=0.1, high=0.4, num_samples=64)))
    assert (
        "Held-out reward 0.250 -> 0.500, paired difference +0.250 [+0.100, +0.400] (95%, n=64)."
        in page
    )
    assert page.index("| rollout | 30.0 | 60.0% |") < page.index("| train | 20.0 | 40.0% |")
    assert "| aborted | 100 | 10.0% |" in page
    assert "[http://localhost:4200](http://localhost:4200)" in page
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(rich_summary(a_summary(Estimate(mean=0.25, low=0.1, high=0.4, num_samples=64))))
    assert "rollout" in console.export_text()


def test_a_gain_that_may_be_none_is_called_that() -> None:
    assert "this run shows no change" in markdown(
        a_summary(Estimate(mean=0.02, low=-0.1, high=0.1, num_samples=8))
    )


def test_shares_of_nothing_are_zero() -> None:
    assert shares({"a": 0.0}) == {"a": 0.0}


def test_staleness_is_drawn_by_lag_of_the_steps_that_know_it() -> None:
    steps = [
        (1, {LAG: 0.0, "lag/mismatch_k3_at_0": 0.001}),
        (2, {LAG: 1.0, "lag/mismatch_k3_at_0": 0.001, "lag/mismatch_k3_at_10": 0.01}),
        (3, {LAG: 1.5, "lag/mismatch_k3_at_2": 0.02}),
    ]
    lag, divergence = staleness(steps).axes  # no step knows its effective sample
    assert [list(line.get_ydata()) for line in lag.lines] == [[0.0, 1.0, 1.5]]
    labels = [line.get_label() for line in divergence.lines]
    assert labels == ["lag 0", "lag 2", "lag 10"]
    assert list(divergence.lines[2].get_xdata()) == [2]
