"""A run whose engines it did not all start: a worker joins in mid-run, gets requests and is killed,
another joins, and no response is lost or trained twice; and one whose elastic workers see none of
its files pull them. Runs that seed train while an elastic worker takes the rest of a round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from mlflow import MlflowClient

from artifacts.pictures import content_of
from artifacts.store import Store
from research.kills.network_hosts import network_hosts, why_not
from tasks.cluster.ports import free_port
from tests.flows.conftest import (
    ADAPTER,
    COMES_WITHIN_S,
    DRAWN,
    ENDS_WITHIN_S,
    ROOT,
    SIMULATED,
    Launcher,
    Settings,
    of_both_kinds,
    wait_until,
)
from tests.flows.kept_adapter import KEEPS_ADAPTER
from tests.flows.train_origin import Train

pytestmark = pytest.mark.flow

STEPS = 8
SEEDING, SEEDED_STEPS = "tiny-elastic", 10
SLOW = "engine.profile.step_s=0.08"  # of a token: a round takes some seconds
NO_HOSTS = why_not()
TOKEN = "of-the-run"
MISMATCH = "elastic_worker=spot.g1 gone: WeightCheckFailed: spot.g1 must hold the learner's"
KEEPING = (  # `rollflow worker` with `kept_adapter`
    "-c",
    "from flows.commands import worker;"
    " worker.FLAGS += ('--preload', 'tests.flows.kept_adapter'); worker.main()",
)


@contextmanager
def elastic_worker(
    address: str,
    name: str,
    environment: dict[str, str],
    *words: str,
    program: tuple[str, ...] = ("-m", "flows.commands.worker"),
) -> Iterator[subprocess.Popen[bytes]]:
    """`rollflow worker` until the end of the block."""
    command = [sys.executable, *program, address, "--name", name, *words]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def handed(run: Path) -> tuple[str, ...]:
    """What an elastic worker is given beside the address."""
    return ("--certificate", str(run / "run.pem"))


def commits(run: Path) -> list[dict[str, Any]]:  # Any: JSON
    """The commits of a run, in order."""
    return [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]


def figure(run: Path, name: str) -> list[float]:
    """Of every step."""
    return [commit["metrics"][name] for commit in commits(run)]


def members(run: Path) -> dict[str, dict[str, Any]]:  # Any: JSON
    """What is kept of the elastic workers, by name."""
    return {line["name"]: line for line in json.loads((run / "report/members.json").read_text())}


@of_both_kinds
def test_a_killed_elastic_worker_costs_no_response(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    run, port = tmp_path / "elastic", free_port()
    process = launcher.start(
        tmp_path,
        *(*SIMULATED, *trained, SLOW, f"num_steps={STEPS}", f'run_name="{run.name}"'),
        *(DRAWN, "elastic.enabled=true", f"cluster.scheduler_port={port}"),
    )
    address = f"tls://127.0.0.1:{port}"
    try:
        wait_until((run / "plans/00001.json").exists, "the first round", process)
        with elastic_worker(address, "spot", launcher.environment, *handed(run)) as first:
            wait_until(
                lambda: sum(figure(run, "elastic/tokens")) > 0, "an elastic worker's token", process
            )
            under_way = len(commits(run)) + 1
            wait_until((run / f"plans/{under_way:05d}.json").exists, "the next round", process)
            begun_s = time.monotonic()
            wait_until(lambda: time.monotonic() > begun_s + 1.0, "its middle", process)
            first.send_signal(signal.SIGKILL)
            first.wait()
            with elastic_worker(address, "spot", launcher.environment, *handed(run)):
                out, err = process.communicate(timeout=ENDS_WITHIN_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert f"rollflow worker {address} --certificate {run}/run.pem" in out
    for step in range(1, STEPS + 1):
        rows = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
        (kept,) = duckdb.sql(
            f"select count(*), count(distinct (prompt_id, index)) from {rows} where fate='trained'"
        ).fetchall()
        assert kept == (16, 16)
    assert figure(run, "round/attempts") == [1.0] * STEPS, "no step was begun again"
    came = members(run)
    assert came["spot.g1"]["state"] == "gone"
    assert came["spot.g1"]["num_tokens"] > 0
    assert sum(figure(run, "elastic/joined")) >= 1
    assert sum(figure(run, "elastic/lost")) >= 1
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    names = [experiment.experiment_id for experiment in client.search_experiments()]
    (tracked,) = client.search_runs(names)
    assert client.get_metric_history(tracked.info.run_id, "elastic/present")
    assert "spot.g1" in (run / "report/index.html").read_text()


def weights_in(folder: Path) -> list[str]:
    """What an elastic worker with this --local-directory has pulled, by name."""
    return sorted(path.name for path in folder.glob("dask-scratch-space/*/rollflow-weights/*"))


def refused(
    address: str, folder: Path, environment: dict[str, str], *certificate: str
) -> tuple[int, str]:
    """How a worker with another token ends: exit status, what it says."""
    (token := folder.with_suffix(".token")).write_text("another")
    words = ("--name", "stranger", "--token-file", str(token), "--local-directory", str(folder))
    words = (*words, *certificate)
    ended = subprocess.run(
        [sys.executable, "-m", "flows.commands.worker", address, *words],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=COMES_WITHIN_S,
    )
    return ended.returncode, ended.stderr


def knock(address: str, port: int) -> int:
    """The status with which somebody without the token is answered by the weight server."""
    asked = urllib.request.Request(f"http://{address}:{port}/versions/model")
    with pytest.raises(urllib.error.HTTPError) as answered:
        urllib.request.urlopen(asked, timeout=30)
    with answered.value as error:
        return error.code


@of_both_kinds
def test_an_elastic_worker_pulls_what_it_needs_and_a_stranger_gets_nothing(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    """The simulated engine reads its tokenizer from the model's folder that came."""
    run, port, weight_port = tmp_path / "pulls", free_port(), free_port()
    spot, stranger = tmp_path / "spot", tmp_path / "stranger"
    (token := tmp_path / "token").write_text(TOKEN)
    process = launcher.start(
        tmp_path,
        *(*SIMULATED, *trained, DRAWN, SLOW, "num_steps=8", f'run_name="{run.name}"'),
        *(
            "elastic.enabled=true",
            f'elastic.token_file="{token}"',
            f"cluster.scheduler_port={port}",
        ),
        *("elastic.weights.enabled=true", f"elastic.weights.port={weight_port}"),
    )
    address = f"tls://127.0.0.1:{port}"
    words = ("--host", "127.0.0.1", "--token-file", str(token), "--local-directory", str(spot))
    words = (*words, *handed(run))
    try:
        wait_until((run / "plans/00001.json").exists, "the first round", process)
        with elastic_worker(address, "spot", launcher.environment, *words) as worker:
            wait_until(
                lambda: sum(figure(run, "elastic/tokens")) > 0, "an elastic worker's token", process
            )
            held = weights_in(spot)
            assert knock("127.0.0.1", weight_port) == 401
            code, said = refused(address, stranger, launcher.environment, *handed(run))
            _, err = process.communicate(timeout=ENDS_WITHIN_S)
            worker.wait(COMES_WITHIN_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert held[-1] == "model"
    assert len(held) > 1, "and the versions"
    assert not weights_in(spot), "nothing stays"
    assert (code, weights_in(stranger)) == (2, [])
    assert (
        "elastic worker stranger is refused: the token must be the run's, this one is not" in said
    )
    spoken = members(run)["spot.g1"]
    assert spoken["num_tokens"] > 0
    assert spoken["joined_s"] > spoken["since_s"] + spoken["build_s"]
    assert spoken["pull_s"] > 0
    assert max(figure(run, "elastic/pull_s")) > 0
    page = (run / "report/index.html").read_text()
    assert "127.0.0.1 was refused weights once," in page
    assert "it showed no proof" in (run / "log/flow.log").read_text()


def trained_responses(run: Path, step: int) -> list[tuple[object, ...]]:
    """The responses that a step trained."""
    rows = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
    wanted = "prompt_id, index, token_ids, reward"
    return duckdb.sql(
        f"select {wanted} from {rows} where fate='trained' order by prompt_id, index"
    ).fetchall()


@of_both_kinds
def test_an_elastic_worker_takes_the_rest_of_a_round_while_the_devices_train(
    launcher: Launcher, tmp_path: Path, trained: Settings
) -> None:
    """The window closes, the devices train in mid-round, and every step trains what it should."""
    run, port = tmp_path / "seeded", free_port()
    process = launcher.start(
        tmp_path,
        *(*SIMULATED, *trained, DRAWN, SLOW),
        *(f"num_steps={SEEDED_STEPS}", f'run_name="{run.name}"'),
        f"cluster.scheduler_port={port}",
        preset=SEEDING,
    )
    try:
        wait_until((run / "plans/00001.json").exists, "the first round", process)
        address, words = f"tls://127.0.0.1:{port}", handed(run)
        with elastic_worker(address, "spot", launcher.environment, *words):
            _, err = process.communicate(timeout=ENDS_WITHIN_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    for step in range(1, SEEDED_STEPS + 1):
        kept = trained_responses(run, step)
        assert len(kept) == len({row[:2] for row in kept}) == 4 * 4, "P0 * R0 of a small run"
    assert figure(run, "round/attempts") == [1.0] * SEEDED_STEPS, "no step was begun again"
    closed = [commit for commit in commits(run) if commit["metrics"]["seeding/closed"]]
    assert closed, "the window closed"
    assert all(commit["metrics"]["rollout/freed_learners"] for commit in closed)
    assert sum(commit["metrics"]["train/streamed_groups"] for commit in closed) > 0
    assert members(run)["spot.g1"]["num_tokens"] > 0
    last = next(commit for commit in reversed(commits(run)) if commit["kind"] == "short")
    assert last["seeding"]["window_s"] == last["metrics"]["seeding/next_window_s"]
    assert last["metrics"]["seeding/elastic_workers_worth_holding"] > 0
    remembered = json.loads(Store.open(str(tmp_path)).checked("seeding.json"))
    for model, windows in remembered.items():
        assert model.startswith("tiny_llama (tiny")
        assert " on spot " in model
        assert model.endswith((" cpu, short rounds", " cpu, long rounds")), "the machine's cores"
        assert windows.keys() == {"1"}
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (tracked,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert len(client.get_metric_history(tracked.info.run_id, "seeding/own_s")) == SEEDED_STEPS
    assert "spot.g1" in (run / "report/index.html").read_text()


@pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS or "hosts can be made")
def test_an_elastic_worker_on_another_host_pulls_unasked(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Where the scheduler listens for other machines, elastic workers pull by default."""
    run, port = tmp_path / "far", free_port()
    (token := tmp_path / "token").write_text(TOKEN)
    with network_hosts("far") as hosts:
        process = launcher.start(
            tmp_path,
            *(*SIMULATED, SLOW, "num_steps=8", f'run_name="{run.name}"', "elastic.enabled=true"),
            *(f'elastic.token_file="{token}"', f'cluster.scheduler_host="{hosts.here}"'),
            f"cluster.scheduler_port={port}",
            f'elastic.weights.allowed_senders=["{hosts.network}"]',
        )
        words = ("--name", "far", "--host", hosts.address("far"), "--token-file", str(token))
        words = (*words, "--local-directory", str(tmp_path / "spot"), *handed(run))
        command = ["-m", "flows.commands.worker", f"tls://{hosts.here}:{port}", *words]
        try:
            wait_until((run / "plans/00001.json").exists, "the first round", process)
            far = hosts.run_in(
                "far",
                [sys.executable, *command],
                cwd=ROOT,
                env=os.environ | launcher.environment,
                stderr=subprocess.DEVNULL,
            )
            wait_until(
                lambda: sum(figure(run, "elastic/tokens")) > 0, "an elastic worker's token", process
            )
            held = weights_in(tmp_path / "spot")
            _, err = process.communicate(timeout=ENDS_WITHIN_S)
            far.wait(COMES_WITHIN_S)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert held[-1] == "model"
    assert members(run)["far.g1"]["pull_s"] > 0


@contextmanager
def lending(
    launcher: Launcher, run: Path, *settings: str, preset: str
) -> Iterator[tuple[Train, str, tuple[str, ...]]]:
    """A run of real engines, killed at the end of the block, whose elastic workers pull; with the
    address and the options of a worker."""
    root, port = run.parent, free_port()
    (token := root / "token").write_text(TOKEN)
    process = launcher.start(
        root,
        *("num_steps=1000", *settings, f'run_name="{run.name}"', "elastic.weights.enabled=true"),
        *("elastic.enabled=true", f'elastic.token_file="{token}"'),
        f"cluster.scheduler_port={port}",
        preset=preset,
    )
    words = ("--host", "127.0.0.1", "--token-file", str(token), *handed(run))
    try:
        wait_until((run / "plans/00001.json").exists, "the first round", process)
        yield process, f"tls://127.0.0.1:{port}", words
    finally:
        process.kill()


def trained_answers(run: Path, process: Train) -> list[tuple[Any, ...]]:  # Any: rows
    """Waits until responses of the elastic worker `spot` are trained, on which it and the learner
    must agree; returns the pictures of each."""
    wait_until(
        lambda: sum(figure(run, "elastic/tokens")) > 0,
        "an elastic worker's token",
        process,
    )
    (step, *_) = (commit["step"] for commit in commits(run) if commit["metrics"]["elastic/tokens"])
    assert figure(run, "train/mismatch_abs")[step - 1] < 0.02
    rows = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
    shown = duckdb.sql(
        f"select pictures from {rows} where engine = 'spot.g1' and fate = 'trained'"
    ).fetchall()
    assert shown
    return shown


@pytest.mark.engine
def test_an_elastic_worker_pulls_the_pictures_that_its_requests_show(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Its engine, a real one, passes the weight check on probes with pictures, and answers."""
    run, spot = tmp_path / "seen", tmp_path / "spot"
    briefly = "sampling.max_response_tokens=8"
    with lending(launcher, run, briefly, preset="tiny-vision") as (process, address, words):
        words = (*words, "--local-directory", str(spot))
        with elastic_worker(address, "spot", launcher.environment, *words):
            shown = trained_answers(run, process)
            came = {path.name: path.read_bytes() for path in spot.rglob("rollflow-pictures/*")}
    assert came == {content_of(data): data for data in came.values()}
    assert came.keys() <= {path.name for path in (run / "pictures").iterdir()}
    assert {picture["content"] for (pictures,) in shown for picture in pictures} <= came.keys()


@pytest.mark.engine
def test_an_elastic_worker_answers_with_the_adapter_that_it_pulled(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Its engine, a real one, passes the weight check. Later its vLLM keeps the adapter that it
    has: it is gone with the next version, and the run goes on."""
    run, spot, keeps = tmp_path / "adapted", tmp_path / "spot", tmp_path / "keeps"
    settings = (ADAPTER, "learner.optimizer.learning_rate=2e-3")
    with lending(launcher, run, *settings, preset="tiny-sync") as (process, address, words):
        words, told = (*words, "--local-directory", str(spot)), {KEEPS_ADAPTER: str(keeps)}
        environment = launcher.environment | told
        with elastic_worker(address, "spot", environment, *words, program=KEEPING):
            trained_answers(run, process)
            held = weights_in(spot)
            keeps.touch()
            log = run / "log/flow.log"
            wait_until(lambda: MISMATCH in log.read_text(), "the mismatch", process)
        num_steps = len(commits(run))
        wait_until(lambda: len(commits(run)) > num_steps + 1, "the next steps", process)
    assert held[-1] == "model"
    assert len(held) > 1, "and the versions"
