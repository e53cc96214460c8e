"""Whole runs on simulated engines: the flow, the cluster, rewards, learners, gate, records and
MLflow are real; what the engines say is written, not sampled."""

from __future__ import annotations

import json
import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import duckdb
import pytest
import torch
from mlflow import MlflowClient

from artifacts.models.character_tokenizer import VOCABULARY_SIZE, character_tokenizer
from artifacts.weights import read_weights
from flows.commands import recommend
from research.benchmarks.tiny_architectures import save_tiny
from tests.flows.conftest import (
    DRAWN,
    ENDS_WITHIN_S,
    SIMULATED,
    Finished,
    Launcher,
    wait_for,
    worker_of,
)

pytestmark = pytest.mark.flow

Row = tuple[Any, ...]  # Any: values of a table
# by itself a learner's dtype follows its cores, for sharded parameters another way
ON_ALL_CORES = (*SIMULATED, "learner.compute=fp32")
# everything that a response is but when it came, and from which of two equal engines
SAID = "prompt_id, index, token_ids, logprobs, text, finish_reason, outcome, reward, fate"


def commits(run: Path) -> list[dict[str, Any]]:  # Any: JSON
    """The commits of a run, in order."""
    return [json.loads(path.read_text()) for path in sorted((run / "steps").glob("*.json"))]


def digests(run: Path) -> list[str]:
    """Of the weights after every step."""
    return [commit["weights"]["digest"] for commit in commits(run)]


def said(run: Path, step: int, columns: str = SAID) -> list[Row]:
    """The responses of a step, sorted."""
    rows = f"read_parquet('{run}/responses/step={step:05d}/*.parquet')"
    return duckdb.sql(f"select {columns} from {rows} order by prompt_id, index").fetchall()


@pytest.fixture(scope="module")
def plain(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """Two synchronous steps."""
    root = tmp_path_factory.mktemp("runs")
    return launcher.run(root, *ON_ALL_CORES, 'run_name="plain"'), root / "plain"


def test_a_synchronous_run_trains_all_that_it_asked(plain: tuple[Finished, Path]) -> None:
    finished, run = plain
    assert finished.code == 0, finished.err
    assert [commit["kind"] for commit in commits(run)] == ["sync", "sync"]
    for step in (1, 2):
        rows = said(run, step, "fate, finish_reason, reward")
        assert len(rows) == 16
        assert {fate for fate, _, _ in rows} == {"trained"}
        assert {reward for _, _, reward in rows} == {0.0, 1.0}, "answers are right now and then"
    assert [commit["weights"]["version"] for commit in commits(run)] == [1, 2]


def test_the_gate_says_that_it_compared_tensors_alone(plain: tuple[Finished, Path]) -> None:
    """An engine without a model has no log-probabilities to compare: no figure claims that it
    has."""
    _, run = plain
    for commit in commits(run):
        assert "publish/probe_difference_nats" not in commit["metrics"]
        assert commit["metrics"]["time/gate_s"] >= 0


def test_what_is_recommended_after_a_run_trains(
    launcher: Launcher, plain: tuple[Finished, Path], tmp_path: Path
) -> None:
    """The file has the run's settings, simulated engines among them, and what was chosen."""
    best = tmp_path / "best.json"
    assert recommend.main(["--run", str(plain[1]), "--seeds", "1", "--write", str(best)]) == 0
    finished = launcher.run(tmp_path, 'run_name="best"', settings=str(best))
    assert finished.code == 0, finished.err
    run, chosen = tmp_path / "best", json.loads(best.read_text())
    config = json.loads((run / "manifest.json").read_text())["config"]
    assert config["engine"]["kind"] == "simulated"
    assert config["cluster"]["roles"] == chosen["cluster"]["roles"]
    assert config["scheduling"] == config["scheduling"] | chosen["scheduling"]
    assert config["stream_trainer"]["enabled"] == chosen["stream_trainer"]["enabled"]
    assert len(commits(run)) >= 2


def test_without_an_async_ratio_the_records_are_those_of_synchronous_steps(
    launcher: Launcher, plain: tuple[Finished, Path], tmp_path: Path
) -> None:
    """To the bit: the same seed gives the same tables and the same weights, also by another
    policy."""
    _, run = plain
    scheduling = 'scheduling={"kind": "asynchronous", "async_ratio": 0}'
    finished = launcher.run(tmp_path, *ON_ALL_CORES, scheduling, 'run_name="without"')
    assert finished.code == 0, finished.err
    for step in (1, 2):
        assert said(tmp_path / "without", step) == said(run, step)
    assert digests(tmp_path / "without") == digests(run)


WINDOW = {"kind": "reinforce_plus_plus", "baseline": "step", "window": 2}
SEVERAL = (
    "learner.mini_batches=2",
    "learner.passes=2",
    "learner.optimizer.learning_rate=0.001",
    f"learner.advantage={json.dumps(WINDOW)}",
)


@pytest.fixture(scope="module")
def updated(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """Two synchronous steps of four updates each, whose rewards are compared with both steps'."""
    root = tmp_path_factory.mktemp("runs")
    return launcher.run(root, *ON_ALL_CORES, *SEVERAL, 'run_name="updated"'), root / "updated"


def test_a_step_of_several_updates_tells_how_far_each_has_moved(
    updated: tuple[Finished, Path],
) -> None:
    finished, run = updated
    assert finished.code == 0, finished.err
    for commit in commits(run):
        figures = commit["metrics"]
        assert figures["train/applied"] == 4
        moved = [figures[f"train/update_{number}_proximal_k3"] for number in range(1, 5)]
        assert moved[0] == 0 < min(moved[1:])
        assert figures["train/update_1_clip_fraction"] == 0 <= figures["train/clip_fraction"]
    assert commits(run)[-1]["counters"]["updates_made"] == 8


def test_rewards_are_compared_with_those_of_the_window(updated: tuple[Finished, Path]) -> None:
    _, run = updated
    rewards = [[reward for (reward,) in said(run, step, "reward")] for step in (1, 2)]
    for step, known in ((1, rewards[0]), (2, [*rewards[0], *rewards[1]])):
        for reward, advantage in said(run, step, "reward, advantage"):
            expected = (reward - mean(known)) / pstdev(known)
            assert advantage == pytest.approx(expected, rel=1e-4)
    assert rewards[0] != rewards[1]


@pytest.mark.recovery
def test_a_lost_learner_comes_back_to_the_weights_of_several_updates(
    launcher: Launcher, updated: tuple[Finished, Path], tmp_path: Path
) -> None:
    """A rank is killed in the second step, without a checkpoint: the first is replayed."""
    run = tmp_path / "killed"
    settings = (*ON_ALL_CORES, *SEVERAL, "keep.checkpoint_every_steps=10", f'run_name="{run.name}"')
    process = launcher.start(tmp_path, *settings)
    wait_for(run / "rounds" / "00002.json", process)
    worker_of(process, "learner-1").send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert digests(run) == digests(updated[1])
    if commits(run)[1]["metrics"]["round/attempts"] == 1:
        pytest.skip("the kill came after the step")


@pytest.fixture(scope="module")
def drained(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """Three planned steps of tail batching: each leaves a prompt behind, and a drain asks them. The
    model is registered."""
    root = tmp_path_factory.mktemp("runs")
    registered = ("keep.log_model=true", "keep.registered_model=adder")
    settings = ("num_steps=3", 'run_name="drained"', *registered)
    return launcher.run(root, *ON_ALL_CORES, *settings, preset="tiny"), root / "drained"


def test_tail_batching_drains_its_queue_at_the_end(drained: tuple[Finished, Path]) -> None:
    finished, run = drained
    assert finished.code == 0, finished.err
    done = commits(run)
    assert [commit["kind"] for commit in done] == ["short"] * 3 + ["drain"]
    assert [len(commit["queue"]["queue"]) for commit in done] == [1, 2, 3, 0]
    trained = [row for step in range(1, 5) for row in said(run, step, "prompt_id, index, fate")]
    names = [(prompt, index) for prompt, index, fate in trained if fate == "trained"]
    assert len(names) == len(set(names)) == done[-1]["counters"]["prompts_trained"] * 4


def test_what_a_short_round_gives_up_is_asked_again_in_the_drain(
    drained: tuple[Finished, Path],
) -> None:
    _, run = drained
    deferred = {prompt for prompt, _ in commits(run)[2]["queue"]["queue"]}
    assert {prompt for (prompt,) in said(run, 4, "prompt_id")} == deferred


def test_mlflow_has_every_step_of_a_simulated_run(drained: tuple[Finished, Path]) -> None:
    _, run = drained
    client = MlflowClient(f"sqlite:///{run.parent}/mlflow.db")
    names = [experiment.experiment_id for experiment in client.search_experiments()]
    (tracked,) = client.search_runs(names)
    history = client.get_metric_history(tracked.info.run_id, "reward/mean")
    assert [metric.step for metric in history] == [1, 2, 3, 4]
    assert tracked.data.params["engine.kind"] == "simulated"


def test_the_trained_model_of_a_run_is_registered(drained: tuple[Finished, Path]) -> None:
    finished, run = drained
    client = MlflowClient(f"sqlite:///{run.parent}/mlflow.db")
    (version,) = client.search_model_versions("name = 'adder'")
    assert version.run_id == json.loads((run / "manifest.json").read_text())["mlflow_run_id"]
    kept = Path(version.source.removeprefix("file://")) / "model" / "model.safetensors"
    registered, trained = dict(read_weights(kept)), dict(read_weights(run / "model" / kept.name))
    assert registered.keys() == trained.keys()
    assert all(torch.equal(registered[name], trained[name]) for name in trained)
    assert "MLflow did not take the model" not in finished.out


REWARD = """
import os

def reward(prompt, response, gold):
    with open({calls!r}, "a") as calls:
        calls.write(".")
    if os.path.getsize({calls!r}) > 21 and not os.path.exists({mended!r}):
        raise RuntimeError("no verdict today")
    return float(response.rpartition("Answer: ")[2] == gold)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """A run that an exception ended, and that was resumed."""

    run: Path
    stopped: Finished  # the first attempt
    committed: list[str]  # digests of the weights that it left
    resumed: Finished


@pytest.fixture(scope="module")
def mended(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Mended:
    """A reward of one's own that agrees with the plain run's raises after the check before
    the start, the first evaluation and the first step, 21 responses in all, until it is mended."""
    folder = tmp_path_factory.mktemp("mended")
    calls, cure, source = folder / "calls", folder / "cure", folder / "mine.py"
    source.write_text(REWARD.format(calls=str(calls), mended=str(cure)))
    rewards = json.dumps({"*": {"kind": "custom", "path": f"{source}:reward"}})
    root, run = folder / "runs", folder / "runs" / "mended"
    stopped = launcher.run(root, *ON_ALL_CORES, DRAWN, f"rewards={rewards}", 'run_name="mended"')
    committed = digests(run)
    cure.touch()
    resumed = launcher.run(root, DRAWN, resume="mended")
    return Mended(run=run, stopped=stopped, committed=committed, resumed=resumed)


def test_a_run_that_an_exception_ended_goes_on_as_if_it_had_not(
    mended: Mended, plain: tuple[Finished, Path]
) -> None:
    assert mended.stopped.code != 0
    assert "no verdict today" in mended.stopped.err
    expected = digests(plain[1])
    assert mended.committed == expected[:1], "a step whose verdicts are missing is not kept"
    assert mended.resumed.code == 0, mended.resumed.err
    assert digests(mended.run) == expected


def test_the_page_of_a_resumed_run_tells_of_the_steps_before_it_too(mended: Mended) -> None:
    page = " ".join((mended.run / "report" / "index.html").read_text().split())
    assert "finished, 2 steps" in page
    for commit in commits(mended.run):
        reward = commit["metrics"]["reward/mean"]
        row = f"<tr><td>{commit['step']}</td><td>sync</td>"
        assert f'{row}<td class="number">{reward:.3f}</td>' in page
    assert "asked before training and after step 2" in page
    heldout = page.partition('<h2 id="answers">')[2].partition("<h2")[0]
    assert heldout.count("<article>") == 4, "the held-out questions, with both answers"


# share of elements: the last bits of a gradient may decide about a rounding to bf16
ROUNDED_OTHERWISE = 1e-3


def exported(run: Path) -> torch.Tensor:
    """All elements of the model that a run leaves behind."""
    return torch.cat(
        [tensor.flatten() for _, tensor in read_weights(run / "model/model.safetensors")]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A run that went on after a kill."""

    run: Path
    out: str  # what the terminal showed

    def check_that_it_recovered(self) -> None:
        """A kill that came too late leaves nothing to look at."""
        if commits(self.run)[1]["metrics"]["round/attempts"] == 1:
            pytest.skip("the kill came after the step")


@pytest.fixture(scope="module")
def recovered(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Recovered:
    """A rank of sharded parameters is killed in the second step, without a checkpoint."""
    run = tmp_path_factory.mktemp("runs") / "sharded"
    settings = ("learner.parameters=sharded", "keep.checkpoint_every_steps=10")
    process = launcher.start(run.parent, *ON_ALL_CORES, *settings, f'run_name="{run.name}"')
    wait_for(run / "rounds" / "00002.json", process)
    worker_of(process, "learner-0").send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    return Recovered(run=run, out=out + err)


@pytest.mark.recovery
def test_sharded_parameters_are_trained_like_replicated_ones_and_survive_a_killed_rank(
    recovered: Recovered, plain: tuple[Finished, Path]
) -> None:
    """All ranks are made anew, and replay the first step to its very weights, or the run ends."""
    replicated, run = plain[1], recovered.run
    for step, (got, expected) in enumerate(zip(commits(run), commits(replicated), strict=True), 1):
        assert said(run, step) == said(replicated, step)
        norm = pytest.approx(expected["metrics"]["train/grad_norm"], rel=1e-4)
        assert got["metrics"]["train/grad_norm"] == norm
    assert (exported(run) != exported(replicated)).float().mean() < ROUNDED_OTHERWISE
    recovered.check_that_it_recovered()


@pytest.mark.recovery
def test_experts_that_ranks_share_have_the_same_bits_after_a_killed_rank(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Beside a run of which nobody is killed; a rank is, in the second step."""
    model = save_tiny("qwen3_moe", tmp_path / "model", VOCABULARY_SIZE)
    character_tokenizer().save_pretrained(model)
    settings = (
        *ON_ALL_CORES, f'model={{"kind": "path", "path": "{model}"}}',
        "learner.parameters=sharded", "keep.checkpoint_every_steps=10",
    )  # fmt: skip
    whole = launcher.run(tmp_path, *settings, 'run_name="whole"')
    assert whole.code == 0, whole.err
    killed = Recovered(run=tmp_path / "killed", out="")
    process = launcher.start(tmp_path, *settings, 'run_name="killed"')
    wait_for(killed.run / "rounds" / "00002.json", process)
    worker_of(process, "learner-0").send_signal(signal.SIGKILL)
    _, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    assert digests(killed.run) == digests(tmp_path / "whole")
    assert len(set(digests(killed.run))) == 2
    killed.check_that_it_recovered()


def logs_in_prefect(launcher: Launcher, run: Path) -> list[str]:
    """What Prefect has of the flow run of a run."""
    (flow_run,) = json.loads((run / "manifest.json").read_text())["prefect_flow_run_ids"]
    asked = {"logs": {"flow_run_id": {"any_": [flow_run]}}}
    request = urllib.request.Request(
        f"{launcher.environment['PREFECT_API_URL']}/logs/filter",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return [line["message"] for line in json.load(answer)]


@pytest.mark.recovery
def test_a_loss_is_told_in_the_log_of_the_run_and_in_prefect_not_on_the_terminal(
    recovered: Recovered, launcher: Launcher
) -> None:
    recovered.check_that_it_recovered()
    log = (recovered.run / "log" / "flow.log").read_text()
    in_prefect = "\n".join(logs_in_prefect(launcher, recovered.run))
    for told in (
        "step=2 attempt=1 reason=",
        "replacing lost actors names=learner-0,learner-1: learner-0 is lost: its process was"
        " killed by SIGKILL",
    ):
        assert log.count(told) == 1
        assert in_prefect.count(told) == 1
        assert told not in recovered.out
