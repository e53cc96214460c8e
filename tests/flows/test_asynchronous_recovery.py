"""Kill -9 of the flow, of an engine, of a learner and of the coordinators while rounds overlap
training and requests are in flight across a version change: whatever dies, every prompt is trained
once and within the bound."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.flows.asynchronous_records import check, check_evaluation, commits, num_mixed
from tests.flows.conftest import (
    ENDS_WITHIN_S,
    EXPERTS,
    KINDS_WITH_EXPERTS,
    SIMULATED,
    TRAINED,
    Launcher,
    Settings,
    moment,
    of_both_kinds,
    wait_for,
    worker_of,
)
from tests.flows.train_origin import Train

pytestmark = pytest.mark.flow
of_every_kind = pytest.mark.parametrize("trained", [*TRAINED, (EXPERTS,)], ids=KINDS_WITH_EXPERTS)

RATIO = 1.5
SETTINGS = (
    *SIMULATED,
    f"scheduling.async_ratio={RATIO}",
    'cluster.roles="rollout: 0-1, learner: 1"',
    "keep.checkpoint_every_steps=2",
    # generation takes longer than training: requests run whenever weights are published
    "engine.profile.step_s=0.05",
    "engine.profile.max_batch=6",
)


def lose_workers(process: Train, run: Path, first: str) -> None:
    """Kill an engine when this file is there, later the learner while its weights are published,
    and the coordinators; the run ends well all the same."""
    for name, victim in (
        (first, "engine-0"),
        ("00004.safetensors", "learner-0"),
        ("steps/00005.json", "control"),
    ):
        wait_for(moment(run, name), process)
        worker_of(process, victim).send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err


@of_every_kind
def test_a_flow_that_is_killed_while_steps_overlap_resumes(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    run, num_steps, resume = tmp_path / "overlapped-flow-kills", 8, ""
    for name in ("rounds/00002.json", "00003.safetensors"):
        settings = () if resume else (*SETTINGS, *trained, f'run_name="{run.name}"')
        steps = f"num_steps={num_steps}"
        process = launcher.start(tmp_path, *settings, steps, preset="tiny-async", resume=resume)
        wait_for(moment(run, name), process)
        before = commits(run)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        resume = run.name
        assert commits(run)[: len(before)] == before
    finished = launcher.run(tmp_path, f"num_steps={num_steps}", preset="tiny-async", resume=resume)
    assert finished.code == 0, finished.err
    check(run, RATIO, num_steps)
    assert num_mixed(run, num_steps) > 0


@of_every_kind
def test_workers_that_are_killed_while_steps_overlap_are_got_over(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    """One of two engines while a step trains and a round goes on, the learner while its weights are
    being published, and the coordinators of both rounds."""
    run, num_steps = tmp_path / "overlapped-worker-kills", 9
    settings = (*SETTINGS, *trained, f"num_steps={num_steps}", f'run_name="{run.name}"')
    process = launcher.start(tmp_path, *settings, preset="tiny-async")
    lose_workers(process, run, "rounds/00002.json")
    check(run, RATIO, num_steps)
    assert num_mixed(run, num_steps) > 0
    assert sum(commit["metrics"]["round/attempts"] > 1 for commit in commits(run)) >= 3


@of_both_kinds
def test_what_is_killed_where_devices_generate_and_train_in_turn_goes_on_with_what_was_stopped(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    """The flow when a round has closed, an engine and the coordinators in rounds that go on with
    what one before them left, the learner while it saves: what was recorded is gone on with."""
    run, num_steps = tmp_path / "in-turn-kills", 9
    asked = ("scheduling.at_update=pause", f"num_steps={num_steps}", f'run_name="{run.name}"')
    process = launcher.start(tmp_path, *SETTINGS, *trained, *asked, preset="tiny-async")
    wait_for(moment(run, "rounds/00002.json"), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    process = launcher.start(
        tmp_path, f"num_steps={num_steps}", preset="tiny-async", resume=run.name
    )
    lose_workers(process, run, "steps/00003.json")
    check(run, RATIO, num_steps)
    assert num_mixed(run, num_steps) > 0
    assert sum(commit["metrics"]["round/attempts"] > 1 for commit in commits(run)) >= 2


@of_both_kinds
def test_what_dies_beside_an_evaluation_leaves_it_of_one_version(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    """An engine while the weights of step 2 are evaluated, then the flow in the evaluation after
    step 4: each is made again, with the weights that it is called by. 48 prompts are several waves:
    an evaluation of one wave may be over between two looks at its journal."""
    run, num_steps = tmp_path / "evaluation-kills", 5
    asked = ("evaluation.every_steps=2", "evaluation.num_prompts=48")
    settings = (*SETTINGS, *trained, *asked, f"num_steps={num_steps}", f'run_name="{run.name}"')
    process = launcher.start(tmp_path, *settings, preset="tiny-async")
    wait_for(moment(run, "evaluation/journal/step=00002"), process)
    worker_of(process, "engine-0").send_signal(signal.SIGKILL)
    wait_for(moment(run, "evaluation/journal/step=00004"), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(commits(run)) == 4, "no step replaces weights that are being evaluated"
    steps = f"num_steps={num_steps}"
    finished = launcher.run(tmp_path, *asked, steps, preset="tiny-async", resume=run.name)
    assert finished.code == 0, finished.err
    check(run, RATIO, num_steps)
    for step in (0, 2, 4, num_steps):
        check_evaluation(run, step, num_prompts=48)
