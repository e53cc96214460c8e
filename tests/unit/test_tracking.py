"""The tracker: every step once, and no failure of MLflow reaches the training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from mlflow.environment_variables import MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER
from mlflow.tracking import MlflowClient

from artifacts.reports.mlflow_client import MAX_PARAM_CHARS, open_client
from artifacts.reports.outbox import WAITING_SHARE, Outbox, first_line
from artifacts.reports.tracking import NOTE_TAG, ExperimentDeleted, RunTracker, flatten


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/new/mlflow.db"


def started(uri: str, run_id: str | None = None, **params: Any) -> RunTracker:  # Any: JSON
    tracker = RunTracker(uri)
    tags = {"prefect.flow_run_id": "f1", "prefect.flow_run_url": "http://localhost:4200/f1"}
    tracker.start(experiment="tests", run_name="a-run", params=params, tags=tags, run_id=run_id)
    return tracker


class Outage:
    """A client whose calls fail while it is down, as a server's would; everything else is the real
    one."""

    def __init__(self, client: MlflowClient) -> None:
        self.client, self.is_down = client, True

    def __getattr__(self, name: str) -> Callable[..., Any]:  # Any: MLflow's answers
        if self.is_down:
            raise ConnectionError("connection refused\nand a long traceback")
        method: Callable[..., Any] = getattr(self.client, name)
        return method


def test_a_run_has_its_config_tags_metrics_and_files(uri: str) -> None:
    tracker = started(uri, scheduling={"kind": "sync", "eta": 1.25}, long="x" * 9000, empty={})
    assert tracker.log_step(1, {"reward/mean": 0.25, "time/step_s": 3.0})
    tracker.log_file(b"png", "report/plot.png")
    tracker.log_file(b"# Done", "summary.md")
    assert tracker.end("FINISHED")
    client = open_client(uri)
    run = client.get_run(tracker.run_id)
    assert run.info.run_name == "a-run"
    assert run.info.status == "FINISHED"
    assert run.data.params["scheduling.eta"] == "1.25"
    assert len(run.data.params["long"]) == MAX_PARAM_CHARS
    assert run.data.params["empty"] == "{}"
    assert "[http://localhost:4200/f1](http://localhost:4200/f1)" in run.data.tags[NOTE_TAG]
    assert run.data.metrics["reward/mean"] == 0.25
    assert {entry.path for entry in client.list_artifacts(tracker.run_id)} == {
        "report",
        "summary.md",
    }
    assert [entry.path for entry in client.list_artifacts(tracker.run_id, "report")] == [
        "report/plot.png"
    ]


def test_a_data_base_is_there_with_all_its_tables_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one whose making was broken off, as by Ctrl-C, is refused for ever."""
    broken = tmp_path / "broken.db"

    def killed(tracking_uri: str) -> None:
        Path(tracking_uri.removeprefix("sqlite:///")).write_bytes(b"half of the tables")
        raise KeyboardInterrupt

    monkeypatch.setattr("mlflow.tracking.MlflowClient", killed)
    with pytest.raises(KeyboardInterrupt):
        open_client(f"sqlite:///{broken}")
    assert list(tmp_path.iterdir()) == []


def test_of_runs_that_begin_at_once_each_finds_the_experiment(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = MlflowClient.get_experiment_by_name
    seen: list[str] = []

    def late(client: MlflowClient, name: str) -> Any:  # Any: MLflow's experiment
        """It is not there when the second run looks, and is when that makes it."""
        seen.append(name)
        return None if len(seen) == 2 else found(client, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", late)
    first, second = started(uri), started(uri)
    client = open_client(uri)
    of = [client.get_run(tracker.run_id).info.experiment_id for tracker in (first, second)]
    assert of[0] == of[1]
    assert len(seen) == 3


def test_a_data_base_that_may_not_be_written_is_told_as_that() -> None:
    told = "(raised as a result of Query-invoked autoflush)\n(sqlite3) attempt to write a readonly"
    assert first_line(RuntimeError(told)) == "(sqlite3) attempt to write a readonly"
    assert first_line(RuntimeError("")) == "RuntimeError"


def test_more_parameters_than_one_call_takes_all_arrive(uri: str) -> None:
    tracker = started(uri, many={f"p{index}": index for index in range(230)})
    assert tracker.outbox.waiting == ()
    assert len(open_client(uri).get_run(tracker.run_id).data.params) == 230


def test_a_resumed_run_skips_the_steps_that_are_logged(uri: str) -> None:
    first = started(uri, lr=1.0)
    for step in (1, 2):
        first.log_step(step, {"reward/mean": float(step)})
    first.log_metrics(2, {"heldout/reward_mean": 0.5})
    first.end("FAILED")
    second = started(uri, run_id=first.run_id, lr=2.0)
    for step in (1, 2, 3):
        second.log_step(step, {"reward/mean": 10.0 + step})
        second.log_step(step, {"reward/mean": 20.0 + step})
    for step in (2, 3):
        second.log_metrics(step, {"heldout/reward_mean": 0.75})
    client = open_client(uri)
    assert [
        point.value for point in client.get_metric_history(first.run_id, "heldout/reward_mean")
    ] == [0.5, 0.75]
    history = client.get_metric_history(first.run_id, "reward/mean")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 2.0), (3, 13.0)]
    assert client.get_run(first.run_id).info.status == "RUNNING"
    assert client.get_run(first.run_id).data.params == {"lr": "1.0"}


def test_a_run_that_mlflow_does_not_have_is_begun_there_anew(uri: str) -> None:
    """It is resumed with another tracking URI, or the server's data base was lost."""
    tracker = started(uri, run_id="0" * 32, lr=2.0)
    assert tracker.run_id != "0" * 32
    assert tracker.log_step(1, {"reward/mean": 1.0})
    run = open_client(uri).get_run(tracker.run_id)
    assert (run.data.params, run.data.metrics["reward/mean"]) == ({"lr": "2.0"}, 1.0)


def test_an_outage_costs_one_warning_and_no_metric(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = started(uri)
    outage = Outage(open_client(uri))
    tracker._client = outage  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING, "artifacts.reports.outbox"):
        taken = [tracker.log_step(step, {"reward/mean": float(step)}) for step in (1, 2, 3)]
    assert taken == [False, False, False]
    assert len(tracker.outbox.waiting) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"tracking={uri} unreachable, training goes on and logs later reason=connection refused"
    ]
    outage.is_down = False
    assert tracker.log_step(4, {"reward/mean": 4.0})
    assert [
        point.step for point in open_client(uri).get_metric_history(tracker.run_id, "reward/mean")
    ] == [1, 2, 3, 4]


def test_a_server_that_lets_its_callers_wait_costs_a_small_share_of_the_time() -> None:
    now_s, waited_s = 0.0, 0.0

    def hang() -> None:
        nonlocal now_s, waited_s
        now_s, waited_s = now_s + 20, waited_s + 20
        raise ConnectionError("timed out")

    outbox = Outbox("http://slow", clock=lambda: now_s)
    for step in range(1000):
        now_s += 10
        outbox.put(f"step {step}", hang)
    assert 0 < waited_s <= WAITING_SHARE * now_s
    outbox.put("the end", lambda: None, is_last=True)
    assert len(outbox.waiting) == 1001, "what waits is tried once more, in order"


def test_a_busy_server_does_not_say_how_long_a_step_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a proxy does by answering 503 with Retry-After: 3600."""
    monkeypatch.delenv("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", raising=False)
    open_client("http://127.0.0.1:9")
    assert not MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER.get()


def test_what_is_still_unsent_at_the_end_is_named(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = started(uri)
    tracker._client = Outage(open_client(uri))  # type: ignore[assignment]
    tracker.log_step(1, {"reward/mean": 1.0})
    assert not tracker.end("FINISHED")
    assert "lost=round/step of step 1, the end" in caplog.records[-1].getMessage()


def test_a_refused_entry_does_not_hold_up_the_others(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = started(uri)
    assert tracker.tag("a name?", "refused")
    assert tracker.log_step(2, {"reward/mean": 2.0})
    assert "refused=the tag a name?" in caplog.text


@pytest.mark.parametrize(
    ("code", "waiting", "refused"),
    [
        ("UNAUTHENTICATED", ("a step", "the end"), []),  # the password may come back
        ("PERMISSION_DENIED", ("a step", "the end"), []),
        ("BAD_REQUEST", (), ["a step"]),  # this call never will
    ],
)
def test_of_what_is_refused_all_waits_but_for_a_call_that_is_wrong_itself(
    code: str, waiting: tuple[str, ...], refused: list[str]
) -> None:
    class Refusal(Exception):
        error_code = code

    def send() -> None:
        raise Refusal(code)

    outbox = Outbox("http://x")
    outbox.put("a step", send)
    outbox.put("the end", lambda: None, is_last=True)
    assert (outbox.waiting, outbox.refused) == (waiting, refused)


def test_how_a_run_stands_after_a_step_is_what_was_said_last(uri: str) -> None:
    tracker = started(uri)
    for reward in (0.5, 0.25):  # at the checkpoint, and after the last evaluation
        tracker.log_state(30, {"reward_after": reward, "step_s": 2.0})
    assert open_client(uri).get_run(tracker.run_id).data.metrics["reward_after"] == 0.25


def test_domains_of_any_name_cost_a_step_none_of_its_metrics(uri: str) -> None:
    tracker = started(uri)
    domains = ["Counting & Probability", "C++", "Ö", "a/b", "../up", "/", "x" * 300, "a\nb"]
    tracker.log_step(1, {f"reward/{domain}_mean": 1.0 for domain in domains})
    metrics = open_client(uri).get_run(tracker.run_id).data.metrics
    assert {"round/step", "reward/Counting _ Probability_mean", "reward/C___mean"} <= set(metrics)
    assert len(metrics) == len(domains) + 1


def test_a_new_run_without_a_server_fails_at_once_with_the_cure() -> None:
    with pytest.raises(
        ConnectionError, match=r"MLflow must answer at nowhere://x, .* correct keep.tracking_uri"
    ):
        started("nowhere://x")


def test_a_server_that_wants_a_password_is_told_with_the_variables_for_it() -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(
                ConnectionError, match=r"got .* 401 .*; set MLFLOW_TRACKING_USERNAME and MLFLOW_"
            ):
                started(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def test_a_deleted_experiment_is_told_with_what_restores_it(uri: str) -> None:
    """MLflow has the name still, and refuses every run of it."""
    client = open_client(uri)
    number = client.create_experiment("gone")
    client.delete_experiment(number)
    with pytest.raises(ExperimentDeleted, match=f"another one, .*experiments restore -x {number}'"):
        RunTracker(uri).start(experiment="gone", run_name="a-run", params={}, tags={})


def test_nested_names_become_dotted() -> None:
    assert dict(flatten({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": None})) == {
        "a.b.c": "1",
        "a.d": "[1, 2]",
        "e": "None",
    }


def test_only_a_server_has_a_page_to_link_to(uri: str) -> None:
    assert RunTracker(uri).page == ""
    assert RunTracker("http://host:5000/").page == "http://host:5000/#/runs/"
