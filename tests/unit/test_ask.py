"""Asking a trained model: which one, what, and what the answer is worth."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner_factories import make_model
from report_factories import make_run

from artifacts import layout
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.models.registry import TinyVisionConfig
from artifacts.printable import plain_signs
from artifacts.records import Generated, Prompt, WeightsRef
from artifacts.store import Store
from flows.commands import ask
from flows.config.run_config import RunConfig
from flows.run import OpenRun
from tasks.checkpointing import export_model
from tasks.engines import plain
from tasks.tiny_models.models import resolve_model
from tasks.tiny_models.seeing import build_seeing_model

WARM_START = {"kind": "path", "path": "start"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRun:
    """A finished run whose model, and the one it started from, have a few thousand parameters."""
    monkeypatch.chdir(tmp_path)
    made = make_run(
        Store.open(str(tmp_path / "runs")), model=WARM_START, sampling={"max_response_tokens": 8}
    )
    for seed, directory in ((0, tmp_path / "start"), (1, made.store.local_path(layout.MODEL))):
        make_model(directory, seed=seed)
        character_tokenizer().save_pretrained(directory)
    return made


def test_a_question_is_answered_the_same_each_time_unless_it_is_drawn(
    run: OpenRun, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for _ in range(2):
        assert ask.main(["run", "a1b2="]) == 0
        answers.append(capsys.readouterr().out.partition("\n")[0])
    assert answers[0] == answers[1]
    assert ask.main([str(run.store.url), "a1b2=", "--temperature", "1", "--max-tokens", "3"]) == 0
    assert "tokens in" in capsys.readouterr().out
    assert ask.main(["run", "--max-tokens", "3", "a1b2="]) == 0


def test_a_model_without_an_end_token_answers_up_to_the_bound(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plain, "read_stop_ids", lambda *_: ())
    assert ask.main(["run", "a1b2=", "--max-tokens", "3"]) == 0
    assert "3 tokens in" in capsys.readouterr().out


def test_the_starting_model_answers_beside_the_trained_one_and_both_are_scored(
    run: OpenRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask.main(["run", "--task", "3", "--before"]) == 0
    told = capsys.readouterr().out
    asked = ask.heldout_question(run.config, 3)
    assert plain_signs(asked.row.text) in told
    assert told.index("--- before") < told.index("--- after")
    assert told.count(f"expected {asked.row.gold}") == 2
    assert told.count("reward 0 (") == 2


def test_a_question_about_a_picture_shows_it_and_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_run(
        Store.open(str(tmp_path / "runs")),
        model=WARM_START,
        task={"kind": "shapes", "style": "terse"},
        sampling={"max_response_tokens": 8},
    )
    config = TinyVisionConfig(profile={"warm_up_steps": 1})
    for directory in (tmp_path / "start", made.store.local_path(layout.MODEL)):
        directory.mkdir(parents=True)
        build_seeing_model(config, directory, lambda line: None)
    assert ask.main(["run", "--task", "3", "--before"]) == 0
    told = capsys.readouterr().out
    assert "(a picture of " in told, "without colours"
    assert told.count("tokens in") == 2
    for name, value in (("FORCE_COLOR", "1"), ("COLORTERM", "truecolor"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    assert ask.main(["run", "--task", "3"]) == 0
    assert capsys.readouterr().out.count("▀") == ask.BLOCKS * ask.BLOCKS // 2
    assert ask.main(["run", "--max-tokens", "3", "circles="]) == 0


@pytest.fixture
def remote(run: OpenRun) -> Iterator[str]:
    """The root of a copy of the run in an object store."""
    root = "memory://asked"
    Store.open(root).upload(run.store.local_path(""), "run")
    run.store.delete("")
    yield root
    Store.open(root).delete("")


@pytest.mark.parametrize("named", [["run", "--root", "memory://asked"], ["memory://asked/run"]])
def test_a_run_under_a_remote_root_is_asked_by_its_name_or_its_url(
    remote: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask.main([*named, "--task", "3", "--before"]) == 0
    told = capsys.readouterr().out
    assert told.count("tokens in") == 2
    assert ask.main(["nobody", "--root", remote]) == 2
    assert "some of those there: run" in capsys.readouterr().err


def test_without_a_question_every_line_is_one(
    run: OpenRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a1b2=\n\na3b4=\n"))
    assert ask.main(["run"]) == 0
    assert capsys.readouterr().out.count("tokens in") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nobody"], "RUN must be a run under"),
        ([".."], "must hold a run, but has no manifest.json"),
        (["run", "--task", "99999"], "--task must be the number of a held-out question, 0 to"),
        (["run", "a1=", "--max-tokens", "256"], "--max-tokens must be 1 to 255"),
        (["run", "a1=", "--max-tokens", "0"], "--max-tokens must be 1 to 255"),
        (["run", "a1=", "--temperature=-1"], "--temperature must be >= 0"),
        (["run", "a1=", "--temperature=nan"], "--temperature must be >= 0, got nan"),
        (["run", "a" * 300], "a prompt must fit in 248 tokens"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    run: OpenRun, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert ask.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_model_that_is_cut_off_is_named(run: OpenRun, capsys: pytest.CaptureFixture[str]) -> None:
    weights = run.store.local_path(f"{layout.MODEL}/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    assert ask.main(["run", "a1="]) == 2
    assert f"hold whole weights, those of {weights.parent} are not" in capsys.readouterr().err


def test_an_episode_of_a_task_is_no_question() -> None:
    config = RunConfig.model_validate({"preset": "tiny-agent"})
    with pytest.raises(ValueError, match="those of 'guess' are episodes of an environment"):
        ask.heldout_question(config, 0)


def test_a_run_that_goes_on_has_no_model_to_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(Store.open(str(tmp_path)))
    assert ask.main(["run", "a1=", "--root", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "run has made 0 of 36 steps" in told
    assert f"'rollflow demo --root {tmp_path} --resume run'" in told


def test_a_chat_template_of_the_runs_own_is_that_of_both_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starting model is asked by the user's file, the trained one by its exported copy."""
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "start", seed=0)
    character_tokenizer().save_pretrained(tmp_path / "start")
    loud = "{% for message in messages %}={{ message['content'] }}={% endfor %}"
    (tmp_path / "mine.jinja").write_text(loud)
    settings = {**WARM_START, "chat_template": "mine.jinja"}
    made = make_run(
        Store.open(str(tmp_path / "runs")), model=settings, sampling={"max_response_tokens": 8}
    )
    found = resolve_model(made.config.model, Path(made.config.keep.model_cache))
    context = replace(made.context, model_path=str(found), artifact_root=str(tmp_path / "runs"))
    weights = WeightsRef(version=1, path=str(tmp_path / "start" / "model.safetensors"), digest="")
    export_model(context, weights)
    asked: list[str] = []
    answer = plain.PlainModel.answer

    def noted(model: plain.PlainModel, prompt: Prompt, *rest: Any) -> Generated:  # Any: as it has
        asked.append(str(model.tokenizer.decode(list(prompt.token_ids))))
        return answer(model, prompt, *rest)

    monkeypatch.setattr(plain.PlainModel, "answer", noted)
    (tmp_path / "mine.jinja").rename(tmp_path / "moved.jinja")
    assert ask.main(["run", "a1b2="]) == 0
    (tmp_path / "moved.jinja").rename(tmp_path / "mine.jinja")
    assert ask.main(["run", "a1b2=", "--before"]) == 0
    assert asked == ["=a1b2=="] * 3
