"""A chat template of the user's: how it reaches engines and the export, and how a wrong one is
told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from learner_factories import make_model
from plan_factories import CONTEXT

from artifacts import layout
from artifacts.datasets.rows import Message
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.models.chat_template import check_template, read_template, templated
from artifacts.models.registry import PathConfig
from artifacts.records import WeightsRef
from artifacts.store import Store
from flows.config.misfits import misfits_of_places
from flows.config.run_config import RunConfig
from flows.config.trials import misfits_of_trials
from tasks.checkpointing import export_model
from tasks.engines.chat_tokens import chat_tokens
from tasks.engines.model_files import read_tokenizer
from tasks.tiny_models.models import resolve_model

LOUD = "{% for message in messages %}={{ message['content'] }}={% endfor %}"
QUIET = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of a few thousand parameters, whose tokenizer's settings name a template, too."""
    directory = tmp_path / "base"
    make_model(directory)
    character_tokenizer().save_pretrained(directory)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "x"}))
    return directory


def template(folder: Path, text: str = LOUD) -> str:
    file = folder / "mine.jinja"
    file.write_text(text)
    return str(file)


def asked(directory: Path) -> str:
    tokens = chat_tokens(read_tokenizer(str(directory)))
    return tokens.render([Message(role="user", content="a1=")], asks=True)


def test_the_users_template_renders_prompts_and_the_models_own_stays(
    model: Path, tmp_path: Path
) -> None:
    before = asked(model)
    config = PathConfig(path=str(model), chat_template=template(tmp_path))
    found = resolve_model(config, tmp_path / "cache")
    assert asked(found) == "=a1=="
    assert asked(model) == before != asked(found)
    assert (found / "model.safetensors").resolve() == model / "model.safetensors"
    assert "chat_template" not in json.loads((found / "tokenizer_config.json").read_text())
    assert resolve_model(PathConfig(path=str(model)), tmp_path / "cache") == model


def test_the_directory_is_another_for_another_template_or_other_files(
    model: Path, tmp_path: Path
) -> None:
    file, cache = template(tmp_path), tmp_path / "cache"
    seen = [templated(model, file, cache), templated(model, file, cache)]
    (model / "vocab.txt").write_text("a")
    seen.append(templated(model, file, cache))
    seen.append(templated(model, template(tmp_path, QUIET), cache))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_the_template_is_exported_with_the_trained_model(model: Path, tmp_path: Path) -> None:
    config = PathConfig(path=str(model), chat_template=template(tmp_path))
    found = resolve_model(config, tmp_path / "cache")
    run = replace(CONTEXT, artifact_root=str(tmp_path), run_id="run", model_path=str(found))
    weights = WeightsRef(version=1, path=str(model / "model.safetensors"), digest="")
    export_model(run, weights)
    exported = Path(Store.open(str(tmp_path)).child("run").local_path(layout.MODEL))
    assert (exported / "chat_template.jinja").read_text() == LOUD
    assert not any(path.is_symlink() for path in exported.iterdir())
    assert asked(exported) == "=a1=="


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{% for message in messages %}", "must render a question, .*mine.jinja does not"),
        ("{{ raise_exception('no users') }}", "no users"),
        ("{{ messages[0].content + 1 }}", "must render a question"),
        ("{% for turn in conversation %}{{ turn.content }}{% endfor %}x", "leaves it out of 'x'"),
    ],
)
def test_a_template_that_renders_no_question_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_template(template(tmp_path, text), has_system=False)


def test_a_template_without_system_turns_is_told_if_the_task_has_one(tmp_path: Path) -> None:
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    file = template(tmp_path, text + LOUD)
    check_template(file, has_system=False)
    with pytest.raises(ValueError, match=r"a question after a system turn.*no system"):
        check_template(file, has_system=True)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b" \n", "is empty"), (b"\xff\xfe", "is not UTF-8"), (b"x" * ((1 << 20) + 1), "is larger")],
)
def test_a_file_that_is_no_template_is_told(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "mine.jinja").write_bytes(data)
    with pytest.raises(ValueError, match=words):
        read_template(str(tmp_path / "mine.jinja"))


def test_both_are_told_before_a_run_starts(tmp_path: Path) -> None:
    def config(file: str) -> RunConfig:
        return RunConfig.model_validate({"preset": "tiny", "model": {
            "kind": "smollm2", "chat_template": file}})  # fmt: skip

    told = "\n".join(misfits_of_places(config("none.jinja")))
    assert "there is no file none.jinja; --set model.chat_template=FILE" in told
    assert misfits_of_trials(config(template(tmp_path))) == []
    told = "\n".join(misfits_of_trials(config(template(tmp_path, "{% if %}"))))
    assert "does not (line 1: " in told
