"""What asynchrony is worth on real devices: the variants, the bound by hand, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from artifacts.commit import StepCommit, seconds_added
from artifacts.records import Span, WeightsRef
from flows.experiments.ablation import period_steps
from flows.experiments.ablation_figures import (
    FIGURES,
    STAGES,
    TIMES,
    Line,
    MeasuredRun,
    block_costs,
)
from flows.experiments.ablation_variants import VARIANTS, job_of, plan
from flows.experiments.asynchrony_figures import (
    asynchrony_report,
    bound_s,
    equal_time_rewards,
    reward_until,
    tokens_per_s,
)
from flows.experiments.asynchrony_variants import ASYNCHRONY, SERVED, overlap_of
from flows.experiments.comparisons import COMPARISONS
from flows.experiments.measured_run import idle_fraction
from flows.experiments.overlap_bound import (
    Overlap,
    SyncTimes,
    overlapped_step_s,
    work_and_tail,
)

# 8 device seconds of generation, 6 s for the longest response; training 4 s on both, 8 s on one
TOGETHER = SyncTimes(generation_s=8 / 2 + 6, learning_s=4.0)
APART = SyncTimes(generation_s=8 + 6, learning_s=8.0)

Stages = Mapping[str, float]  # seconds of a step by stage
NO_STAGES: Stages = {}

NO_OVERLAP = Overlap(async_ratio=0.0, is_shared=False)

SYNC = Line(name="sync", label="sync", over="")
ALONE = Line(name="apart", label="apart", over="sync")
ONE = Line(
    name="async-one",
    label="α 1",
    over="apart",
    overlap=Overlap(async_ratio=1.0, is_shared=False),
)


def commit(
    step: int, started_s: float, finished_s: float, reward: float = 0.5, stages: Stages = NO_STAGES
) -> StepCommit:
    """A step that trains 100 tokens of two groups."""
    names = (*FIGURES.values(), *TIMES.values())
    figures = dict.fromkeys(names, 0.0) | {"reward/mean": reward, "ledger/trained_tokens": 100.0}
    times = {**dict.fromkeys(STAGES, 0.0), **stages}
    return StepCommit(
        step=step,
        kind="sync",
        weights=WeightsRef(version=step, path="", digest=""),
        queue={},
        seeds={},
        counters={"prompts_trained": 2 * step},
        metrics=figures,
        timings=times | {"started_s": started_s, "finished_s": finished_s},
        checkpoint=None,
    )


def run(
    variant: str,
    repeat: int,
    seconds: Sequence[float],
    rewards: Sequence[float] = (),
    stages: Stages = NO_STAGES,
) -> MeasuredRun:
    """Steps that follow each other."""
    rewards = rewards or [0.5] * len(seconds)
    ends = [sum(seconds[: place + 1]) for place in range(len(seconds))]
    steps = [
        commit(place + 1, 100.0 + end - took, 100.0 + end, reward, stages)
        for place, (end, took, reward) in enumerate(zip(ends, seconds, rewards, strict=True))
    ]
    return MeasuredRun(variant=variant, repeat=repeat, steps=tuple(steps))


def test_a_step_that_overlaps_the_one_before_it_adds_what_comes_after_that_ones_end() -> None:
    overlapping = [commit(1, 100, 120), commit(2, 110, 135), commit(3, 121, 147)]
    assert seconds_added(overlapping) == [20, 15, 12]
    assert block_costs(
        MeasuredRun(variant="async-one", repeat=1, steps=tuple(overlapping)), period=3
    ) == {(1, 0): 47 / 6}


def test_what_lies_between_two_steps_counts_for_neither() -> None:
    assert seconds_added([commit(1, 100, 120), commit(2, 125, 135)]) == [20, 10]


def test_generation_is_work_that_devices_share_and_a_tail_that_they_do_not() -> None:
    assert work_and_tail(TOGETHER, APART) == (8, 6)


@pytest.mark.parametrize(("apart_s", "expected"), [(9.0, (0, 9)), (25.0, (25, 0))])
def test_noise_never_makes_work_or_tail_negative(
    apart_s: float, expected: tuple[float, float]
) -> None:
    noisy = SyncTimes(generation_s=apart_s, learning_s=8.0)
    assert work_and_tail(TOGETHER, noisy) == expected


@pytest.mark.parametrize(
    ("ratio", "step_s"),
    [
        (1.0, 8 + 6 / 2),  # generation is what all wait for
        (2.0, 8 + 6 / 3),
        (5.0, 8 + 6 / 6),
        # a half of 12 s beside 8 s of training, the other half after it
        (0.5, 6 + 8),
    ],
)
def test_a_step_of_a_long_run_takes_what_the_slower_device_takes(
    ratio: float, step_s: float
) -> None:
    overlap = Overlap(async_ratio=ratio, is_shared=False)
    found = overlapped_step_s(TOGETHER, APART, overlap, num_steps=1_000_000)
    assert found == pytest.approx(step_s, rel=1e-5)


def test_training_bounds_a_step_where_it_takes_longest() -> None:
    slow = replace(APART, learning_s=30.0)
    overlap = Overlap(async_ratio=1.0, is_shared=False)
    assert overlapped_step_s(TOGETHER, slow, overlap, 1_000_000) == pytest.approx(30, rel=1e-5)


def test_a_short_run_fills_its_pipeline_once_and_empties_it_once() -> None:
    overlap = Overlap(async_ratio=1.0, is_shared=False)
    assert overlapped_step_s(TOGETHER, APART, overlap, num_steps=1) == 11 + 8
    assert overlapped_step_s(TOGETHER, APART, overlap, num_steps=5) == (11 + 8 + 4 * 11) / 5


def test_devices_that_do_both_share_all_the_work_and_half_of_the_tail_is_left() -> None:
    overlap = Overlap(async_ratio=1.0, is_shared=True)
    assert overlapped_step_s(TOGETHER, APART, overlap, num_steps=5) == 8 / 2 + 6 / 2 + 4


def synchronous_runs() -> list[MeasuredRun]:
    together = {"rollout": 9.0, "reward": 1.0, "train": 3.0, "update": 0.5, "publish": 0.5}
    apart = {"rollout": 13.0, "reward": 1.0, "train": 6.0, "update": 1.0, "publish": 1.0}
    return [
        run("sync", 1, [14.0] * 2, stages=together),
        run("apart", 1, [22.0] * 2, stages=apart),
    ]


def test_the_bound_of_a_variant_is_made_of_the_stages_of_the_synchronous_ones() -> None:
    """Verdicts that were waited for count as generation."""
    runs = [*synchronous_runs(), run("async-one", 1, [19.0, 11.0])]
    assert bound_s(ONE, runs) == (11 + 8 + 11) / 2
    assert bound_s(SYNC, runs) is None
    assert bound_s(ONE, [runs[0], runs[2]]) is None


def test_the_table_says_what_could_be_gained_and_how_much_of_it_was() -> None:
    lagging = run("async-one", 1, [19.0, 13.5])
    steps = [
        replace(step, metrics={**step.metrics, "lag/mean_versions": 0.8, "stall/learner_s": 2.0})
        for step in lagging.steps
    ]
    runs = [*synchronous_runs(), replace(lagging, steps=tuple(steps), idle_fraction=0.25)]
    rows = asynchrony_report([SYNC, ALONE, ONE], runs, period=5).splitlines()
    assert rows[2] == "| sync | 14.00 | 7 | 0% | 0.00 | 0.0 | 0.0 |  |  |  |"
    assert rows[4] == "| α 1 | 16.25 | 6 | 25% | 0.80 | 0.0 | 2.0 | 15.00 | 0.93 | 92% |"


def test_trained_tokens_a_second_are_of_all_repeats_together() -> None:
    assert tokens_per_s([run("sync", 1, [10.0]), run("sync", 2, [30.0])]) == 200 / 40


def test_the_reward_at_a_moment_is_the_mean_so_far_between_the_ends_of_periods() -> None:
    found = run("sync", 1, [10.0] * 4, rewards=[0.0, 0.2, 0.4, 0.6])
    assert reward_until(found, 2, 20.0) == pytest.approx(0.1)
    assert reward_until(found, 2, 30.0) == pytest.approx(0.2)  # between 0.1 and 0.3
    assert reward_until(found, 2, 40.0) == pytest.approx(0.3)
    assert reward_until(found, 2, 5.0) == pytest.approx(0.1)  # its first period
    assert reward_until(found, 9, 5.0) == pytest.approx(0.3)  # shorter than a period


def test_rewards_are_compared_when_the_first_variant_of_the_repeat_ends() -> None:
    slow = run("sync", 1, [10.0, 10.0], rewards=[0.0, 1.0])
    fast = run("async-one", 1, [5.0, 10.0], rewards=[0.2, 0.4])
    alone = run("sync", 2, [10.0, 10.0])  # a repeat that the other has not
    found = equal_time_rewards([SYNC, ONE], [slow, fast, alone], period=1)
    assert found["async-one"] == [pytest.approx(0.3)]
    assert found["sync"] == [pytest.approx(0.25)]  # half-way from 0 to the mean of 0 and 1


def test_held_out_rewards_are_told_with_their_intervals_paired_with_the_first() -> None:
    before = {f"p{number}": 0.0 for number in range(4)}
    after = dict.fromkeys(before, 0.5)
    asked = {name: f"question {name}" for name in before}
    runs = [
        replace(run("sync", 1, [10.0]), heldout=before, questions=asked),
        replace(run("async-one", 1, [10.0]), heldout=after, questions=asked),
    ]
    rewards = asynchrony_report([SYNC, ONE], runs, period=1).split("\n\n")[1].splitlines()
    assert rewards[2] == "| sync | 0.500 | 0.000 [0.000, 0.000] |  |"
    assert rewards[3] == "| α 1 | 0.500 | 0.500 [0.500, 0.500] | +0.500 [+0.500, +0.500] |"


def test_a_device_idles_while_it_neither_generates_nor_trains() -> None:
    """Of 2 × 30 s two devices work 10 and 15; what lies outside of the steps does not count."""
    spans = [
        Span(device="cpu:0", actor="engine-0", kind="rollout", start_s=95.0, end_s=110.0),
        Span(device="cpu:1", actor="learner-0", kind="train", start_s=110.0, end_s=125.0),
        Span(device="host", actor="reward", kind="reward", start_s=100.0, end_s=130.0),
    ]
    steps = [commit(1, 100, 120), commit(2, 110, 130)]
    assert idle_fraction(steps, spans) == pytest.approx(1 - 25 / 60)


def test_every_variant_is_a_configuration_and_adds_to_another() -> None:
    jobs = {
        job.variant: job.config
        for job in plan("smollm2-mixed", list(ASYNCHRONY), 5, 1, variants=ASYNCHRONY)
    }
    assert all(variant.over in ASYNCHRONY or name == "sync" for name, variant in ASYNCHRONY.items())
    assert {name: overlap_of(config) for name, config in jobs.items()} == {
        "sync": None,
        "tail": None,
        "apart": None,
        "async-half": Overlap(async_ratio=0.5, is_shared=False),
        "async-one": Overlap(async_ratio=1.0, is_shared=False),
        "async-two": Overlap(async_ratio=2.0, is_shared=False),
        "async-colocated": Overlap(async_ratio=1.0, is_shared=True),
        "in-turn": None,
        "in-turn-late": None,
        "tail-async": None,
    }
    assert {config.scheduling.dynamic_sampling for config in jobs.values()} == {0.0}
    assert len({str(config.rewards) for config in jobs.values()}) == 1


def test_variants_that_ask_a_service_differ_in_their_schedule_alone() -> None:
    jobs = {job.variant: job.config for job in plan("smollm2", list(SERVED), 5, 1, variants=SERVED)}
    assert {config.rewards["*"].kind for config in jobs.values()} == {"service"}
    assert len({str(config.rewards) for config in jobs.values()}) == 1
    for name, config in jobs.items():
        batch, ratio = config.batch, (overlap_of(config) or NO_OVERLAP).async_ratio
        under_way = batch.prompts_per_step * batch.responses_per_prompt * (1 + ratio)
        assert config.reward_workers >= under_way, name


def test_a_service_may_be_asked_at_another_address() -> None:
    url = "http://127.0.0.1:8977/?median_s=3"
    job = job_of("smollm2", "sync", 5, 1, [f"rewards.*.url={url}"], SERVED)
    assert job.config.rewards["*"].url == url  # type: ignore[union-attr]
    assert period_steps("smollm2", SERVED, [f"rewards.*.url={url}"]) == 5


def test_a_period_is_tail_batchings_whatever_is_set_of_other_policies() -> None:
    assert period_steps("smollm2-mixed", ASYNCHRONY, ["scheduling.at_update=keep"]) == 5
    assert period_steps("smollm2-mixed", VARIANTS, []) == 5


def test_a_setting_of_the_users_outweighs_the_variants() -> None:
    asked = ["evaluation.num_prompts=64", "scheduling.at_update=keep"]
    config = job_of("smollm2-mixed", "async-one", 5, 1, asked, ASYNCHRONY).config
    assert config.evaluation.num_prompts == 64
    assert config.scheduling.at_update == "keep"  # type: ignore[union-attr]
    assert job_of("smollm2-mixed", "sync", 5, 1, asked, ASYNCHRONY).config.num_steps == 5


def test_each_comparison_begins_with_what_the_others_are_over() -> None:
    for comparison in COMPARISONS.values():
        first, *others = comparison.variants.values()
        assert first.over == ""
        assert all(other.over in comparison.variants for other in others)
