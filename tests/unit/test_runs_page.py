"""The page of all runs: rows, curves, its files over HTTP, and servers that come and go."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_factories import make_commit, make_run

from artifacts import layout
from artifacts.commit import read_manifest, write_manifest
from artifacts.reports.figures import figures_of, write_figures
from artifacts.reports.step_curves import MAX_POINTS, Curve, StepCurves, drawing, thinned
from artifacts.store import Store
from flows.commands import page_servers, ui
from flows.commands.local_stack import SERVERS
from flows.commands.page_servers import PageServer, PageServers
from flows.commands.runs_page import ROOT_HEADER, RunsPage, RunsServer

FLOW_RUN, MLFLOW_RUN = "flow-run-1", "mlflow-run-1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An artifact root with one run of two steps, evaluated before and after."""
    run = make_run(Store.open(str(tmp_path)), make_commit(1), make_commit(2), num_steps=5)
    write_figures(run.store, figures_of(5, run.commits, {0: 0.25, 2: 0.75}, (0.4, 0.6)))
    run.store.write(layout.report_file(layout.PAGE), b"<p>the report</p>")
    return tmp_path


@pytest.fixture
def servers(root: Path) -> PageServers:
    return PageServers(root, 1, 2, tell=pytest.fail)


@pytest.fixture
def site(root: Path, servers: PageServers) -> Iterator[RunsServer]:
    with RunsServer(0, RunsPage(root, servers)) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def get(
    site: RunsServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer; the path is sent as it is."""
    connection = HTTPConnection("127.0.0.1", site.server_port, timeout=20)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read().decode()
    connection.close()
    return found


def test_the_list_has_a_row_a_run_with_result_links_and_curves(site: RunsServer) -> None:
    status, headers, text = get(site, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    main = re.sub(r"\s+", " ", text[text.index("<main>") :])
    for part in ("2/5", "0.250 -&gt; 0.750 [+0.400, +0.600]", "interrupted", ">10.0<"):
        assert part in main, part
    for link in ("run/", "run/report/index.html", "run/prefect", "run/mlflow"):
        assert f'href="{link}"' in main
    assert len(re.findall("<figure>", main)) == 4
    assert main.count('class="heldout"') == 2
    assert "dollars" not in main
    assert "://" not in text.replace("http://127.0.0.1", ""), "nothing comes from a network"


def test_a_runs_own_page_has_its_curves_and_links_that_hold_below_it(site: RunsServer) -> None:
    status, headers, _ = get(site, "/run")
    assert (status, headers["Location"]) == (302, "/run/")
    status, _, text = get(site, "/run/")
    assert status == 200
    assert 'href="../run/report/index.html"' in text
    assert "<title>run</title>" in text


def test_texts_of_a_run_are_escaped(root: Path, site: RunsServer) -> None:
    name = "<i>&'\"50% #1"
    (root / "run").rename(root / name)
    text = get(site, "/")[2]
    assert "<i>" not in text[text.index("<main>") :]
    (address,) = set(re.findall(r'href="([^"/]+)/"', text))
    assert get(site, f"/{address}/report/index.html")[2] == "<p>the report</p>"


@pytest.mark.parametrize(
    "path",
    [
        "/run/manifest.json",
        "/run/run.pem",
        "/run/report/../manifest.json",
        "/run/report/%2e%2e/manifest.json",
        "/run/report/..%2Fmanifest.json",
        "/run/report//etc/passwd",
        "/run/report/link",
        "/run/report/%00",
        "/run/report/",
        "/run/report/" + 300 * "x",
        "/../etc/passwd",
        "/%2e%2e/",
        "/.prefect/server.log",
        "/mlflow.db",
        "/nobody/",
    ],
)
def test_no_file_outside_a_report_is_served(root: Path, site: RunsServer, path: str) -> None:
    (root / "run" / "report" / "link").symlink_to(root / "run" / "manifest.json")
    (root / "run" / "run.pem").write_text("secret")
    (root / ".prefect").mkdir()
    (root / ".prefect" / "server.log").write_text("secret")
    (root / "mlflow.db").touch()
    assert get(site, path)[0] == 404


def test_a_page_of_elsewhere_that_names_itself_is_refused(site: RunsServer) -> None:
    assert get(site, "/", host="evil.example:8788")[0] == 403
    assert get(site, "/", host="localhost:9")[0] == 200, "as a tunnel has it"


def test_a_browser_that_asks_for_an_icon_logs_no_error(site: RunsServer) -> None:
    assert get(site, "/favicon.ico")[0] == 200


def test_a_head_request_has_no_body(site: RunsServer) -> None:
    status, headers, text = get(site, "/", method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


def test_a_run_that_begins_meanwhile_appears_and_one_that_goes_on_grows(
    root: Path, site: RunsServer
) -> None:
    assert "step 2" in get(site, "/run/")[2]
    make_run(Store.open(str(root / "later")), make_commit(1), make_commit(2), make_commit(3))
    (root / "later" / "run").rename(root / "second")
    assert "step 3" in get(site, "/second/")[2]


def test_an_empty_root_says_how_to_begin(tmp_path: Path) -> None:
    page = RunsPage(tmp_path, PageServers(tmp_path, 1, 2))
    assert b"rollflow demo --preset tiny" in page.draw()


def test_costs_are_a_column_where_devices_have_prices(root: Path, site: RunsServer) -> None:
    kept = root / "run" / "report" / "figures.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"dollars": 1.234}))
    assert re.search(r"dollars.*1\.23<", get(site, "/")[2], re.DOTALL)


def test_links_to_servers_wait_until_they_answer(
    root: Path, site: RunsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lead to a run by its own ids, in MLflow's face of model training."""
    store = Store.open(str(root / "run"))
    manifest = replace(
        read_manifest(store), prefect_flow_run_ids=(FLOW_RUN,), mlflow_run_id=MLFLOW_RUN, links={}
    )
    write_manifest(store, manifest)
    for name in ("prefect", "mlflow"):
        status, _, text = get(site, f"/run/{name}")
        assert status == 200
        assert "starting" in text
        assert 'http-equiv="refresh"' in text
    servers = site.page.servers
    servers.prefect.url, servers.mlflow.url = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert "does not know this run" not in get(site, "/run/prefect")[2], "it has not answered"
    known = {"run": {"info": {"experiment_id": "7"}}}
    monkeypatch.setattr(page_servers, "_ask_mlflow", lambda *_: known)
    monkeypatch.setattr(page_servers, "_has_flow_run", lambda origin, _: bool(origin))
    assert (
        get(site, "/run/prefect")[1]["Location"] == f"http://127.0.0.1:1/runs/flow-run/{FLOW_RUN}"
    )
    assert get(site, "/run/mlflow")[1]["Location"] == (
        f"http://127.0.0.1:2/#/experiments/7/runs/{MLFLOW_RUN}?workflowType=machine_learning"
    )
    write_manifest(store, replace(manifest, links={page_servers.FLOW_RUN_URL: "http://h/f/1"}))
    assert get(site, "/run/prefect")[1]["Location"] == "http://h/f/1", "its own server goes first"
    config = {**manifest.config, "keep": {"tracking_uri": "https://track/"}}
    write_manifest(store, replace(manifest, config=config))
    assert get(site, "/run/mlflow")[1]["Location"] == f"https://track/#/runs/{MLFLOW_RUN}"


def test_a_server_that_fails_says_so_and_the_other_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    servers = PageServers(root, 1, 2, tell=said.append)
    served = threading.Event()

    def serve(server: PageServer) -> None:
        servers._say(server, "", "http://127.0.0.1:1")
        served.set()
        servers._stop.wait()

    def fail(server: PageServer) -> None:
        raise RuntimeError("MLflow is gone: no memory")

    monkeypatch.setattr(servers, "_serve_prefect", serve)
    monkeypatch.setattr(servers, "_serve_mlflow", fail)
    with servers.running():
        assert served.wait(10)
        ends = time.monotonic() + 10
        while len(said) < 2 and time.monotonic() < ends:
            served.wait(0.01)
    assert sorted(said) == ["MLflow    is gone: no memory", "Prefect   http://127.0.0.1:1"]


def test_a_server_of_the_same_data_whose_run_has_no_folder_yet_goes_first(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    servers = PageServers(root, 1, 2, tell=said.append)
    log = root / "prefect.db-wal"
    found = iter(["", "", "http://127.0.0.1:3"])
    monkeypatch.setattr(servers, "_prefect_of_a_run", lambda: next(found))
    monkeypatch.setattr(page_servers, "WATCH_S", 0.01)
    servers._await_first(servers.prefect, log)
    assert said == [], "nobody writes"
    log.touch()
    servers._await_first(servers.prefect, log)
    assert said == ["Prefect   another server writes to its data; its run is awaited"]


def test_a_curve_reads_each_commit_once_and_survives_a_damaged_one(root: Path) -> None:
    store = Store.open(str(root / "run"))
    curves = StepCurves()
    (reward, *_) = curves.read(store, "")
    assert [step for step, _ in reward.points] == [1, 2]
    for path in (root / "run" / "steps").iterdir():
        path.write_text("{")
    assert curves.read(store, "")[0] == reward
    assert curves.read(store, "of another beginning")[0].points == []


def test_long_runs_are_thinned_and_keep_their_last_step() -> None:
    steps = range(1, 10_002)
    kept = thinned(steps)
    assert len(kept) <= MAX_POINTS + 1
    assert kept[-1] == 10_001
    assert set(kept[:-1]) <= set(thinned(range(1, 9_000))) | set(range(9_000, 10_001))
    assert thinned([1, 2, 3]) == [1, 2, 3]
    assert thinned([]) == []


@pytest.mark.parametrize("values", [[], [0.5], [0.0, 0.0], [1e-9, -3.0, 1e12]])
def test_any_curve_is_a_drawing_within_its_frame(values: list[float]) -> None:
    points = list(enumerate(values, start=1))
    svg = drawing(Curve(title="reward", unit="mean", points=points), [(0, 0.2)] if points else ())
    tree = ElementTree.fromstring(str(svg))
    for line in tree.iter("polyline"):
        for place in line.get("points", "").split():
            x, y = map(float, place.split(","))
            assert math.isfinite(x + y)
            assert 0 <= x <= 320
            assert 0 <= y <= 110


def test_a_second_page_of_the_same_runs_points_to_the_first(
    root: Path,
    site: RunsServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert get(site, "/")[1][ROOT_HEADER] == str(root)
    monkeypatch.setitem(SERVERS, "reports", ("the server of reports", site.server_port))
    monkeypatch.setattr(ui, "stop_on_signals", lambda: None)
    assert ui.main(["last", "--root", str(root)]) == 0
    assert f":{site.server_port}/run/  served already" in capsys.readouterr().out
    assert ui.main(["nobody", "--root", str(root)]) == 2
    assert "RUN must be a run" in capsys.readouterr().err
