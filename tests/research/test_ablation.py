"""The ablation: what is run in which order, what is kept, and its figures against numbers worked
out by hand."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.commit import RunManifest, StepCommit, commit_step, write_manifest
from artifacts.records import WeightsRef
from artifacts.store import Store
from flows.config.run_config import RunConfig
from research.ablations.ablation import curves, is_finished
from research.ablations.ablation_figures import (
    FIGURES,
    STAGES,
    MeasuredRun,
    TableLine,
    block_costs,
    report,
    speed_up,
    trained_groups,
    trained_tokens,
)
from research.ablations.ablation_plot import ablation_plot
from research.ablations.ablation_variants import LEVELS, VARIANTS, Job, job_of, plan
from research.ablations.measured_run import measured
from research.ablations.validation_figures import over_time, reward_at, validation_report

SYNC = TableLine(name="sync", label="plain", over="")
TAIL = TableLine(name="tail", label="+ tail batching", over="sync")
STREAM = TableLine(name="stream", label="+ stream trainer", over="tail")


def commit(step: int, seconds: float, trained: int, reward: float = 0.5) -> StepCommit:
    """A step of which rollout takes a half and training the rest; `trained`: groups so far."""
    stages = dict.fromkeys(STAGES, 0.0) | {"rollout": seconds / 2, "train": seconds / 2}
    figures = dict.fromkeys(FIGURES.values(), 0.0) | {
        "time/reward_busy_s": 0.5,
        "time/step_s": seconds,
        "time/rollout_s": seconds / 2,
        "time/reward_exposed_s": 0.25,
        "reward/mean": reward,
        "ledger/trained_tokens": 100.0,
    }
    return StepCommit(
        step=step,
        kind="sync",
        weights=WeightsRef(version=step, path="", digest=""),
        queue={},
        seeds={},
        counters={"prompts_trained": trained},
        metrics=figures | {"rollout/tokens": 1000.0},
        timings=stages | {"started_s": 1e3 * step, "finished_s": 1e3 * step + seconds},
        checkpoint=None,
    )


def run(variant: str, repeat: int, seconds: Sequence[float], groups: int = 2) -> MeasuredRun:
    steps = tuple(commit(step, one, step * groups) for step, one in enumerate(seconds, start=1))
    return MeasuredRun(variant=variant, repeat=repeat, steps=steps)


def test_a_steps_groups_are_the_difference_of_the_totals() -> None:
    assert trained_groups([commit(1, 1, 4), commit(2, 1, 8), commit(3, 1, 11)]) == [4, 4, 3]


def test_a_block_is_a_period_and_costs_seconds_per_trained_group() -> None:
    assert block_costs(run("sync", 3, [4, 6, 8, 12, 99]), period=2) == {
        (3, 0): 10 / 4,
        (3, 1): 20 / 4,
    }


def validated(variant: str, repeat: int, seconds: float, rewards: Sequence[float]) -> MeasuredRun:
    """A run of four steps of so many seconds, asked before them and after every second one."""
    made = run(variant, repeat, [seconds] * 4)
    return replace(made, validation=dict(zip((0, 2, 4), rewards, strict=True)))


def test_held_out_rewards_are_compared_at_the_time_of_the_run_that_is_over_first() -> None:
    runs = [
        validated("sync", 1, 10, [0.2, 0.3, 0.4]),
        validated("tail", 1, 5, [0.2, 0.4, 0.6]),  # over after 20 s, where sync has 0.3
        validated("sync", 2, 10, [0.1, 0.3, 0.4]),
        validated("tail", 2, 5, [0.1, 0.4, 0.7]),
    ]
    assert over_time(runs[0]) == [(0, 0.2), (20, 0.3), (40, 0.4)]
    assert reward_at([(0, 0.2), (20, 0.3)], 5) == pytest.approx(0.225)
    told = validation_report([SYNC, TAIL], runs, 4).splitlines()
    assert told[2] == "| plain | 40 | 0.150 | 0.400 | 0.300 |  | 2 |"
    assert told[3].startswith("| + tail batching | 20 | 0.150 | 0.650 | 0.650 | 0.35 [-0.29, 0.99]")


def test_a_repeat_without_a_run_of_every_variant_is_not_compared() -> None:
    runs = [validated("sync", 1, 10, [0, 0, 0]), validated("tail", 2, 5, [0, 0, 0])]
    assert validation_report([SYNC, TAIL], runs, 4).startswith("no repeat has a run of every")


def test_a_run_shorter_than_a_period_is_one_block() -> None:
    assert block_costs(run("sync", 1, [4, 6]), period=5) == {(1, 0): 2.5}


def test_a_speed_up_is_the_geometric_mean_of_the_paired_ratios_with_students_interval() -> None:
    """Ratios 1, 2 and 4: logarithms 0, ln 2 and 2 ln 2, of standard deviation ln 2; 4.303 is
    Student's quantile of two degrees."""
    before, after = (
        {(1, 0): 4.0, (2, 0): 4.0, (3, 0): 4.0},
        {(1, 0): 4.0, (2, 0): 2.0, (3, 0): 1.0, (4, 0): 9.0},
    )
    found = speed_up(before, after)
    assert found is not None
    spread = 2 ** (4.303 / math.sqrt(3))
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0 / spread, 2.0 * spread))
    assert found.num_samples == 3


def test_equal_ratios_leave_no_doubt_and_a_single_one_leaves_all() -> None:
    sure = speed_up({(1, 0): 3.0, (2, 0): 6.0}, {(1, 0): 2.0, (2, 0): 4.0})
    assert sure is not None
    assert (sure.low, sure.mean, sure.high) == pytest.approx((1.5, 1.5, 1.5))
    single = speed_up({(1, 0): 3.0}, {(1, 0): 2.0})
    assert single is not None
    assert (single.low, single.high) == (0.0, math.inf)


def test_what_was_never_measured_together_has_no_ratio() -> None:
    assert speed_up({(1, 0): 3.0}, {(2, 0): 2.0}) is None


def test_the_tables_compare_with_the_first_line_and_with_the_line_that_is_added_to() -> None:
    runs = [run("sync", 1, [8, 8]), run("tail", 1, [4, 4]), run("stream", 1, [2, 6])]
    first, times, figures = report([SYNC, TAIL, STREAM], runs, period=2).split("\n\n")
    assert first.splitlines()[2:] == [
        "| plain | 8.0 | 4.00 | 1 |  | 1 | 1 |",
        "| + tail batching | 4.0 | 2.00 | 2.00 | 2.00 | 2.00 | 1 |",
        "| + stream trainer | 4.0 | 2.00 | 2.00 | 1.00 | 2.00 | 1 |",
    ]
    assert (
        times.splitlines()[2]
        == "| plain | 4.00 | 0.00 | 4.00 | 0.00 | 0.00 | 0.00 | 8.00 | 4.00 | 0.25 | 0.50 |"
    )
    assert figures.splitlines()[4].startswith("| + stream trainer | 1000 | 100 |")


def test_variants_without_a_run_have_no_line() -> None:
    table = report([SYNC, TAIL, STREAM], [run("sync", 1, [8]), run("stream", 1, [2])], period=1)
    assert "+ tail batching" not in table
    assert "| + stream trainer | 2.0 | 1.00 | 4.00 |  | 4.00 | 1 |" in table


def test_every_variant_is_a_configuration_and_adds_to_another() -> None:
    jobs = {job.variant: job for job in plan("smollm2-mixed", list(VARIANTS), 5, 1)}
    assert all(one.over in VARIANTS or name == "sync" for name, one in VARIANTS.items())
    assert {job.config.seed for job in jobs.values()} == {1}
    assert [
        jobs[name].config.stream_trainer.enabled for name in ("planner", "stream", "overlap")
    ] == [False, True, True]
    assert {
        name: jobs[name].config.rewards["code"].timeout.floor_s
        for name in ("sync", "tail", "reward")
    } == {  # type: ignore[union-attr]
        "sync": 30,
        "tail": 30,
        "reward": 2,
    }


def test_levels_are_compared_at_equal_answers() -> None:
    jobs = {
        job.variant: job.config for job in plan("smollm2-mixed", list(LEVELS), 5, 1, (), LEVELS)
    }
    batch = jobs["multilevel"].batch
    for name in ("unbiased", "multilevel"):
        shape = jobs[name].scheduling.algebra(batch).rounds[0]
        assert shape.launch_per_prompt == batch.responses_per_prompt
    assert jobs["multilevel"].scheduling.algebra(batch).period_steps == 9
    streams = jobs["stream"].stream_trainer.model_copy(update={"rule": "devices"})
    assert jobs["multilevel"].stream_trainer == streams


def test_the_variants_with_a_stream_trainer_have_that_of_the_presets() -> None:
    for variant, preset in (("stream", "rollpacker-mixed"), ("overlap", "overlap")):
        config = job_of("smollm2-mixed", variant, 5, 1).config
        assert config.stream_trainer == RunConfig.model_validate({"preset": preset}).stream_trainer
        assert (
            config.scheduling.kind == RunConfig.model_validate({"preset": preset}).scheduling.kind
        )


def test_a_task_without_programs_and_synchronous_rounds_are_spared_what_is_not_theirs() -> None:
    eta = "scheduling.response_overprovision=1.5"
    assert job_of("tiny", "sync", 5, 1, [eta]).config.scheduling.kind == "sync"
    assert job_of("tiny", "tail", 5, 1, [eta]).config.scheduling.response_overprovision == 1.5  # type: ignore[union-attr]


def test_a_setting_of_the_users_outweighs_the_variants() -> None:
    again = "scheduling.dynamic_sampling=0.5"
    for variant in ("sync", "tail"):
        assert job_of("smollm2", variant, 5, 1, [again]).config.scheduling.dynamic_sampling == 0.5
        assert job_of("smollm2", variant, 5, 1).config.scheduling.dynamic_sampling == 0


def test_a_speed_up_per_trained_token_counts_what_was_trained() -> None:
    fast = run("tail", 1, [4, 4])
    assert block_costs(fast, 2, trained_tokens) == {(1, 0): 8 / 200}


def test_repeats_rotate_and_have_seeds_of_their_own() -> None:
    jobs = list(plan("tiny", ["sync", "tail", "stream"], 5, 3))
    assert [job.run_name for job in jobs] == [
        *("sync-r1", "tail-r1", "stream-r1"),
        *("tail-r2", "stream-r2", "sync-r2"),
        *("stream-r3", "sync-r3", "tail-r3"),
    ]
    assert [job.config.seed for job in jobs[::3]] == [1, 2, 3]


def keep(out: Path, job: Job, num_steps: int) -> None:
    """A run as training leaves it behind."""
    store = Store.open(str(out)).child(job.run_name)
    config = job.config.model_dump(mode="json", exclude={"resume"})
    write_manifest(
        store,
        RunManifest(
            run_id=job.run_name,
            created="",
            config=config,
            packages={},
            git_sha=None,
            mlflow_run_id=None,
        ),
    )
    for step in range(1, num_steps + 1):
        commit_step(store, commit(step, 2.0 * step, 4 * step, reward=0.25 * step))


def test_a_finished_run_is_not_run_again_and_an_unfinished_one_is(tmp_path: Path) -> None:
    job = job_of("tiny", "sync", 2, 1)
    assert not is_finished(tmp_path, job)
    keep(tmp_path, job, 1)
    assert not is_finished(tmp_path, job)
    keep(tmp_path, job, 2)
    assert is_finished(tmp_path, job)


def test_a_run_of_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    keep(tmp_path, job_of("tiny", "sync", 2, 1), 2)
    with pytest.raises(
        ValueError,
        match=(
            r"--out must be a new directory for another measurement, .*sync-r1 has other settings"
        ),
    ):
        is_finished(tmp_path, job_of("tiny", "sync", 2, 1, ["sampling.max_response_tokens=32"]))


def test_what_is_finished_is_measured_and_drawn(tmp_path: Path) -> None:
    for repeat in (1, 2):
        keep(tmp_path, job_of("tiny", "sync", 2, repeat), 2)
    keep(tmp_path, job_of("tiny", "tail", 2, 1), 1)
    shutil.copytree(tmp_path / "sync-r1", tmp_path / "sync-r1-old")  # somebody's copy
    runs = measured(tmp_path, ["sync", "tail"])
    assert [(one.variant, one.repeat, len(one.steps)) for one in runs] == [
        ("sync", 1, 2),
        ("sync", 2, 2),
    ]
    assert curves(TAIL, runs) is None
    drawn = curves(SYNC, runs)
    assert drawn is not None
    assert (drawn.samples, drawn.elapsed_s, drawn.reward) == ([4, 8], [2, 6], [0.25, 0.5])
    assert drawn.stages_s["rollout"] == 1.5
    assert ablation_plot([drawn, replace(drawn, label="tail")]).startswith(b"\x89PNG")
