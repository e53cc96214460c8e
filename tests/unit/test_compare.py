"""Comparing runs: by name or id, from MLflow alone, with an error that names what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifacts.reports.tracking import RunTracker
from flows.commands.compare import RunHistory, main, show


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A tracking URI with a slow run, a fast one and an empty one, and the fast one's id."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    ids = [logged(uri, "slow", 4, 6.0), logged(uri, "fast", 4, 3.0), logged(uri, "empty", 0, 1.0)]
    return uri, ids[1]


def logged(uri: str, name: str, num_steps: int, step_s: float, model: str = "tiny_llama") -> str:
    tracker = RunTracker(uri)
    params = {"model": {"kind": model}, "seed": step_s, "keep": {"artifact_root": name}}
    run_id = tracker.start(experiment="tests", run_name=name, params=params, tags={})
    for step in range(1, num_steps + 1):
        times = {"time/step_s": step_s, "time/rollout_s": step_s / 2, "time/train_s": step_s / 3}
        tracker.log_step(
            step,
            {
                **times,
                "reward/mean": 0.1 * step,
                "round/is_long": float(step == 4),
                "ledger/trained_tokens": 600.0,
            },
        )
    tracker.end("FINISHED")
    return run_id


def test_names_and_ids_give_stages_speed_up_and_plot(
    tracked: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    uri, fast_id = tracked
    plot = tmp_path / "out.png"
    assert main(["slow", fast_id, "--tracking-uri", uri, "--plot", str(plot)]) == 0
    told = capsys.readouterr().out
    assert "fast takes 3 s a step, slow 6 s: 2.00x faster." in told
    assert "fast trains 200 response tokens a second of its steps, slow 100." in told
    assert "A = slow (4 steps)" in told
    assert "seed" in told
    assert "artifact_root" not in told
    assert told.index("mean reward") < told.index("seed") < told.index("A median")
    assert "fast: mean reward 0.250 in its first 4 steps, 0.250 in its last." in told
    assert "25% of its 4 rounds were long" in told
    assert told.index("rollout_s") < told.index("train_s") < told.index("step_s ")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_runs_of_different_models_have_no_speed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    logged(uri, "slow", 2, 6.0)
    logged(uri, "fast", 2, 3.0, model="smollm2")
    assert main(["slow", "fast", "--tracking-uri", uri]) == 0
    told = capsys.readouterr().out
    assert "3 s a step, slow 6 s: their models differ, so this is no speed-up." in told
    assert "A / B" not in told
    assert "model.kind" in told


@pytest.mark.parametrize("name", ["nothing", "it's"])
def test_an_unknown_run_is_one_sentence_with_the_known_ones(
    tracked: tuple[str, str], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["slow", name, "--tracking-uri", tracked[0]]) == 2
    told = capsys.readouterr().err
    assert "RUN must be an MLflow run id or run name" in told
    assert "the latest there: empty, fast, slow" in told


def test_a_run_without_steps_cannot_be_compared(
    tracked: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slow", "empty", "--tracking-uri", tracked[0]]) == 2
    assert "'empty' must have at least one step" in capsys.readouterr().err


def test_a_database_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["a", "b", "--tracking-uri", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert "must name a database that is there" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:///{}", "must name a database that is there"),
        ("sqlite:///{}/notes.db", "file is not a database; give the one"),
        ("ftp://nowhere", "unsupported URI 'ftp://nowhere'"),
    ],
)
def test_what_mlflow_cannot_read_is_one_sentence(
    uri: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.db").write_text("what to buy: " * 1000)
    assert main(["a", "b", "--tracking-uri", uri.format(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: --tracking-uri must name")
    assert said in told


def test_a_plot_that_cannot_be_written_is_one_sentence_behind_the_table(
    tracked: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slow", "fast", "--tracking-uri", tracked[0], "--plot", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "2.00x faster" in told.out
    assert "Is a directory" in told.err


def test_the_names_of_runs_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"time/step_s": {1: 2.0}}
    run = RunHistory(name="baseline [old]", run_id="1", metrics=times)
    show(run, run, plot=None)
    assert "A = baseline [old] (1 steps)" in capsys.readouterr().out
