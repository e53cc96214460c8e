"""A file of settings says what differs from a preset, and what is read is what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands import explain
from flows.commands.command_line import assemble
from flows.commands.demo import parser, training_command
from flows.commands.options import PRESET
from flows.config.presets import PRESETS
from flows.config.run_config import RunConfig
from flows.config.settings_file import read_settings, settings_of, write_settings

Json = dict[str, Any]  # Any: JSON values
CHANGES: tuple[Json, ...] = (
    {},
    {"scheduling": {"kind": "tail_batching", "prompt_overprovision": 1.5}},
    {"scheduling": {"kind": "sync"}, "engine": {"kind": "simulated"}},
    {"learner": {"optimizer": {"learning_rate": 3e-6}, "advantage": {"kind": "dr_grpo"}}},
    {"cluster": {"scheduler_port": 8786}, "keep": {"artifact_root": "/elsewhere"}},
)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_its_name_alone(preset: str) -> None:
    assert settings_of(RunConfig.model_validate({"preset": preset})) == {"preset": preset}


@pytest.mark.parametrize("changes", CHANGES)
def test_what_is_written_is_read_again(changes: Json, tmp_path: Path) -> None:
    config = RunConfig.model_validate({"preset": "tiny", "run_name": "mine"} | changes)
    file = tmp_path / "deep" / "settings.json"
    write_settings(file, settings_of(config))
    again = RunConfig.model_validate(read_settings(file))
    assert again == config.model_copy(update={"run_name": ""})
    assert set(read_settings(file)) == {"preset", *changes}


@pytest.fixture
def best(tmp_path: Path) -> str:
    file = tmp_path / "best.json"
    scheduling = {"kind": "tail_batching", "prompt_overprovision": 1.5}
    file.write_text(json.dumps({"preset": "tiny", "num_steps": 7, "scheduling": scheduling}))
    return str(file)


def test_a_file_lies_between_its_preset_and_what_is_set(best: str) -> None:
    values = assemble("", "", ["seed=3", "scheduling.response_overprovision=2"], best)
    config = RunConfig.model_validate(values)
    assert (config.preset, config.num_steps, config.seed) == ("tiny", 7, 3)
    assert values["scheduling"] == {
        "kind": "tail_batching",
        "prompt_overprovision": 1.5,
        "response_overprovision": 2,
    }


def test_another_kind_that_is_set_replaces_what_the_file_says(best: str) -> None:
    config = RunConfig.model_validate(assemble("tiny", "", ["scheduling.kind=sync"], best))
    assert config.scheduling.kind == "sync"


def test_a_file_without_a_preset_is_laid_over_the_one_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text('{"num_steps": 7}')
    expected = {"preset": "tiny-sync", "num_steps": 7}
    assert assemble("tiny-sync", "", [], str(file)) == expected
    assert assemble("", "", ["preset=tiny-sync"], str(file)) == expected
    assert assemble("", "", [], str(file))["preset"] == PRESET


@pytest.mark.parametrize(
    ("preset", "assignments"),
    [("tiny-sync", []), (PRESET, []), ("", ["preset=tiny-sync"]), ("", [f"preset={PRESET}"])],
)
def test_two_presets_are_refused(preset: str, assignments: list[str], best: str) -> None:
    with pytest.raises(ValueError, match=r"--preset must be the one that --settings names"):
        assemble(preset, "", assignments, best)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "must be a file that can be read, got .*: No such file"),
        ("num_steps = 5", "must be a file of JSON, got .*, line 1: Expecting value; correct it"),
        ("[1, 2]", r"must be a JSON object of fields, .* with \[1, 2\]; write one"),
        (b"\xff\xfe", "it is no text"),
    ],
)
def test_a_file_that_is_none_is_refused(
    text: str | bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.json"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=said):
        read_settings(file)


def test_a_field_that_a_file_misspells_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"preset": "tiny", "engine": {"tensor_size": 2}}')
    assert explain.main(["--settings", str(file)]) == 2
    assert "engine.tensor_size must be a known field" in capsys.readouterr().err


def test_a_file_is_explained_and_handed_on_to_the_run_of_a_demo(
    best: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.main(["--settings", best, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_steps"] == 7
    command = training_command(parser().parse_args(["--settings", best]))
    assert command[command.index("--settings") + 1] == best
    assert "--preset" not in command
