"""A folder that `rollflow init` has written trains as it is; the preset `own` asks for what is the
user's, fits itself to the rows, and names the run after model and questions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.commands import init
from flows.commands.command_line import checked_configuration
from flows.commands.demo import parser
from flows.config.misfits import misfits_of_places
from flows.config.rows_needed import fitted, misfit_of_rows
from flows.config.run_config import RunConfig
from flows.config.subject import lent_questions, subject
from flows.run import with_rows_that_fit
from tasks.run.prompts import task_dataset


def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a folder below a working directory of its own; its path as seen from there."""
    monkeypatch.chdir(tmp_path)
    assert init.main(["mine"]) == 0
    return Path("mine")


def test_a_written_folder_passes_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path, monkeypatch) / init.RUN
    assert f"rollflow demo --settings {run}" in capsys.readouterr().out
    config = checked_configuration(parser().parse_args(["--settings", str(run)]))
    assert config.num_steps == init.NUM_STEPS
    assert len(init.QUESTIONS_TEXT.splitlines()) == len(set(init.QUESTIONS_TEXT.splitlines())) == 24
    config = with_rows_that_fit(config)
    told = capsys.readouterr().out
    assert "fitted to 24 questions: task.heldout_fraction=0.2083, evaluation.num_prompts=5" in told
    assert not misfit_of_rows(config, task_dataset(config.task, config.seed))
    assert subject(config) == "smollm2-questions"


def test_the_written_rewards_own_test_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = folder(tmp_path, monkeypatch) / init.REWARD
    plain = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(reward)]
    done = subprocess.run(plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_folder_that_holds_anything_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path, monkeypatch) / init.RUN
    before = run.read_text()
    assert init.main(["mine"]) == 2
    said = capsys.readouterr().err
    assert "FOLDER must be new or empty, mine holds questions.jsonl, reward.py, run.json" in said
    assert said.rstrip().endswith("rollflow init mine-2")
    assert run.read_text() == before


def test_the_preset_own_asks_for_model_questions_and_reward_at_once() -> None:
    [told] = misfits_of_places(RunConfig.model_validate({"preset": "own"}))
    for asked in ("model.path=DIRECTORY", "task.path=FILE", "'rewards.*.path=FILE.py:FUNCTION'"):
        assert f"--set {asked}" in told
    assert told.endswith("'rollflow init FOLDER' writes a first folder")


@pytest.mark.parametrize("num_rows", [12, 24, 60, 2000])
def test_the_preset_own_fits_itself_to_the_rows(num_rows: int, tmp_path: Path) -> None:
    config = own_of(num_rows, tmp_path)
    dataset = task_dataset(config.task, config.seed)
    suffices = not misfit_of_rows(config, dataset)
    changed, told = fitted(config, dataset)
    assert (told == "") == suffices == (num_rows == 2000)
    assert not misfit_of_rows(changed, task_dataset(changed.task, changed.seed))
    assert not [told for told in misfits_of_places(config) if "rows" in told or "held" in told]


def test_what_a_user_has_set_is_not_changed(tmp_path: Path) -> None:
    config = own_of(24, tmp_path, evaluation={"num_prompts": 20})
    assert fitted(config, task_dataset(config.task, config.seed)) == (config, "")
    assert any("held-out prompts (1), got 20" in told for told in misfits_of_places(config))


def test_other_presets_leave_their_settings(tmp_path: Path) -> None:
    file = {"kind": "files", "path": own_of(24, tmp_path).task.model_dump()["path"]}
    config = RunConfig.model_validate({"preset": "tiny", "task": file})
    assert fitted(config, task_dataset(config.task, config.seed)) == (config, "")


def own_of(num_rows: int, tmp_path: Path, **values: object) -> RunConfig:
    file = tmp_path / "questions.jsonl"
    rows = ({"prompt": f"{number} + 1", "answer": str(number + 1)} for number in range(num_rows))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    reward = {"*": {"kind": "math_answer"}}
    given = {"preset": "own", "model": {"kind": "smollm2"}, "task": {"path": str(file)}}
    return RunConfig.model_validate({**given, "rewards": reward, **values})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"preset": "tiny"}, "tiny"),
        ({"preset": "smollm2", "num_steps": 3}, "smollm2"),
        ({"model": {"kind": "path", "path": "/models/my model.v2/"}}, "my-model.v2-curriculum"),
        (
            {"preset": "own", "model": {"path": "m/Llama"}, "task": {"path": "a/q*.jsonl.gz"}},
            "Llama-q",
        ),
        (
            {
                "model": {"kind": "hub", "repository": "Qwen/Qwen3-0.6B"},
                "task": {"kind": "files", "path": "s3://bucket/sums.parquet"},
            },
            "Qwen3-0.6B-sums",
        ),
        ({"preset": "tiny", "task": {"kind": "tiny_mix"}}, "tiny_llama-tiny_mix"),
    ],
)
def test_a_run_is_named_after_what_is_trained(values: dict[str, object], name: str) -> None:
    assert subject(RunConfig.model_validate(values)) == name


def test_an_own_model_on_a_demos_questions_is_told() -> None:
    model = {"kind": "path", "path": "/models/mine"}
    told = lent_questions(RunConfig.model_validate({"model": model}))
    assert "mine learns the questions of the preset smollm2" in told
    assert "--preset own asks for yours" in told
    for values in (
        {"model": model, "task": {"kind": "tiny_mix"}},
        {"preset": "tiny"},
        {"preset": "own", "model": model},
    ):
        assert not lent_questions(RunConfig.model_validate(values))
