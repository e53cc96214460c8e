"""What seeding learns from a real step, and what it keeps for the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.records import Span
from artifacts.reports.summary import seeding_summary
from artifacts.reports.tracking import RunTracker
from artifacts.store import Store
from flows.config.run_config import RunConfig
from flows.run import OpenRun
from flows.seeding_windows import SeedingWindows, class_of
from tasks.elastic.worker_events import AdmittedWorker
from tasks.learner.reports import GradientReport
from tasks.metrics.report import StepReport, seeding_times
from tasks.rounds.report import WindowRecord, close_round, read_round
from tasks.run.run_context import StepPlan
from tasks.scheduling.seeding import PlannedWindow, SeedingConfig, SeedingTimes
from tests.unit.plan_factories import CONTEXT, make_report, make_step_plan
from tests.unit.report_factories import make_commit
from tests.unit.worker_factories import make_elastic_worker

ELASTIC_WORKER = make_elastic_worker("spot", since_s=0.0, until_s=None)
HERE = frozenset({ELASTIC_WORKER.name})
# the step goes from 100 to 130; its round begins at 101, takes 15 s, and its own device is free
# after 6 s of it
WINDOW = WindowRecord(
    began_s=101.0, window_s=6.0, closed_s=5.9, is_early=False, freed_s=(6.0,), took_s=15.0
)


def generated(actor: str, start_s: float, end_s: float) -> Span:
    return Span(device=f"{actor}/cpu", actor=actor, kind="rollout", start_s=start_s, end_s=end_s)


def trained(start_s: float, end_s: float) -> Span:
    return Span(device="cpu:0", actor="learner-0", kind="train", start_s=start_s, end_s=end_s)


def seeded(
    window: WindowRecord | None = WINDOW,
    begins_with: frozenset[str] = HERE,
    joined: Sequence[str] = (ELASTIC_WORKER.name,),
    started_s: float = 100.0,
    plan: StepPlan | None = None,
) -> StepReport:
    """A step in which an elastic worker generates from 103 to 115, and the learner trains for 4 s
    in the round and for 6 s after it."""
    spans = (
        generated("engine-0", 101.5, 106.5),
        *(generated(name, 103.0, 115.0) for name in joined),
    )
    planned = replace(
        plan or make_step_plan(),
        window=PlannedWindow(window_s=WINDOW.window_s, workers=begins_with),
    )
    made = make_report(spans, started_s=started_s, finished_s=130.0, plan=planned)
    devices = {name: (f"{name}/cpu",) for name in joined}
    rollout = replace(made.rollout, started_s=101.5, window=window, joined=devices)
    gradients = GradientReport(ranks=(), spans=(trained(110.0, 114.0), trained(117.0, 123.0)))
    return replace(made, rollout=rollout, gradients=gradients)


def test_a_step_tells_who_waited_for_whom() -> None:
    assert seeding_times(seeded(), HERE) == SeedingTimes(
        window_s=6.0,
        train_wait_s=15.0 - 6.0 - 4.0,  # until the round was over at 116
        remote_wait_s=15.0,  # from 115 on
        remote_s=12.0,
        train_s=10.0,
        num_own=1,
        num_workers=1,
        is_steady=True,
    )


def test_a_window_that_stayed_open_was_as_long_as_the_round() -> None:
    times = seeding_times(seeded(replace(WINDOW, closed_s=None, freed_s=())), HERE)
    assert times is not None
    assert (times.window_s, times.train_wait_s) == (15.0, 0.0)


@pytest.mark.parametrize(
    ("begins_with", "joined", "staying"),
    [
        (frozenset(), (ELASTIC_WORKER.name,), HERE),
        (HERE, (ELASTIC_WORKER.name,), frozenset()),
        (HERE, (ELASTIC_WORKER.name, "late.g1"), HERE),
        (HERE, (ELASTIC_WORKER.name,), frozenset({"spot.g2"})),
    ],
)
def test_a_step_in_which_somebody_came_or_went_is_not_steady(
    begins_with: frozenset[str], joined: tuple[str, ...], staying: frozenset[str]
) -> None:
    times = seeding_times(seeded(begins_with=begins_with, joined=joined), staying)
    assert times is not None
    assert not times.is_steady


def test_nothing_is_learned_without_an_elastic_worker_or_from_two_attempts() -> None:
    assert seeding_times(seeded(joined=()), HERE) is None
    assert seeding_times(seeded(window=None), HERE) is None
    assert seeding_times(seeded(started_s=103.0), HERE) is None, "its round had begun before"


def test_a_round_that_is_read_back_has_its_window() -> None:
    plan = make_step_plan(9)
    store = Store.open("memory://seeding").child("run")
    close_round(store, plan.step, seeded().rollout)
    read = read_round(store, plan.step)
    assert read is not None
    assert read.window == WINDOW


def opened(root: Path, commits: Sequence[object] = (), **seeding: object) -> OpenRun:
    kept = SeedingConfig.model_validate({"enabled": True} | seeding)
    config = RunConfig.model_validate({"preset": "tiny-elastic", "seeding": kept})
    return OpenRun(
        config=config,
        context=replace(CONTEXT, artifact_root=str(root)),
        store=Store.open(str(root)).child("run"),
        tracker=RunTracker(""),
        commits=tuple(commits),  # type: ignore[arg-type]
        links={},
    )


def window_of(
    windows: SeedingWindows, elastic_workers: Sequence[AdmittedWorker], kind: str = "short"
) -> float | None:
    planned = windows.plan(elastic_workers, kind)
    assert planned is not None
    assert planned.workers == {elastic_worker.name for elastic_worker in elastic_workers}
    return planned.window_s


def test_what_a_step_teaches_is_kept_for_steps_resumes_and_later_runs(tmp_path: Path) -> None:
    run = opened(tmp_path)
    windows = SeedingWindows(run)
    assert window_of(windows, [ELASTIC_WORKER]) is None, "nothing is known"
    record = windows.enter(make_commit(1), seeded(), [ELASTIC_WORKER])
    found = 6.0 + (5.0 - 15.0) / 3
    assert window_of(windows, [ELASTIC_WORKER]) == pytest.approx(found)
    assert record.seeding["window_s"] == record.metrics["seeding/next_window_s"] == found
    assert record.metrics["seeding/elastic_workers_worth_holding"] == pytest.approx(
        (12.0 + 6.0) / 10.0
    )
    assert record.metrics["reward/mean"] == 0.5, "beside what it had"
    resumed = SeedingWindows(opened(tmp_path, [record]))
    assert window_of(resumed, []) == pytest.approx(found)
    later = SeedingWindows(opened(tmp_path))
    assert window_of(later, [ELASTIC_WORKER]) == pytest.approx(found)
    assert window_of(later, [ELASTIC_WORKER, replace(ELASTIC_WORKER, name="other.g1")]) is None, (
        "of one alone"
    )
    assert window_of(later, [replace(ELASTIC_WORKER, price_class="gold")]) is None, (
        "of its class alone"
    )
    assert window_of(SeedingWindows(opened(tmp_path, remembers=False)), [ELASTIC_WORKER]) is None


def test_a_window_is_that_of_rounds_of_its_kind(tmp_path: Path) -> None:
    windows = SeedingWindows(opened(tmp_path))
    short = windows.enter(make_commit(1), seeded(), [ELASTIC_WORKER])
    assert window_of(windows, [ELASTIC_WORKER], "long") is None, (
        "short rounds teach nothing of long ones"
    )
    later = seeded(replace(WINDOW, window_s=None), plan=make_step_plan(2, kind="long"))
    lasting = replace(later, finished_s=124.0)  # elastic workers waited for 9 s and not for 15
    long = windows.enter(make_commit(2, kind="long"), lasting, [ELASTIC_WORKER])
    found = {kind: window_of(windows, [ELASTIC_WORKER], kind) for kind in ("short", "long")}
    assert found["short"] == short.seeding["window_s"] == pytest.approx(6.0 - 10.0 / 3)
    assert found["long"] == long.seeding["window_s"] == pytest.approx(6.0 - 4.0 / 3)
    resumed = SeedingWindows(opened(tmp_path, [short, long], remembers=False))
    assert {kind: window_of(resumed, [], kind) for kind in found} == found


def test_a_step_without_elastic_workers_says_so_and_teaches_nothing(tmp_path: Path) -> None:
    windows = SeedingWindows(opened(tmp_path))
    still_open = replace(WINDOW, window_s=None, closed_s=None, freed_s=())
    alone = seeded(still_open, begins_with=frozenset(), joined=())
    record = windows.enter(make_commit(1), alone, [])
    told = {name: value for name, value in record.metrics.items() if name.startswith("seeding/")}
    assert told == {"seeding/own_s": 15.0, "seeding/closed": 0.0, "seeding/closed_early": 0.0}
    assert not (tmp_path / "seeding.json").exists()


def test_a_run_that_does_not_seed_has_no_window(tmp_path: Path) -> None:
    windows = SeedingWindows(opened(tmp_path, enabled=False))
    assert windows.plan([ELASTIC_WORKER], "short") is None
    assert windows.enter(make_commit(1), seeded(), [ELASTIC_WORKER]) == make_commit(1)


def test_elastic_workers_are_alike_with_one_price_and_as_many_devices_of_a_kind() -> None:
    pair = replace(ELASTIC_WORKER, name="pair.g1", devices=("cuda:0", "cuda:1"))
    assert class_of([ELASTIC_WORKER, replace(ELASTIC_WORKER, name="other.g1")]) == "spot 1 cpu"
    assert (
        class_of([pair, ELASTIC_WORKER])
        == class_of([ELASTIC_WORKER, pair])
        == "spot 1 cpu + spot 2 cuda"
    )
    assert class_of([]) == ""


@pytest.mark.parametrize(
    ("window", "told"),
    [
        (WINDOW, "seeding: own engines generated for 6.0 s, until their window of 6.0 s was over"),
        (replace(WINDOW, is_early=True), "for 6.0 s, until they had nothing left to do"),
        (replace(WINDOW, closed_s=None, freed_s=()), "for 15.0 s, to the end of the round"),
    ],
)
def test_the_terminal_says_how_the_window_ended(
    tmp_path: Path, window: WindowRecord, told: str
) -> None:
    record = SeedingWindows(opened(tmp_path)).enter(
        make_commit(1), seeded(window), [ELASTIC_WORKER]
    )
    assert told in seeding_summary([{}, record.metrics])
    assert "elastic workers worth holding" in seeding_summary([record.metrics])
    assert seeding_summary([record.metrics, {}]) == seeding_summary([]) == ""
