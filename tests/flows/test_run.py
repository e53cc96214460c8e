"""A whole run of the tiny preset through the command, as users call it, on the real engine, and
what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from transformers import AutoModelForCausalLM, AutoTokenizer

from artifacts.weights import digest, read_weights
from tasks.metrics.catalogue import is_described
from tests.flows.conftest import DRAWN, WORKERS, Finished, Launcher, booked_as_trained

pytestmark = [pytest.mark.flow, pytest.mark.engine]


@pytest.fixture(scope="module")
def tail_batched(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Finished, Path]:
    """Five steps: with four prompts over-provisioned to five, four short rounds and a long one."""
    root = tmp_path_factory.mktemp("runs")
    finished = launcher.run_command(root, DRAWN, "num_steps=5", 'run_name="first"', preset="tiny")
    return finished, root


def test_a_run_ends_well_and_says_what_came_of_it(tail_batched: tuple[Finished, Path]) -> None:
    finished, root = tail_batched
    assert finished.code == 0, finished.err
    assert "Held-out reward" in finished.out
    report = root / "first" / "report"
    assert (report / "summary.md").read_text().startswith("# first")
    assert (report / "index.html").exists()


def test_the_terminal_has_rollflows_own_lines_alone_and_the_rest_is_logged(
    tail_batched: tuple[Finished, Path],
) -> None:
    finished, root = tail_batched
    told = [line.split()[0] for line in finished.out.splitlines() if line.strip()]
    until_summary = told[: told.index("first")]
    assert set(until_summary) <= {"tiny_llama:", "run:", "logs:", "starting", "held-out", "step"}
    assert until_summary.count("step") == 5
    assert finished.err == ""
    logs = {path.stem: path.read_text() for path in (root / "first" / "log").glob("*.log")}
    assert logs.keys() == {"flow", *WORKERS}
    assert "vllm" in logs["engine-0"]


def test_short_rounds_fill_the_queue_and_a_long_one_empties_it(
    tail_batched: tuple[Finished, Path],
) -> None:
    _, root = tail_batched
    commits = [
        json.loads(path.read_text()) for path in sorted((root / "first" / "steps").glob("*.json"))
    ]
    assert [commit["kind"] for commit in commits] == ["short"] * 4 + ["long"]
    assert [len(commit["queue"]["queue"]) for commit in commits] == [1, 2, 3, 4, 0]


def test_every_step_trains_exactly_its_groups(tail_batched: tuple[Finished, Path]) -> None:
    _, root = tail_batched
    for step in range(1, 6):
        groups = pq.read_table(root / "first" / "groups" / f"step={step:05d}").to_pylist()
        assert [len(group["indices"]) for group in groups] == [4] * 4


def test_no_token_of_a_step_is_older_than_its_weights(tail_batched: tuple[Finished, Path]) -> None:
    _, root = tail_batched
    for step in range(1, 6):
        rows = pq.read_table(root / "first" / "responses" / f"step={step:05d}").to_pylist()
        assert {span["version"] for row in rows for span in row["versions"]} == {step - 1}


def test_every_token_is_in_one_column_of_the_ledger(tail_batched: tuple[Finished, Path]) -> None:
    _, root = tail_batched
    pattern = f"{root}/first/responses/**/*.parquet"
    query = (
        f"select step, fate, sum(len(token_ids)) from read_parquet('{pattern}',"
        " hive_partitioning=true) group by all"
    )
    booked = {(int(step), fate): tokens for step, fate, tokens in duckdb.sql(query).fetchall()}
    for path in (root / "first" / "steps").glob("*.json"):
        commit = json.loads(path.read_text())
        step, metrics = commit["step"], commit["metrics"]
        assert booked_as_trained(metrics) == booked.get((step, "trained"), 0)
        for column in ("aborted", "discarded"):
            assert metrics[f"ledger/{column}_tokens"] == booked.get((step, column), 0)


def test_counters_are_running_totals(tail_batched: tuple[Finished, Path]) -> None:
    _, root = tail_batched
    names = [root / "first" / "steps" / f"{step:05d}.json" for step in range(1, 6)]
    commits = [json.loads(path.read_text()) for path in names]
    for column in ("trained", "aborted", "discarded"):
        booked = [commit["metrics"][f"ledger/{column}_tokens"] for commit in commits]
        totals = [commit["counters"][f"tokens_{column}"] for commit in commits]
        assert totals == [sum(booked[:step]) for step in range(1, 6)]
    assert commits[-1]["counters"]["prompts_trained"] == 20


def test_trained_responses_have_their_advantage(tail_batched: tuple[Finished, Path]) -> None:
    _, root = tail_batched
    pattern = f"{root}/first/responses/**/*.parquet"
    columns = "fate, count(*), count(advantage), sum(advantage)"
    query = f"select {columns} from '{pattern}' group by fate"
    found = {fate: rest for fate, *rest in duckdb.sql(query).fetchall()}
    num_trained, num_advantages, total = found.pop("trained")
    assert num_trained == num_advantages == 80
    assert abs(total) < 1e-6
    assert all(num == 0 for _, num, _ in found.values())


def test_mlflow_has_the_metrics_of_every_step_and_the_way_back(
    tail_batched: tuple[Finished, Path],
) -> None:
    _, root = tail_batched
    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    (run,) = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments()]
    )
    times = (
        "time/step_s",
        "time/rollout_s",
        "time/train_s",
        "time/publish_s",
        "time/orchestration_s",
    )
    for name in (*times, "reward/mean", "bubble/tail_fraction"):
        assert [metric.step for metric in client.get_metric_history(run.info.run_id, name)] == [
            1,
            2,
            3,
            4,
            5,
        ], name
    assert [name for name in run.data.metrics if not is_described(name)] == []
    assert run.data.params["batch.prompts_per_step"] == "4"
    assert run.data.tags["prefect.flow_run_id"]


def test_the_stages_of_a_step_sum_to_its_time(tail_batched: tuple[Finished, Path]) -> None:
    _, root = tail_batched
    for path in (root / "first" / "steps").glob("*.json"):
        timings = json.loads(path.read_text())["timings"]
        total = timings.pop("finished_s") - timings.pop("started_s")
        assert sum(timings.values()) == pytest.approx(total, abs=1e-6)


def test_the_trained_model_is_kept_as_a_directory_that_loads(
    tail_batched: tuple[Finished, Path],
) -> None:
    _, root = tail_batched
    model = root / "first" / "model"
    last = json.loads((root / "first" / "steps" / "00005.json").read_text())["weights"]
    assert AutoModelForCausalLM.from_pretrained(model).config.vocab_size >= len(
        AutoTokenizer.from_pretrained(model)
    )
    assert digest(read_weights(model / "model.safetensors")) == last["digest"]
