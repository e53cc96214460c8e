"""What asynchrony is worth on real devices: the variants, what they could be, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_run_factories import CONFIG, PROMPTS, RESPONSES, STEPS, keep_run

from artifacts.commit import StepCommit, read_manifest, seconds_added, write_manifest
from artifacts.records import Span, WeightsRef
from artifacts.store import Store
from flows.commands.command_line import assemble
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig
from research.ablations.ablation import period_steps
from research.ablations.ablation_figures import (
    FIGURES,
    STAGES,
    TIMES,
    MeasuredRun,
    TableLine,
    block_costs,
)
from research.ablations.ablation_variants import ASYNCHRONY, SERVED, VARIANTS, job_of, plan
from research.ablations.asynchrony_figures import (
    asynchrony_report,
    at_best,
    equal_time_rewards,
    reward_until,
    tokens_per_s,
)
from research.ablations.comparisons import COMPARISONS
from research.ablations.ideal_steps import Ideal, ideal_of
from research.ablations.measured_run import idle_fraction, measured
from tasks.simulation.recorded import read_run

# the configuration of a recorded run, for other schedules
SMALL = (
    f"num_steps={STEPS}",
    f"batch.prompts_per_step={PROMPTS}",
    f"batch.responses_per_prompt={RESPONSES}",
)

SYNC = TableLine(name="sync", label="sync", over="")
ONE = TableLine(name="async-one", label="α 1", over="sync")


def commit(step: int, started_s: float, finished_s: float, reward: float = 0.5) -> StepCommit:
    """A step that trains 100 tokens of two groups."""
    names = (*FIGURES.values(), *TIMES.values())
    figures = dict.fromkeys(names, 0.0) | {"reward/mean": reward, "ledger/trained_tokens": 100.0}
    return StepCommit(
        step=step,
        kind="sync",
        weights=WeightsRef(version=step, path="", digest=""),
        queue={},
        seeds={},
        counters={"prompts_trained": 2 * step},
        metrics=figures,
        timings=dict.fromkeys(STAGES, 0.0) | {"started_s": started_s, "finished_s": finished_s},
        checkpoint=None,
    )


def run(
    variant: str,
    repeat: int,
    seconds: Sequence[float],
    rewards: Sequence[float] = (),
) -> MeasuredRun:
    """Steps that follow each other."""
    rewards = rewards or [0.5] * len(seconds)
    ends = [sum(seconds[: place + 1]) for place in range(len(seconds))]
    steps = [
        commit(place + 1, 100.0 + end - took, 100.0 + end, reward)
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


def test_the_table_says_what_could_be_gained_and_how_much_of_it_was() -> None:
    lagging = run("async-one", 1, [19.0, 13.5])
    steps = [
        replace(step, metrics={**step.metrics, "lag/mean_versions": 0.8, "stall/learner_s": 2.0})
        for step in lagging.steps
    ]
    lagging = replace(
        lagging, steps=tuple(steps), idle_fraction=0.25, ideal=Ideal(step_s=13.0, tokens_per_s=8.0)
    )
    rows = asynchrony_report([SYNC, ONE], [run("sync", 1, [14.0] * 2), lagging], period=5)
    assert "| sync | 14.00 | 7 | 0% | 0.00 | 0.0 | 0.0 |  |  |  |  |" in rows
    assert "| α 1 | 16.25 | 6 | 25% | 0.80 | 0.0 | 2.0 | 13.00 | 1.08 | 80% | 77% |" in rows


def test_what_could_be_gained_is_told_where_every_run_tells_it() -> None:
    """Tokens a second are of all seconds together."""
    first, second = (
        replace(run("async-one", 1, [9.0]), ideal=Ideal(step_s=step_s, tokens_per_s=rate))
        for step_s, rate in ((4.0, 10.0), (6.0, 5.0))
    )
    assert at_best([first, second], "async-one") == Ideal(step_s=5.0, tokens_per_s=7.0)
    assert at_best([first, run("async-one", 2, [9.0])], "async-one") is None
    assert at_best([first], "sync") is None


def test_a_synchronous_step_at_best_is_its_longest_response_and_its_training(
    tmp_path: Path,
) -> None:
    """110 tokens of 10 ms, 0.1 s of prefill, 2 s of training by two ranks, update, publication; the
    0.2 s of orchestration are no work."""
    recorded = read_run(Store.open(str(keep_run(tmp_path / "recorded"))))
    found = ideal_of(recorded, CONFIG)
    assert found is not None
    assert found.step_s == pytest.approx(1.1 + 0.1 + 2.0 + 0.3 + 0.1, rel=0.05)
    tokens = sum(len(row.response.generated.token_ids) for row in recorded.steps[0].rows)
    assert found.tokens_per_s == pytest.approx(tokens / found.step_s)


def test_rounds_that_overlap_training_take_the_longer_of_both_at_best(tmp_path: Path) -> None:
    """One device trains alone what two trained: 4 s, beside which the other generates; before the
    first of three steps it generates alone."""
    recorded = read_run(Store.open(str(keep_run(tmp_path / "recorded"))))
    alone = ["scheduling.kind=asynchronous", 'cluster.roles="rollout: 0, learner: 1"']
    values = assemble("tiny-sync", "", [*SMALL, *alone])
    found = ideal_of(recorded, RunConfig.model_validate(values))
    assert found is not None
    learning_s = 4.0 + 0.3 + 0.1
    assert found.step_s == pytest.approx(learning_s + 1.4 / STEPS, rel=0.07)


def test_rounds_in_turn_wait_for_less_than_their_longest_response(tmp_path: Path) -> None:
    recorded = read_run(Store.open(str(keep_run(tmp_path / "recorded"))))
    turns = ["scheduling.kind=asynchronous", "scheduling.at_update=pause"]
    values = assemble("tiny-sync", "", [*SMALL, *turns])
    in_turn = ideal_of(recorded, RunConfig.model_validate(values))
    synchronous = ideal_of(recorded, CONFIG)
    assert in_turn is not None
    assert synchronous is not None
    assert 2.4 < in_turn.step_s < synchronous.step_s


def test_steps_that_overlap_on_devices_that_do_both_are_not_told(tmp_path: Path) -> None:
    recorded = read_run(Store.open(str(keep_run(tmp_path / "recorded"))))
    values = assemble("tiny-sync", "", [*SMALL, "scheduling.kind=asynchronous"])
    assert ideal_of(recorded, RunConfig.model_validate(values)) is None


def test_runs_are_told_what_they_could_be_by_the_recorded_one_of_their_repeat(
    tmp_path: Path,
) -> None:
    for name in ("sync-r1", "tail-r1", "tail-r2"):
        keep_run(tmp_path / name)
    found = {
        f"{run.variant}-r{run.repeat}": run.ideal and run.ideal.step_s
        for run in measured(tmp_path, ["tail", "sync"], "sync")
    }
    assert found.keys() == {"sync-r1", "tail-r1", "tail-r2"}
    assert found["tail-r1"] == found["sync-r1"] == pytest.approx(3.6, rel=0.05)
    assert found["tail-r2"] is None
    assert {run.ideal for run in measured(tmp_path, ["tail"])} == {None}


@pytest.mark.parametrize(
    "fields",
    [
        {"engine": {"tensor_parallel_size": 2}},
        {"cluster": {"num_devices": 3, "roles": "rollout: 0-1, learner: 1-2"}},
    ],
)
def test_runs_that_cannot_be_played_are_told_without_what_they_could_be(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("sync-r1", "tail-r1"):
        store = Store.open(str(keep_run(tmp_path / name)))
        manifest = read_manifest(store)
        write_manifest(store, replace(manifest, config=overlay(manifest.config, fields)))
    found = measured(tmp_path, ["sync", "tail"], "sync")
    assert [(run.variant, run.ideal) for run in found] == [("sync", None), ("tail", None)]


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
    assert {config.scheduling.dynamic_sampling for config in jobs.values()} == {0.0}
    assert len({str(config.rewards) for config in jobs.values()}) == 1


def test_variants_that_ask_a_service_differ_in_their_schedule_alone() -> None:
    jobs = {job.variant: job.config for job in plan("smollm2", list(SERVED), 5, 1, variants=SERVED)}
    assert {config.rewards["*"].kind for config in jobs.values()} == {"service"}
    assert len({str(config.rewards) for config in jobs.values()}) == 1
    for name, config in jobs.items():
        batch, ratio = config.batch, config.scheduling.algebra(config.batch).mean_lag
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
