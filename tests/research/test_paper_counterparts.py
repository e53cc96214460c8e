"""The papers' experiments on real devices: what is run on which, and what stays simulated."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from artifacts.commit import RunManifest, StepCommit, commit_step, write_manifest
from artifacts.records import WeightsRef
from artifacts.store import Store
from research.ablations import ablation, elastic_course
from research.ablations.comparisons import COMPARISONS
from research.ablations.eta_variants import ETA
from research.paper.counterparts import (
    COUNTERPARTS,
    Order,
    Wanted,
    chosen_devices,
    course_order,
    has_counterpart,
    orders,
)
from research.paper.real import course_figures, figures_of, run_command
from research.paper.registry import EXPERIMENTS

OF_DEPLOYMENTS = ("table2", "rlhfuse", "fig10", "fig11", "fig13", "table3", "table4", "polyrl")


def wanted(root: Path, preset: str = "", *settings: str) -> Wanted:
    return Wanted(preset=preset, settings=settings, periods=2, repeats=1, root=root)


def test_counterparts_are_of_experiments_and_have_variants_that_there_are() -> None:
    assert set(COUNTERPARTS) < set(EXPERIMENTS)
    for counterpart in COUNTERPARTS.values():
        assert set(counterpart.variants) <= set(COMPARISONS[counterpart.comparison].variants)


def test_every_experiment_of_a_script_has_one_on_cores() -> None:
    assert all(has_counterpart(name, "cores") for name in OF_DEPLOYMENTS)
    assert [name for name in OF_DEPLOYMENTS if not has_counterpart(name, "gpus")] == ["polyrl"]


@pytest.mark.parametrize(
    ("devices", "num_gpus", "chosen"),
    [
        ("auto", 0, None),
        ("auto", 2, "gpus"),
        ("simulated", 8, None),
        ("cores", 8, "cores"),
        ("gpus", 1, "gpus"),
    ],
)
def test_devices_are_real_where_there_are_some_or_they_are_asked_for(
    devices: Any, num_gpus: int, chosen: str | None
) -> None:
    assert chosen_devices(devices, num_gpus) == chosen


def test_gpus_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="devices=gpus needs a GPU that torch sees, got none"):
        chosen_devices("gpus", 0)


def test_experiments_of_a_comparison_share_their_runs(tmp_path: Path) -> None:
    (order,) = orders(["table2", "rlhfuse", "fig10"], "cores", 0, wanted(tmp_path))
    assert order.variants == ("sync", "tail", "reward", "planner", "stream", "overlap")
    assert (order.preset, order.period) == ("smollm2-mixed", 5)
    options = ablation._parser().parse_args(order.command[3:])
    assert (options.steps, options.repeats) == (10, 1)
    assert tuple(options.variants) == order.variants
    assert options.out.parent == tmp_path


def test_a_sweep_of_eta_has_whole_periods_of_all(tmp_path: Path) -> None:
    (order,) = orders(["fig11"], "cores", 0, wanted(tmp_path))
    assert order.variants == tuple(ETA)
    assert order.period == 45
    assert not order.left_out


@pytest.mark.parametrize(("num_gpus", "preset"), [(1, "one-gpu"), (8, "eight-gpu")])
def test_runs_on_gpus_have_the_users_model(num_gpus: int, preset: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "questions.jsonl").touch()
    given = (f"model.path={tmp_path}/model", f"task.path={tmp_path}/questions.jsonl")
    (order,) = orders(["table2"], "gpus", num_gpus, wanted(tmp_path, "", *given))
    assert order.preset == preset
    assert order.command[-4:] == ["--set", given[0], "--set", given[1]]
    # a device that does both cannot be freed while it generates
    assert set(order.left_out) == ({"stream"} if num_gpus == 1 else set())
    with pytest.raises(ValueError, match=r"settings must name task.path with preset"):
        orders(["table2"], "gpus", num_gpus, wanted(tmp_path, "", given[0]))


def test_a_preset_that_no_variant_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is with none"):
        orders(["fig11"], "cores", 0, wanted(tmp_path, "tiny", "sampling.top_p=0.5"))


def test_elastic_workers_come_and_go_on_cores(tmp_path: Path) -> None:
    order = course_order(wanted(tmp_path, "tiny-elastic", "seed=3"))
    options = elastic_course._parser().parse_args(order.command[3:])
    assert (options.preset, options.set, options.json) == (
        "tiny-elastic",
        ["seed=3"],
        tmp_path / "polyrl" / "course.json",
    )
    order.out.mkdir()
    read = {"step_s": {"with elastic workers": 2.0, "static": 3.0}, "reward_difference": 0.1}
    order.figures.write_text(json.dumps(read))
    assert course_figures(order) == {
        "real/polyrl/elastic/step_s": 2.0,
        "real/polyrl/static/step_s": 3.0,
        "real/polyrl/speed_up": 1.5,
        "real/polyrl/reward_difference": 0.1,
    }


def keep(folder: Path, num_steps: int, step_s: float) -> None:
    """A run that is over."""
    store = Store.open(str(folder))
    config = {"num_steps": num_steps, "evaluation": {"num_prompts": 2}}
    write_manifest(
        store,
        RunManifest(
            run_id=folder.name,
            created="",
            config=config,
            packages={},
            git_sha=None,
            mlflow_run_id=None,
        ),
    )
    for step in range(1, num_steps + 1):
        commit_step(
            store,
            StepCommit(
                step=step,
                kind="sync",
                weights=WeightsRef(version=step, path="", digest=""),
                queue={},
                seeds={},
                counters={"prompts_trained": 4 * step},
                metrics={"time/step_s": step_s, "time/rollout_s": step_s / 2},
                timings={"started_s": step * step_s, "finished_s": (step + 1) * step_s},
                checkpoint=None,
            ),
        )


def test_figures_of_real_runs_are_seconds_and_speed_ups_over_the_first(tmp_path: Path) -> None:
    keep(tmp_path / "sync-r1", 5, 6.0)
    keep(tmp_path / "tail-r1", 5, 4.0)
    order = Order(
        comparison="rollpacker",
        preset="tiny",
        variants=("sync", "tail"),
        left_out={},
        periods=1,
        repeats=1,
        settings=(),
        out=tmp_path,
    )
    figures = figures_of(order)
    assert figures["real/rollpacker/tail/step_s"] == pytest.approx(4.0)
    assert figures["real/rollpacker/tail/rollout_s"] == pytest.approx(2.0)
    assert figures["real/rollpacker/tail/speed_up"] == pytest.approx(1.5)


async def test_a_command_is_told_line_by_line() -> None:
    told: list[str] = []
    await run_command([sys.executable, "-c", "print('one'); print('two')"], told.append)
    assert told == ["one", "two"]


async def test_a_command_that_fails_says_its_last_words() -> None:
    command = [sys.executable, "-c", "print('no room'); raise SystemExit(2)"]
    with pytest.raises(RuntimeError, match="ended with 2: no room"):
        await run_command(command, lambda line: None)
