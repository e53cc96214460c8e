"""Whole runs that train several adapters side by side: on the real engine from questions to what is
left behind, and on simulated ones through a kill."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from artifacts.adapter_files import read_adapter
from artifacts.datasets.chain_sum import ChainSumConfig
from artifacts.weights import read_weights
from tests.flows.conftest import (
    ADAPTER,
    RATES,
    SIMULATED,
    STREAMED,
    SWEPT,
    Launcher,
    Settings,
    moment,
    wait_for,
)

pytestmark = pytest.mark.flow

PAIR = "engine.tensor_parallel_size=2"


def commits(run: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]


def asked(run: Path) -> Counter[tuple[int, str]]:
    """The trained groups, by step and adapter."""
    tables = f"read_parquet('{run}/groups/*/*.parquet', hive_partitioning=true)"
    rows = duckdb.sql(f"select step, adapter from {tables}").fetchall()
    return Counter((int(step), str(adapter)) for step, adapter in rows)


@pytest.mark.engine
@pytest.mark.parametrize("spread", [("num_steps=3",), (PAIR,)], ids=["alone", "tensor-parallel"])
def test_a_run_trains_two_adapters_side_by_side(
    launcher: Launcher, tmp_path: Path, spread: Settings
) -> None:
    run = tmp_path / "two"
    settings = (*SWEPT, *spread, "batch.prompts_per_step=8", f'run_name="{run.name}"')
    finished = launcher.run(tmp_path, *settings, preset="tiny")
    assert finished.code == 0, finished.err
    planned = [commit for commit in commits(run) if commit["kind"] != "drain"]
    for commit in planned:
        figures = commit["metrics"]
        assert 0 < figures["publish/probe_difference_nats"] < 0.1
        for name, rate in RATES.items():
            assert figures[f"adapter/{name}_learning_rate"] == rate
            assert 0 <= figures[f"adapter/{name}_reward_mean"] <= 1
            assert asked(run)[commit["step"], name] == 4, "as many groups of each"
    adapters = {name: read_adapter(str(run / "adapter" / name)).tensors for name in RATES}
    largest = {
        name: max(float(each.abs().max()) for stem, each in own.items() if "lora_B" in stem)
        for name, own in adapters.items()
    }
    assert largest["fast"] > 20 * largest["slow"] > 0
    told = finished.out + finished.err
    assert "model/ is of adapter" in told
    assert dict(read_weights(run / "model" / "model.safetensors"))
    answers = f"read_parquet('{run}/evaluation/responses/*/*.parquet')"
    names = duckdb.sql(f"select distinct adapter from {answers}").fetchall()
    assert {name for (name,) in names} == set(RATES)


def test_a_sweep_that_is_killed_resumes(launcher: Launcher, tmp_path: Path) -> None:
    """All adapters, their moments and what is asked next are those of an uninterrupted run."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    given = (*SIMULATED, *SWEPT, "num_steps=3")
    finished = launcher.run(tmp_path, *given, f'run_name="{whole.name}"')
    assert finished.code == 0, finished.err
    process = launcher.start(tmp_path, *given, f'run_name="{killed.name}"')
    wait_for(moment(killed, "steps/00002.json"), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    finished = launcher.run(tmp_path, "num_steps=3", resume=killed.name)
    assert finished.code == 0, finished.err
    both = [[commit["weights"]["digest"] for commit in commits(run)] for run in (whole, killed)]
    assert both[0] == both[1]
    assert len(set(both[0])) == 3
    assert asked(whole) == asked(killed)
    assert {name for _, name in asked(whole)} == set(RATES)


def of_two_domains(path: Path) -> Settings:
    """Sums of few and of many terms as domains of their own, each the domain of one adapter."""
    lines = []
    for row in ChainSumConfig(num_prompts=200, min_terms=3).load(0).rows:
        domain = "few" if len(row.text) < len("a1b2c3d4=") else "many"
        lines.append({"prompt": row.text, "answer": row.gold, "domain": domain})
    path.write_text("\n".join(map(json.dumps, lines)))
    task = {"kind": "files", "path": str(path), "domain_field": "domain", "heldout_fraction": 0.1}
    sweep = {f"of-{domain}": {"domains": [domain]} for domain in ("few", "many")}
    return (ADAPTER, f"learner.lora.sweep={json.dumps(sweep)}", f"task={json.dumps(task)}")


def test_each_domain_has_an_adapter_of_its_own(launcher: Launcher, tmp_path: Path) -> None:
    """In short rounds whose groups are trained while others are generated."""
    run = tmp_path / "domains"
    settings = (*SIMULATED, *STREAMED, *of_two_domains(tmp_path / "rows.jsonl"))
    words = (*settings, "batch.prompts_per_step=8", f'run_name="{run.name}"')
    finished = launcher.run(tmp_path, *words, preset="tiny")
    assert finished.code == 0, finished.err
    tables = f"read_parquet('{run}/responses/*/*.parquet')"
    rows = duckdb.sql(f"select distinct domain, adapter from {tables}").fetchall()
    assert sorted(rows) == [("few", "of-few"), ("many", "of-many")]
    planned = [commit for commit in commits(run) if commit["kind"] != "drain"]
    for commit in planned:
        trained = [num for (step, _), num in asked(run).items() if step == commit["step"]]
        assert sum(trained) == 8
        figures = commit["metrics"]
        assert {figures[f"adapter/of-{each}_applied"] for each in ("few", "many")} == {1.0}
    assert sum(commit["metrics"]["train/streamed_groups"] for commit in planned) > 0
    for name in ("of-few", "of-many"):
        tensors = read_adapter(str(run / "adapter" / name)).tensors
        assert any(each.any() for stem, each in tensors.items() if "lora_B" in stem)
