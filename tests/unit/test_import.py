"""`rollflow import`: files of other systems become settings, and every key is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands.import_ import main
from flows.config.conversions import Converted, convert
from flows.config.foreign_files import Unresolved, read_foreign
from flows.config.run_config import RunConfig

ROLL = """
defaults:
  - base@_here_
  - not_there@_here_
seed: 7
max_steps: 40
rollout_batch_size: 32
response_length: 1024
prompt_length: 512
num_return_sequences_in_group: 4
max_num_return_sequences: 5
max_prompts_ratio: 1.25
adv_estimator: grpo
pretrain: you/model
tracker_kwargs: {api_key: a-secret-key}
actor_train:
  training_args: {learning_rate: 1e-6, gradient_accumulation_steps: 8,
                  per_device_train_batch_size: 2}
  data_args: {file_name: [rows.jsonl], messages: messages}
  strategy_args: {strategy_name: megatron_train, strategy_config: {sequence_parallel: true}}
  device_mapping: list(range(0, 4))
actor_infer:
  generating_args: {max_new_tokens: "${response_length}", top_p: 0.9, top_k: 100}
  device_mapping: list(range(0, 4))
rewards:
  math_rule: {worker_cls: a.MathRuleRewardWorker, tag_included: [sums, proofs], world_size: 8}
"""
VERL = """
files="['$DATA/one.parquet', '$DATA/two.parquet']"  # two
N=${N:-2}
BATCH=$((64 * 2))
ROWS=(
    data.train_files="$files"
    data.train_batch_size=$BATCH   # prompts
    +data.gen_batch_size=$((BATCH * 5 / 4))
    data.max_prompt_length=512 data.max_response_length=$((1024 * 3))
)
python3 -m verl.trainer.main_ppo --config-name=ppo \\
    "${ROWS[@]}" \\
    algorithm.adv_estimator=reinforce_plus_plus \\
    actor_rollout_ref.model.path=you/model \\
    actor_rollout_ref.actor.ppo_mini_batch_size=${BATCH} \\
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.top_p=1.0 \\
    trainer.logger=['console','wandb'] trainer.nnodes=$N \\
    trainer.experiment_name="mine_$(date +%s)" $@ 2>&1 | tee out.log
"""


def read(folder: Path, text: str, name: str = "run.yaml") -> tuple[str, dict[str, Any]]:
    (folder / name).write_text(text)
    return read_foreign(folder / name)


def converted(folder: Path, text: str, name: str = "run.yaml") -> Converted:
    return convert(*read(folder, text, name))


def test_a_configuration_of_rollpacker_becomes_tail_batching(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\ntrack_with: stdout\n")
    (tmp_path / "rows.jsonl").write_text("")
    done = converted(tmp_path, ROLL)
    config = RunConfig.model_validate(done.values)
    assert config.seed == 7
    assert (config.batch.prompts_per_step, config.batch.responses_per_prompt) == (32, 4)
    scheduling = config.scheduling.model_dump()
    assert scheduling["kind"] == "tail_batching"
    assert scheduling["prompt_overprovision"] == scheduling["response_overprovision"] == 1.25
    assert config.engine.max_model_len == 1536
    assert config.sampling.max_response_tokens == 1024
    assert config.learner.mini_batches == 2  # 32 x 4 responses, 8 x 2 on each of 4 ranks
    assert config.learner.optimizer.learning_rate == 1e-6
    assert config.learner.parameters == "sharded"
    assert config.cluster.roles == "rollout: 0-3, learner: 0-3"
    assert {"sums", "proofs"} <= config.rewards.keys()
    assert config.task.model_dump()["domain_field"] == "tag"
    assert config.model.model_dump()["repository"] == "you/model"


def test_every_key_of_a_file_is_told_once_and_what_cannot_be_had_contradicts(
    tmp_path: Path,
) -> None:
    (tmp_path / "base.yaml").write_text("track_with: stdout\n")
    _, flat = read(tmp_path, ROLL)
    done = convert("ROLL", flat)
    assert [each.key for each in done.told] == [*flat]
    against = {each.key for each in done.told if each.fate == "contradicts"}
    sampled = {f"actor_infer.generating_args.{name}" for name in ("top_p", "top_k")}
    assert against == {*sampled, "defaults"}
    assert flat["track_with"] == "stdout"
    assert flat["defaults"] == ["not_there"]


def test_a_script_of_verl_is_read_without_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path))
    family, flat = read(tmp_path, VERL, "run.sh")
    assert family == "veRL"
    assert flat["data.train_files"] == [f"{tmp_path}/one.parquet", f"{tmp_path}/two.parquet"]
    assert flat["data.max_response_length"] == 3072
    assert flat["trainer.logger"] == ["console", "wandb"]
    assert isinstance(flat["trainer.experiment_name"], Unresolved)
    done = convert(family, flat)
    config = RunConfig.model_validate(done.values)
    assert config.scheduling.model_dump()["prompt_overprovision"] == 1.25
    assert config.learner.mini_batches == 1
    assert config.learner.advantage.model_dump()["baseline"] == "step"
    assert config.cluster.num_devices == 16
    assert config.learner.loss.model_dump()["clip_high"] == 0.2  # veRL's default, not ours
    assert config.task.kind == "mixture"
    against = {each.key for each in done.told if each.fate == "contradicts"}
    assert against == {"trainer.experiment_name"}


def test_polyrl_has_elastic_workers_and_its_manager_says_how_many(tmp_path: Path) -> None:
    script = "python -m rlboost.main data.train_files=rows.parquet \\\n"
    script += " actor_rollout_ref.rollout.name=sglang-disaggregated\n"
    values = converted(tmp_path, script, "run.sh").values
    assert values["elastic"]["enabled"] is values["seeding"]["enabled"] is True
    text = 'num_mooncake_groups_per_sender = 4\nallowed_sender_ips = "10.0.0.7/32"\n'
    values = converted(tmp_path, text, "config.toml").values
    assert values["elastic"] == {
        "enabled": True, "max_workers": 4, "weights": {"host": "10.0.0.7"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("async_generation_ratio: 1.5", {"kind": "asynchronous", "async_ratio": 1.5}),
        ("async_generation_ratio: 0", {"kind": "sync"}),
        (
            "is_use_additional_prompts: true\nmax_additional_running_prompts: 8",
            {"kind": "tail_batching", "prompt_overprovision": 1.25, "response_overprovision": 1.0},
        ),
    ],
)
def test_the_schedule_follows_from_the_keys_that_have_a_say(
    keys: str, wanted: dict[str, Any], tmp_path: Path
) -> None:
    text = f"rollout_batch_size: 32\nnum_return_sequences_in_group: 8\n{keys}\n"
    assert converted(tmp_path, text).values["scheduling"] == wanted


def test_the_stream_trainer_begins_at_the_milestone(tmp_path: Path) -> None:
    text = "rollout_batch_size: 4\nautoscaling: true\ninfer_scaling_down_progress_ratio: 0.6\n"
    values = converted(tmp_path, text).values["stream_trainer"]
    assert values == {"enabled": True, "first_milestone": 0.6, "last_milestone": 0.6}


@pytest.mark.parametrize(
    ("mean", "std", "whiten", "wanted"),
    [
        ("group", "group", False, {"kind": "grpo"}),
        ("group", None, False, {"kind": "dr_grpo"}),
        ("group", "batch", False, {"kind": "reinforce_plus_plus", "baseline": "group"}),
        ("batch", "batch", False, {"kind": "reinforce_plus_plus", "baseline": "step"}),
        (None, None, True, {"kind": "reinforce_plus_plus", "baseline": "step"}),
        (None, None, False, None),
    ],
)
def test_reinforce_of_roll_is_the_advantage_of_its_normalisation(
    mean: str | None,
    std: str | None,
    whiten: bool,
    wanted: dict[str, str] | None,
) -> None:
    flat = {"adv_estimator": "reinforce", "norm_mean_type": mean, "norm_std_type": std}
    done = convert("ROLL", {**flat, "whiten_advantages": whiten})
    assert done.values["learner"].get("advantage") == wanted
    assert (done.told[0].fate == "contradicts") is (wanted is None)


def test_the_second_of_two_keys_that_differ_contradicts(tmp_path: Path) -> None:
    text = "rollout_batch_size: 4\nresponse_length: 512\n"
    text += "actor_infer: {generating_args: {max_new_tokens: 256}}\n"
    done = converted(tmp_path, text)
    assert done.values["sampling"]["max_response_tokens"] == 512
    told = next(each for each in done.told if each.key.endswith("max_new_tokens"))
    assert told.fate == "contradicts"
    assert "response_length gives sampling.max_response_tokens 512" in told.note


def test_an_unknown_key_is_refused_by_its_name_unless_it_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rollout_batch_size: 4\nrollout_batchsize: 8\n")
    assert main([str(file)]) == 2
    said = capsys.readouterr().err
    assert "got rollout_batchsize (did you mean rollout_batch_size?)" in said
    assert "--without rollout_batchsize" in said
    assert main([str(file), "--without", "rollout_batchsize"]) == 1  # it names no model
    assert "the preset one-gpu needs --set model.path" in capsys.readouterr().err


def test_the_written_settings_are_those_that_are_told_and_no_secret_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.yaml").write_text("")
    (tmp_path / "run.yaml").write_text(ROLL.replace("  - base@_here_\n", ""))
    written = tmp_path / "made" / "run.json"
    assert main([str(tmp_path / "run.yaml"), "--write", str(written)]) == 1
    told = capsys.readouterr()
    assert json.loads(written.read_text())["batch"]["prompts_per_step"] == 32
    assert "rollout_batch_size = 32: batch.prompts_per_step=32" in told.out
    assert f"rollflow train --settings {written}" in told.out
    assert "task.path must be a file that can be read, got rows.jsonl" in told.err
    assert "a-secret-key" not in told.out + told.err + written.read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{lora_rank: 8, lora_alpha: 32, lora_target: 'q_proj, v_proj'}",
            {"rank": 8, "alpha": 32, "targets": ["q_proj", "v_proj"]},
        ),
        ("{lora_rank: 8, lora_target: all-linear}", {"rank": 8, "targets": "all"}),
        ("{lora_rank: null, lora_alpha: 32, lora_target: all}", None),
    ],
)
def test_adapters_of_roll_are_taken(
    tmp_path: Path, text: str, expected: dict[str, object] | None
) -> None:
    (tmp_path / "base.yaml").write_text("track_with: stdout\n")
    given = ROLL.replace("actor_train:\n", f"actor_train:\n  model_args: {text}\n")
    assert converted(tmp_path, given).values["learner"].get("lora") == expected


def test_adapters_of_verl_are_taken(tmp_path: Path) -> None:
    name = "actor_rollout_ref.model"
    lora = f"{name}.lora_rank=8 {name}.lora_alpha=16 {name}.target_modules=[q_proj,o_proj] "
    given = VERL.replace("algorithm.adv_estimator", f"{lora}algorithm.adv_estimator")
    expected = {"rank": 8, "alpha": 16, "targets": ["q_proj", "o_proj"]}
    assert converted(tmp_path, given, "run.sh").values["learner"]["lora"] == expected


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.yaml", "learning_rate: 1", "FILE must be YAML of ROLL or RollPacker"),
        ("run.yaml", "a: [", "FILE must be YAML or TOML"),
        ("run.yaml", "- a", "FILE must have keys and values"),
        ("run.toml", "a = ", "FILE must be YAML or TOML"),
        ("run.sh", "python -m verl.trainer.main_ppo 'a=1", "the command of FILE must be whole"),
    ],
)
def test_what_is_no_such_file_is_one_sentence(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "FILE must be one that can be read" in capsys.readouterr().err
