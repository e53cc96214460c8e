"""The script of elastic workers that come and go: what it waits for, and what it does then."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from artifacts.attempt_log import TokenLog
from artifacts.layout import TOKENS
from artifacts.new_tokens import NewTokens
from artifacts.records import VersionSpan
from artifacts.reports.elastic_workers import ElasticWorkerRow, keep_elastic_workers
from artifacts.store import Store
from research.ablations.course_figures import what_is_wrong
from research.ablations.elastic_course import CUT_S, ScriptedCourse
from research.kills.elastic_pool import ElasticPool, WorkerPlace
from research.kills.injected_run import InjectedRun


class Park:
    """Two places, and what was done to them."""

    def __init__(self) -> None:
        self.places = [
            WorkerPlace(name="elastic-worker-0", core=0),
            WorkerPlace(name="elastic-worker-1", core=1),
        ]
        self.done: list[tuple[str, str]] = []

    def fill(self, place: WorkerPlace) -> None:
        self.done.append(("fill", place.name))

    def renew(self) -> None:
        pass

    def drain(self, place: WorkerPlace) -> None:
        self.done.append(("drain", place.name))

    def kill(self, place: WorkerPlace) -> None:
        self.done.append(("kill", place.name))

    def cut(self, place: WorkerPlace, for_s: float) -> None:
        assert for_s == CUT_S
        self.done.append(("cut", place.name))


class Scene:
    """A run of which a test says how far it is, and who is there."""

    def __init__(self, folder: Path) -> None:
        self.run = SimpleNamespace(committed=1, stage="training", folder=folder)
        self.park = Park()
        self.course = ScriptedCourse(cast("InjectedRun", self.run), cast("ElasticPool", self.park))

    def present(self, *names: str) -> None:
        lines = [
            ElasticWorkerRow(
                name=f"{name}.g1",
                worker=name,
                price_class="spot",
                devices=("core",),
                state="present",
                since_s=0.0,
                until_s=None,
                version=1,
                reason="",
            )
            for name in names
        ]
        keep_elastic_workers(Store.open(str(self.run.folder)), lines)

    def tell(self, engine: str, told_s: float) -> None:
        told = NewTokens(
            prompt_id=f"{engine} {told_s}",
            index=0,
            attempt=1,
            engine=engine,
            num_before=0,
            token_ids=(7,),
            logprobs=(-0.5,),
            versions=(VersionSpan(version=1, num_tokens=1),),
            submitted_s=told_s,
            first_token_s=told_s,
            reported_s=told_s,
        )
        log = TokenLog(self.run.folder / TOKENS)
        log.write([told])
        log.close()

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.course.look()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_elastic_workers_come_and_go_as_the_script_has_it(scene: Scene) -> None:
    park, run = scene.park, scene.run
    scene.look()
    assert park.done == []  # no round is open
    run.stage = "rollout"
    scene.look(3)
    assert park.done == [("fill", "elastic-worker-0")]
    scene.present("elastic-worker-0")
    scene.look(3)
    assert len(park.done) == 1  # no step was played with it
    scene.tell("elastic-worker-0.g1", time.time() - 60)
    run.committed = 2
    scene.look(2)
    scene.tell("engine-0", time.time() + 60)
    scene.look()
    assert len(park.done) == 1  # it has told nothing since, another engine has
    scene.tell("elastic-worker-0.g1", time.time() + 60)
    scene.look()
    assert park.done[-1] == ("drain", "elastic-worker-0")
    scene.look(4)
    assert park.done[-1] == (
        "drain",
        "elastic-worker-0",
    )  # the run has not said yet that it is gone
    scene.present()
    scene.look(4)
    assert park.done[-1] == ("fill", "elastic-worker-0")
    scene.present("elastic-worker-0")
    scene.look(2)
    scene.tell("elastic-worker-0.g1", time.time() + 120)
    scene.look(2)
    assert park.done[-1] == ("kill", "elastic-worker-0")
    scene.present()
    run.committed = 4
    scene.look(2)
    assert park.done[-1] == ("kill", "elastic-worker-0")
    run.committed = 5  # the steps 4 and 5 were whole ones without anybody
    scene.look()
    run.committed = 7
    scene.look()
    assert park.done[-1] == ("fill", "elastic-worker-1")
    scene.present("elastic-worker-1")
    scene.look(2)
    scene.tell("elastic-worker-1.g1", time.time() + 60)
    scene.look()
    assert park.done[-1] == ("cut", "elastic-worker-1")
    scene.present()
    scene.look()
    scene.present("elastic-worker-1")
    scene.look()
    assert not scene.course.is_over
    run.committed = 8
    scene.look()
    assert scene.course.is_over
    assert [act.step for act in scene.course.acts][-2:] == [8, 9]


def test_a_script_that_is_cut_short_is_wrong() -> None:
    figures = {"wrong": ["a prompt is lost"], "is_whole": False}
    first, second = what_is_wrong(figures)
    assert first == "a prompt is lost"
    assert "raise --steps" in second
    assert what_is_wrong({"wrong": [], "is_whole": True}) == []
