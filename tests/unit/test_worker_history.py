"""What elastic workers did: figures of every step, and who was there over all attempts at a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from record_factories import make_generated

from artifacts.records import Prompt, Response
from artifacts.reports.elastic_workers import (
    DeniedRequest,
    denied_requests_summary,
    elastic_worker_rows,
    elastic_workers_summary,
    keep_elastic_workers,
    read_denied_requests,
    read_elastic_workers,
)
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.elastic.worker_events import AdmittedWorker, Took
from tasks.elastic.worker_history import WorkerHistory

WORKER = AdmittedWorker(
    name="spot.g1",
    dask_name="spot",
    address="tcp://there",
    price_class="spot",
    devices=("cpu:0",),
    state="present",
    since_s=100.0,
    lease_s=20.0,
    renewed_s=100.0,
    version=1,
    joined_s=110.0,
    took=Took(build_s=8.0, pull_s=1.5, load_s=0.5),
)

NONE_MISSED = {f"elastic/missed_{limit}": 0.0 for limit in ("pull_s", "build_s", "load_s")}
PROMPT = Prompt(prompt_id="0/1", domain="test", text="", token_ids=(), gold="")


def row(engine: str, num_tokens: int) -> ResponseRow:
    generated = make_generated(token_ids=range(num_tokens), engine=engine)
    response = Response(generated=generated, score=None)
    return ResponseRow(step=1, kind="sync", prompt=PROMPT, response=response)


def history_of(name: str, workers: Sequence[AdmittedWorker]) -> WorkerHistory:
    return WorkerHistory(Store.open(f"memory://{name}"), lambda: workers)


def test_a_step_tells_who_came_who_went_and_what_they_sampled() -> None:
    workers = [
        WORKER,
        replace(WORKER, name="slow.g1", dask_name="slow", state="building", version=None),
    ]
    kept = history_of("told", workers)
    rows = [row("spot.g1", 7), row("engine-0", 5), row("spot.g1", 3)]
    assert kept.record_step(rows) == {
        "elastic/present": 1.0,
        "elastic/pull_s": 1.5,
        "elastic/tokens": 10.0,
        "elastic/joined": 1.0,
        "elastic/lost": 0.0,
        **NONE_MISSED,
    }
    workers[0] = replace(WORKER, state="gone", until_s=160.0, reason="its worker is away")
    assert kept.record_step([row("spot.g1", 2)]) == {
        "elastic/present": 0.0,
        "elastic/pull_s": 0.0,
        "elastic/tokens": 2.0,
        "elastic/joined": 0.0,
        "elastic/lost": 1.0,
        **NONE_MISSED,
    }
    assert kept.record_step([])["elastic/lost"] == 0.0
    spot, slow = kept.rows
    assert (spot.num_responses, spot.num_tokens) == (3, 12)
    assert (slow.num_responses, slow.state) == (0, "building")


def test_an_elastic_worker_whose_engine_never_came_up_is_not_lost() -> None:
    never = replace(WORKER, state="gone", version=None, reason="no memory")
    figures = history_of("never", [never]).record_step([])
    assert figures["elastic/joined"] == figures["elastic/lost"] == 0.0


def test_a_step_counts_the_limits_that_elastic_workers_have_missed() -> None:
    gone = replace(WORKER, state="gone", version=None, missed="pull_s")
    workers = [
        gone,
        replace(gone, name="b.g1", missed="load_s"),
        replace(gone, name="c.g1"),
    ]
    kept = history_of("missed", workers)
    figures = kept.record_step([])
    assert figures["elastic/missed_pull_s"] == 2.0
    assert (figures["elastic/missed_build_s"], figures["elastic/missed_load_s"]) == (0.0, 1.0)
    assert kept.record_step([])["elastic/missed_pull_s"] == 0.0


def test_the_next_attempt_at_a_run_knows_the_elastic_workers_of_the_one_before() -> None:
    before = history_of("kept", [WORKER, replace(WORKER, name="spot.g2")])
    before.record_step([row("spot.g1", 4)])
    before.save()
    now = history_of("kept", [replace(WORKER, name="spot.g3")])
    assert now.generations == {"spot": 2}
    assert [line.name for line in now.rows] == ["spot.g1", "spot.g2", "spot.g3"]
    assert now.rows[0].num_tokens == 4
    assert [line.state for line in now.rows] == ["gone", "gone", "present"]
    assert elastic_worker_rows(now.rows, now_s=130.0)[0]["there s"] == ""


def test_a_run_without_elastic_workers_keeps_nothing() -> None:
    kept = history_of("none", [])
    kept.save()
    store = Store.open("memory://none")
    assert read_elastic_workers(store) == ()
    assert elastic_workers_summary(kept.rows) == ""


def test_elastic_workers_are_told_in_a_line_and_in_rows() -> None:
    kept = history_of("shown", [WORKER])
    kept.record_step([row("spot.g1", 1234)])
    assert (
        elastic_workers_summary(kept.rows) == "elastic workers: 1 present (spot.g1), 1,234 tokens"
    )
    (shown,) = elastic_worker_rows(kept.rows, now_s=130.0)
    assert shown["there s"] == 30
    assert (shown["build s"], shown["pull s"], shown["load s"]) == (8.0, 1.5, 0.5)
    assert (shown["responses"], shown["tokens"], shown["why"]) == (1, 1234, "")
    store = Store.open("memory://shown")
    keep_elastic_workers(store, kept.rows)
    assert read_elastic_workers(store) == kept.rows


def test_denied_requests_are_kept_over_all_attempts() -> None:
    store = Store.open("memory://knocks")
    first = DeniedRequest(address="10.9.9.8", reason="it showed no token", count=3, last_s=0.0)
    second = replace(first, address="10.9.9.9", count=1)
    WorkerHistory(store, list, lambda: [first]).save()
    WorkerHistory(store, list, lambda: [second]).save()
    assert read_denied_requests(store) == (second, first)
    assert denied_requests_summary([first]) == [
        "10.9.9.8 was refused weights 3 times, at last on 1970-01-01 00:00 UTC: it showed no token"
    ]
