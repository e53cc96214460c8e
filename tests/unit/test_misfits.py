"""What keeps a run from starting is found at once, and what is advised cures it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import fsspec
import pytest

from artifacts.config_parts import Misfits
from flows.commands.command_line import assemble, checked_configuration, configuration_of
from flows.commands.completion import whole_parser
from flows.commands.demo import parser
from flows.config.misfits import misfits_of_places, misfits_of_settings
from flows.config.presets import OWN, PRESETS, Values
from flows.config.run_config import RunConfig
from flows.config.sentence import listed
from flows.config.trials import in_time, misfits_of_trials


def options(*assignments: str, preset: str = "tiny") -> Namespace:
    flags = [word for each in assignments for word in ("--set", each)]
    return parser().parse_args(["--preset", preset, *flags])


def misfits(*assignments: str, preset: str = "tiny") -> Sequence[str]:
    with pytest.raises(Misfits) as caught:
        checked_configuration(options(*assignments, preset=preset))
    return caught.value.found


def advised(told: str) -> list[str]:
    """The assignments that a sentence advises."""
    found = re.findall(r"--set (?:'([^']+)'|([^\s;,?]+))", told)
    return [quoted or plain for quoted, plain in found]


TOLD = {  # assignments that do not fit -> what is said of them
    "num_stepz=3": "must be a known field, it is not one; did you mean --set num_steps=3?",
    "learning_rate=1e-4": "did you mean --set learner.optimizer.learning_rate=0.0001?",
    "learner.optimizer.lr=0.1": "did you mean --set learner.optimizer.learning_rate=0.1?",
    "learner.loss.clip_hi=0.4": "did you mean --set learner.loss.clip_high=0.4?",
    "learner.loss.kind=gpso": "got 'gpso'; did you mean --set learner.loss.kind=gspo?",
    "scheduling.kind=tail-batching": "did you mean --set scheduling.kind=tail_batching?",
    "learner.transport=ipcc": "must be one of auto, file, ipc, broadcast, got 'ipcc'; did you mean",
    "evaluation.num_prompts=1": "got 1; --set evaluation.num_prompts=2",
    "environments.mine.path=game.py:Game": "environments.mine.kind must be named, one of bandit,",
    "num_steps=many": "got 'many'; correct it, or leave it out",
    "sampling.temperature=0": "sampling.temperature must be above 0, got 0",
    "sampling.top_p=0.9": "--set sampling.top_p=1",
    "sampling.max_response_tokens=256": "--set engine.max_model_len=512",
    "learner.optimizer.warmup_steps=40": "--set learner.optimizer.warmup_steps=36",
    "learner.mini_batches=17": "--set learner.mini_batches=16",
    "engine.sleep_mode=true": "--set engine.sleep_mode=false",
    "nonsense": "--set must read FIELD=VALUE, got 'nonsense'; for example --set num_steps=5",
}


@pytest.mark.parametrize(("assignment", "told"), TOLD.items())
def test_a_misfit_is_told_with_its_cure(assignment: str, told: str) -> None:
    [found] = misfits(assignment)
    assert told in found


@pytest.mark.parametrize(
    "assignment",
    [given for given, told in TOLD.items() if "--set" in told and given != "nonsense"],
)
def test_what_is_advised_cures(assignment: str) -> None:
    """A name that was meant stands for the given one; any other cure comes after what was given."""
    [found] = misfits(assignment)
    given = [] if "did you mean" in found else [assignment]
    configuration_of(options(*given, *advised(found)))


TWENTY = (
    "preset=tinny", "nonsense", "num_stepz=3", "num_steps=abc", "learning_rate=3",
    "learner.loss.kind=gpso", "learner.loss.clip_lo=0.1", "learner.transport=ipcc",
    "learner.optimizer.lr=3", "learner.optimizer.warmup_steps=500", "evaluation.num_prompts=1",
    "task.kind=filez", "task.path=/nope/questions.jsonl", "model.kind=path", "model.path=/nope",
    "rewards.*.kind=costum", "rewards.*.path=/nope.py:reward", "sampling.temperature=0",
    "sampling.top_p=0.9", "engine.sleep_mode=true", "sampling.max_response_tokens=256",
    "keep.registered_model=mine",
)  # fmt: skip


def test_twenty_wrong_settings_in_ten_places_are_one_list() -> None:
    with pytest.raises(Misfits) as caught:
        checked_configuration(options(*TWENTY, preset=""))
    found = caught.value.found
    assert len(found) == len(set(found)) == len(TWENTY) - 1, "model.kind=path alone is right"
    for assignment in TWENTY:
        word = assignment.partition("=")[0].rpartition(".")[2]
        assert any(word in told for told in found), assignment
    lines = listed(caught.value).splitlines()
    assert lines[0] == f"{len(found)} things must be mended before anything starts:"
    assert lines[-1].startswith(f" {len(found)}. ")


def test_all_parts_of_the_users_own_are_in_the_list_with_their_fields(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("class Mine:\n    pass\n")
    paths = {
        "learner.loss": f"{tmp_path}/empty.py:Mine",
        "learner.advantage": f"{tmp_path}/empty.py:Mine",
        "scheduling": f"{tmp_path}/nothing.py:Mine",
        "task": "no_package_of_this_name:Mine",
        "engine": f"{tmp_path}/empty.py:Other",
        "rewards.*": f"{tmp_path}/nothing.py:reward",
        "environments.mine": f"{tmp_path}/nothing.py:Mine",
    }
    own = [
        f"{field}.{each}"
        for field, path in paths.items()
        for each in ("kind=custom", f"path={path}")
    ]
    found = misfits(*own)
    for field in paths:
        told = [each for each in found if each.startswith((f"{field}: ", f"{field}.path "))]
        assert len(told) == 1, (field, found)
    assert not [each for each in found if each.startswith("an import path")], "each has its field"


def test_a_placeholder_of_a_preset_is_asked_for_by_name() -> None:
    config = RunConfig.model_validate({"preset": "one-gpu"})
    [told] = misfits_of_places(config)
    assert told.startswith("the preset one-gpu needs --set model.path=DIRECTORY")
    assert told.endswith("and --set task.path=FILE: it has none of its own")
    named = {"preset": "one-gpu", "task": {"path": "/nope.jsonl"}}
    asked, missing = misfits_of_places(RunConfig.model_validate(named))
    assert "task.path" not in asked
    assert missing.startswith("task.path must be a file that can be read, got /nope.jsonl")


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != OWN and "-gpu" not in name])
def test_presets_have_all_that_they_need(preset: str, tmp_path: Path) -> None:
    values: Values = {"preset": preset, "keep": {"artifact_root": str(tmp_path / "runs")}}
    if configuration_of(options(preset=preset)).cluster.num_devices > 8:
        values["cluster"] = {"scheduler_address": "tls://head:8786"}
    settings = misfits_of_settings(values)
    assert settings.config is not None
    assert not settings.misfits
    assert not misfits_of_places(settings.config)
    assert not (tmp_path / "runs").exists(), "nothing is written"


@pytest.mark.parametrize("num_rows", [5, 12, 20, 40, 300])
@pytest.mark.parametrize("preset", ["tiny", "tiny-sync", "tiny-async", "smollm2"])
def test_with_few_rows_settings_that_fit_together_are_advised(
    num_rows: int, preset: str, tmp_path: Path
) -> None:
    file = tmp_path / "questions.jsonl"
    rows = ({"prompt": f"{number} + 1", "answer": str(number + 1)} for number in range(num_rows))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = ["task.kind=files", f"task.path={file}"]
    config = RunConfig.model_validate(assemble(preset, "", asked))
    [told] = misfits_of_places(config)
    cures = advised(told)
    assert ("fits, or give" if len(cures) == 1 else "fit together, or give") in told
    assert {cure.partition("=")[0] for cure in cures} <= {
        "task.heldout_fraction", "evaluation.num_prompts", "batch.prompts_per_step",
    }  # fmt: skip
    mended = configuration_of(options(*asked, *cures, preset=preset))
    assert not misfits_of_places(mended)


REWARD = "def reward(prompt, response, gold):\n    return float(response == gold)\n"


@pytest.mark.parametrize("where", ["far", "large"])
def test_of_rows_far_away_or_of_many_the_first_one_is_read(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"memory://{tmp_path.name}/rows.jsonl" if where == "far" else f"{tmp_path}/rows.jsonl"
    monkeypatch.setattr("flows.config.misfits.LARGEST_READ", 40)
    rows = [{"prompt": f"{number} + 1?", "answer": number + 1} for number in range(200)]
    own = ["task.kind=files", f"task.path={path}", "rewards.*.kind=math_answer"]
    own += ["batch.prompts_per_step=4", "evaluation.num_prompts=4"]
    with fsspec.open(path, "w") as file:
        file.write("\n".join(map(json.dumps, rows)) + "\n{broken")
    checked_configuration(options(*own))
    assert f"left to the run to check: all but the first row of {path}" in capsys.readouterr().err
    [told] = misfits(*own, "task.prompt_field=question")
    assert "rows.jsonl:1: field 'question' is missing" in told
    assert not capsys.readouterr().err


def test_a_look_that_takes_too_long_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.config.trials.LONGEST_LOOK_S", 0.01)
    ends = Event()

    def look() -> None:
        ends.wait()
        raise ValueError

    assert in_time(look) == []
    ends.set()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (REWARD, ""),
        ("def reward(prompt, response):\n    return 1.0\n", "takes 2 positional arguments but 3"),
        ("def reward(prompt, response, gold):\n    return 'good'\n", "it gave none: "),
        ("def rewards(prompt, response, gold):\n    return 1.0\n", "has nothing named reward"),
        ("import nope\n", "No module named 'nope'"),
    ],
)
def test_a_reward_is_called_once_on_the_first_question(
    source: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(source)
    reward = {"kind": "custom", "path": f"{tmp_path}/own.py:reward"}
    config = RunConfig.model_validate({"preset": "tiny", "rewards": {"*": reward}})
    assert not misfits_of_places(config)
    found = misfits_of_trials(config)
    assert [said in told for told in found] == ([True] if said else [])
    assert all(told.startswith("rewards.*") for told in found)


def test_rules_of_a_game_that_leave_no_room_are_told_before_the_model_is_made() -> None:
    game = {"kind": "guess", "style": "chat", "largest": 8, "max_turns": 4}
    values = {"preset": "tiny-agent", "environments": {"guess": game}}
    [told] = misfits_of_trials(RunConfig.model_validate(values))
    assert told.startswith("the head of environments.guess, its rules and examples, must fit in 32")
    [cure] = advised(told)
    mended = RunConfig.model_validate(assemble("tiny-agent", "", [cure]) | values | {
        "engine": {"max_model_len": int(cure.partition("=")[2])}
    })  # fmt: skip
    assert not misfits_of_trials(mended)


def test_a_shell_still_completes_presets_which_the_parser_leaves_to_the_check() -> None:
    commands = next(action for action in whole_parser()._actions if action.choices)
    assert isinstance(commands.choices, dict)
    [preset] = [each for each in commands.choices["demo"]._actions if each.dest == "preset"]
    assert list(preset.choices or ()) == list(PRESETS)


def test_the_quick_checks_import_nothing_heavy() -> None:
    heavy = {
        "torch", "vllm", "prefect", "transformers", "mlflow", "dask", "pyarrow", "mpmath",
        "jinja2", "yaml", "fsspec", "filelock",
    }  # fmt: skip
    program = f"import flows.commands.command_line, sys; print(*sys.modules.keys() & {heavy})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("heads", "size", "said"),
    [
        ((9, 3), 2, "got 2 for 9 and 3; --set engine.tensor_parallel_size=1"),
        ((9, 3), 3, ""),
        ((12, 4), 6, "got 6 for 12 and 4; --set engine.tensor_parallel_size=4"),
        ((12, 4), 12, ""),  # each KV head on three devices
        ((0, 0), 2, ""),  # unknown
    ],
)
def test_attention_heads_that_an_engines_devices_cannot_share_are_told(
    tmp_path: Path, heads: tuple[int, int], size: int, said: str
) -> None:
    described = dict(zip(("num_attention_heads", "num_key_value_heads"), heads, strict=True))
    (tmp_path / "config.json").write_text(json.dumps(described))
    values = {
        "preset": "smollm2",
        "model": {"kind": "path", "path": str(tmp_path)},
        "engine": {"tensor_parallel_size": size},
        "cluster": {
            "device_kind": "cpu", "num_devices": 12, "devices_per_host": 12,
            "roles": "rollout: 0-11, learner: 0-11",
        },
    }  # fmt: skip
    found = misfits_of_trials(RunConfig.model_validate(values))
    assert [told.endswith(said) for told in found] == [True] * bool(said)


def test_heads_of_a_model_that_is_made_here_are_known_before_it_is_made() -> None:
    for preset, heads in (("smollm2", "9 and 3"), ("tiny", "6 and 6")):
        engine = {"kind": "vllm", "tensor_parallel_size": 4}
        cluster = {"device_kind": "cpu", "num_devices": 4, "roles": "rollout: 0-3, learner: 0-3"}
        values = {"preset": preset, "engine": engine, "cluster": cluster}
        assert f"got 4 for {heads}" in misfits_of_trials(RunConfig.model_validate(values))[0]
