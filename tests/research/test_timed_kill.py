"""Kills at drawn moments: when somebody is struck, what is kept of that, and what is told of a run
whose weights, records, exit codes or status are not what they must be."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.status import pulse
from artifacts.store import Store
from research.kills.injected_records import Findings
from research.kills.injected_run import InjectedRun, RunOrder
from research.kills.injections import Victim
from research.kills.injector import Told
from research.kills.kill_kinds import KINDS, SMALL, STAGES
from research.kills.timed_kill import STEPS, KillMoment, Met, TimedKill, judged

LEARNER, FLOW = (next(kind for kind in KINDS if kind.name == name) for name in ("learner", "flow"))
WHOLE = {step: f"weights {step}" for step in (1, 2, 3)}
WELL = Told(kills=Counter({("learner killed", "training"): 1}))
MET = Met(at_s=0.0, where="step 2, training", num_closed=2, committed={1: WHOLE[1]})


@pytest.fixture
def run(tmp_path: Path) -> InjectedRun:
    """A run that has begun a first step."""
    order = RunOrder(root=tmp_path, name="run", preset="tiny-sync", settings=SMALL)
    run = InjectedRun(order, {}, tuple)
    write(run, "plans/00001.json")
    return run


def write(run: InjectedRun, name: str, digest: str = "") -> None:
    path = run.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"weights": {"digest": digest}}))


def ended(run: InjectedRun, *codes: int) -> InjectedRun:
    """The same with all steps, after attempts that ended so."""
    for step, digest in WHOLE.items():
        write(run, f"steps/{step:05d}.json", digest)
    for code in codes:
        command = [
            sys.executable,
            "-c",
            f"import os; os.kill(0, 9) if {code} < 0 else exit({code})",
        ]
        run.attempts.append(subprocess.Popen(command, start_new_session=True))
        run.flow.wait()
    with pulse(Store.open(str(run.folder))):
        pass
    return run


def test_a_victim_is_there_from_its_moment_on_and_struck_once(run: InjectedRun) -> None:
    struck: list[str] = []
    victim = Victim(weight=1, find=lambda run: ["one"], strike=struck.append)
    timed = TimedKill(victim, KillMoment(step=2, stage="training", delay_s=0.0))
    found = timed.of(run)
    write(run, "rounds/00001.json")
    write(run, "steps/00001.json", "weights 1")
    assert found.find(run) == []
    write(run, "plans/00002.json")
    write(run, "rounds/00002.json")
    assert found.find(run) == ["one"]
    found.strike("one")
    assert struck == ["one"]
    assert found.find(run) == []
    (met,) = timed.met
    assert (met.where, met.num_closed, met.committed) == ("step 2, training", 2, {1: WHOLE[1]})


@pytest.mark.parametrize("stage", STAGES)
def test_a_moment_that_nobody_saw_is_reached_with_the_commit(run: InjectedRun, stage: str) -> None:
    moment = KillMoment(step=1, stage=stage, delay_s=0.0)
    assert moment.is_reached(run) == (stage == "rollout")
    write(run, "steps/00001.json")
    assert moment.is_reached(run)


def test_a_seed_draws_moments_of_every_step_and_stage() -> None:
    draws, again = random.Random("0/learner/0"), random.Random("0/learner/0")
    moments = [KillMoment.drawn(draws, STAGES) for _ in range(200)]
    assert moments == [KillMoment.drawn(again, STAGES) for _ in range(200)]
    assert {(each.step, each.stage) for each in moments} == {(a, b) for a in STEPS for b in STAGES}


def test_a_run_that_went_on_as_it_must_is_well(run: InjectedRun) -> None:
    outcome = judged(LEARNER, ended(run, 0), WELL, [MET], WHOLE)
    assert outcome.is_well
    assert outcome.num_compared == 3
    assert outcome.seconds > 0
    inexact = replace(LEARNER, job=replace(LEARNER.job, is_exact=False))
    assert judged(inexact, run, WELL, [MET], WHOLE | {3: "others"}).num_compared == 2


def test_a_resumed_run_is_well(run: InjectedRun) -> None:
    assert judged(FLOW, ended(run, -9, 0), WELL, [MET], WHOLE).is_well


@pytest.mark.parametrize(
    ("told", "met", "codes", "sentence"),
    [
        (Told(), [], (0,), "1 of 1 injections found nobody in time"),
        (WELL, [MET], (-9, 0), "the exit codes must be (0,), they are (-9, 0)"),
        (replace(WELL, stops=["no room"]), [MET], (0,), "the run said: no room"),
        (replace(WELL, hangs=["stands still"]), [MET], (0,), "stands still"),
        (replace(WELL, findings=Findings(lost=["a prompt"])), [MET], (0,), "a prompt"),
        (
            WELL,
            [replace(MET, committed={1: WHOLE[1], 4: "gone"})],
            (0,),
            "steps [4] were committed before the kill and are not what they were",
        ),
    ],
)
def test_what_must_not_be_is_told(
    run: InjectedRun, told: Told, met: list[Met], codes: tuple[int, ...], sentence: str
) -> None:
    assert judged(LEARNER, ended(run, *codes), told, met, WHOLE).wrong == (sentence,)


def test_other_weights_and_what_stays_are_told(run: InjectedRun) -> None:
    told = replace(WELL, leftovers={"engine-0 (7)"}, zombies={"process 8"})
    outcome = judged(LEARNER, ended(run, 0), told, [MET], WHOLE | {2: "others", 4: "missing"})
    assert outcome.different == (2, 4)
    assert outcome.left_over == ("engine-0 (7)", "process 8")
    assert not outcome.is_well


def test_a_run_without_the_status_of_a_finished_one_is_told(run: InjectedRun) -> None:
    ended(run, 0)
    (run.folder / "status.json").unlink()
    (sentence,) = judged(LEARNER, run, WELL, [MET], WHOLE).wrong
    assert sentence == "the status must be finished, it is None"
