"""The run's configuration: presets, overlays, unknown keys, its schema, --set assignments and what
errors say."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from sqlalchemy.engine import make_url

from artifacts.reports.mlflow_client import sqlite_file
from artifacts.store import Store
from flows.commands.command_line import assemble
from flows.config.consistency import transport_for
from flows.config.overlay import overlay
from flows.config.presets import ADAPTED, PRESETS, preset_values
from flows.config.run_config import PRESET_VARIABLE, RunConfig
from flows.config.sentence import sentence
from tasks.learner.advantage import ReinforcePlusPlusAdvantage
from tasks.learner.losses.weighted import ToprLoss
from tasks.learner.objective import DriftMask, NoSequenceMask
from tasks.scheduling.policies.sync import SyncConfig

Json = dict[str, Any]  # Any: JSON values


def refusal(*assignments: str, preset: str = "tiny") -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the callers look at the sentence
        RunConfig.model_validate(assemble(preset, "", assignments))
    return sentence(caught.value)


def places(values: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every mapping of the configuration, by path."""
    yield path
    for name, value in values.items():
        if isinstance(value, dict):
            yield from places(value, (*path, name))


TINY = RunConfig(preset="tiny").model_dump(mode="json")  # type: ignore[call-arg]  # the preset gives the rest


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_complete_configuration_that_knows_its_name(name: str) -> None:
    config = RunConfig.model_validate({"preset": name})
    assert config.preset == name
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    assert PRESETS[name].__doc__


@pytest.mark.parametrize("name", ADAPTED)
def test_a_preset_with_an_adapter_differs_in_it_and_in_ten_times_the_rate(name: str) -> None:
    plain, adapted = (RunConfig.model_validate({"preset": each}) for each in (name, f"{name}-lora"))
    assert (plain.learner.lora.rank, adapted.learner.lora.rank) == (0, ADAPTED[name][0])
    assert adapted.engine.adapter == adapted.learner.lora.engine_shape
    rates = [each.learner.optimizer.learning_rate for each in (plain, adapted)]
    assert rates[1] == pytest.approx(10 * rates[0])
    changes = {"lora": plain.learner.lora, "optimizer": plain.learner.optimizer}
    assert adapted.learner.model_copy(update=changes) == plain.learner


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"preset must be one of smollm2, .*eight-gpu, .*got 'big'"
    ):
        preset_values("big")
    assert refusal("preset=big").startswith("preset must be one of smollm2, ")


def test_given_values_win_over_the_preset_at_any_depth() -> None:
    config = RunConfig.model_validate(
        {"preset": "tiny", "num_steps": 3, "learner": {"optimizer": {"learning_rate": 1e-6}}}
    )
    assert (config.num_steps, config.learner.optimizer.learning_rate) == (3, 1e-6)
    assert (
        config.learner.optimizer.warmup_steps
        == preset_values("tiny")["learner"]["optimizer"]["warmup_steps"]
    )


@pytest.mark.parametrize("path", list(places(TINY)), ids=lambda path: ".".join(path) or "top")
def test_an_unknown_key_is_an_error_at_any_depth(path: tuple[str, ...]) -> None:
    values = copy.deepcopy(TINY)
    below = values
    for name in path:
        below = below[name]
    below["nonsense"] = 1
    with pytest.raises(ValidationError, match="nonsense"):
        RunConfig.model_validate(values)


@pytest.mark.parametrize("value", ["inf", float("inf")])
def test_infinity_is_refused_because_no_manifest_could_keep_it(value: object) -> None:
    given = {"preset": "tiny", "learner": {"optimizer": {"max_grad_norm": value}}}
    with pytest.raises(
        ValidationError, match=r"learner\.optimizer\.max_grad_norm must be finite, got inf; give"
    ):
        RunConfig.model_validate(given)


def test_mappings_merge_and_other_values_replace() -> None:
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2]}
    assert overlay(base, {"a": {"y": {"w": 3}}, "b": [3], "c": None}) == {
        "a": {"x": 1, "y": {"z": 2, "w": 3}},
        "b": [3],
        "c": None,
    }
    assert base == {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2]}


def test_a_mapping_of_another_kind_replaces_the_whole() -> None:
    base = {"task": {"kind": "files", "path": "p"}}
    assert overlay(base, {"task": {"kind": "chain_sum"}}) == {"task": {"kind": "chain_sum"}}
    assert overlay(base, {"task": {"kind": "files", "domain": "d"}}) == {
        "task": {"kind": "files", "path": "p", "domain": "d"}
    }
    assert overlay(base, {"task": {"domain": "d"}}) == {
        "task": {"kind": "files", "path": "p", "domain": "d"}
    }
    assert overlay({"loss": {"clip": 1}}, {"loss": {"kind": "other"}}) == {
        "loss": {"kind": "other"}
    }


def test_another_scheduling_drops_the_settings_of_the_presets_own() -> None:
    assert (
        RunConfig.model_validate({"preset": "tiny", "scheduling": {"kind": "sync"}}).scheduling
        == SyncConfig()
    )


@pytest.mark.parametrize(("num_steps", "every_steps"), [(9, 0), (10, 2), (20, 4), (64, 13)])
def test_runs_evaluate_after_each_fifth_of_their_steps(num_steps: int, every_steps: int) -> None:
    """A default, which is none of the user's settings, and is kept by a resume for more steps."""
    config = RunConfig.model_validate({"preset": "tiny", "num_steps": num_steps})
    assert config.evaluation.every_steps == every_steps
    assert "every_steps" not in config.evaluation.model_fields_set
    assert RunConfig.model_validate(config.model_dump(mode="json") | {"num_steps": 99}) == (
        config.model_copy(update={"num_steps": 99})
    )
    validated_again = RunConfig.model_validate(RunConfig.model_validate({"preset": "one-gpu"}))
    assert validated_again.evaluation.every_steps == 50, "as the preset has it"
    never = {"preset": "tiny", "num_steps": num_steps, "evaluation": {"every_steps": 0}}
    assert RunConfig.model_validate(never).evaluation.every_steps == 0


def test_a_setting_of_the_loss_need_not_name_its_kind() -> None:
    given = {"preset": "tiny", "learner": {"loss": {"clip_high": 0.3}}}
    assert (
        RunConfig.model_validate(given).learner.loss.model_dump()
        == RunConfig.model_validate(
            {"preset": "tiny", "learner": {"loss": {"kind": "ppo_clip", "clip_high": 0.3}}}
        ).learner.loss.model_dump()
    )


def test_a_deployments_preset_holds_for_what_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRESET_VARIABLE, "tiny-sync")
    assert RunConfig.model_validate({"num_steps": 3}).preset == "tiny-sync"
    assert RunConfig.model_validate({"preset": "", "num_steps": 3}).scheduling.kind == "sync"
    assert RunConfig.model_validate({"preset": "smollm2"}).preset == "smollm2"


def test_the_schema_explains_every_field() -> None:
    schema = RunConfig.model_json_schema()
    models = {"RunConfig": schema, **schema["$defs"]}
    bare = [
        f"{model}.{name}"
        for model, node in models.items()
        for name, field in node.get("properties", {}).items()
        if not field.get("description")
    ]
    assert not bare


@pytest.mark.parametrize(
    "given",
    [
        {"task": {"num_prompts": 64}},
        {"task": {"profile": {"add": {"max_size": 3, "alpha": 1.3}}}},
        {"preset": "one-gpu", "task": {"answer_field": "gold"}, "model": {"path": "/models/mine"}},
        {"learner": {"loss": {"clip_high": 0.3}}},
        {"rewards": {"*": {"kind": "custom", "path": "mine.py:reward"}}},
    ],
)
def test_the_schema_lets_a_part_of_an_alternative_pass(given: Json) -> None:
    Draft202012Validator(RunConfig.model_json_schema()).validate(given)


@pytest.mark.parametrize(
    "given", [{"task": {"nonsense": 1}}, {"rewards": {"*": {"kind": "custom", "nonsense": 1}}}]
)
def test_the_schema_refuses_what_no_alternative_has(given: Json) -> None:
    assert not Draft202012Validator(RunConfig.model_json_schema()).is_valid(given)


def test_a_forms_alternatives_are_called_by_their_kind_and_the_presets_own_comes_first() -> None:
    schema = RunConfig.model_json_schema()
    first, *others = schema["properties"]["task"]["anyOf"]
    alternatives = [schema["$defs"][option["$ref"].rpartition("/")[2]] for option in others]
    assert first["title"] == "as the preset"
    kinds = [
        "tiny_mix", "tinycode", "chain_sum", "reasoning_gym", "files", "hub", "deepmath",
        "openr1", "geoqa", "kodcode", "kodcode_programs", "multi_subject", "humaneval", "shapes",
        "seeds", "custom", "mixture", "curriculum",
    ]  # fmt: skip
    assert [one["title"] for one in alternatives] == kinds
    assert [one["properties"]["kind"]["default"] for one in alternatives] == kinds


def test_a_form_that_is_not_touched_sends_nothing_but_the_preset() -> None:
    schema = RunConfig.model_json_schema()
    chosen = {
        option["$ref"].rpartition("/")[2]
        for node in unions(schema)
        for option in node["anyOf"]
        if "$ref" in option
    }
    untouched = {
        name: node
        for name, node in {"RunConfig": schema, **schema["$defs"]}.items()
        if name not in chosen
    }
    sent = [
        f"{model}.{name}"
        for model, node in untouched.items()
        for name, field in node.get("properties", {}).items()
        if field.get("type") == "boolean" or "default" in field
    ]
    within_an_alternative = {
        "PartConfig",
        "AdaptiveTimeoutConfig",
        "JudgeEngineConfig",
    }
    assert {field.partition(".")[0] for field in sent} == within_an_alternative


def unions(node: Json) -> Iterator[Json]:
    if "discriminator" in node:
        yield node
    for part in node.values():
        if isinstance(part, dict):
            yield from unions(part)


@pytest.mark.parametrize("name", ["run-1", "Run_1.b", "0", ""])
def test_a_run_name_is_a_file_name(name: str) -> None:
    assert RunConfig.model_validate({"preset": "tiny", "run_name": name}).run_name == name


@pytest.mark.parametrize("name", [".", "..", ".hidden", "-x", "a/b", "a b", "x" * 61])
def test_a_run_name_that_would_leave_its_folder_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="run_name"):
        RunConfig.model_validate({"preset": "tiny", "run_name": name})


def test_parts_that_do_not_fit_together_are_refused() -> None:
    assert "sampling.max_response_tokens must leave room for a prompt" in refusal(
        "sampling.max_response_tokens=256"
    )
    assert "sampling.temperature must be above 0, got 0" in refusal("sampling.temperature=0")
    assert "engine.sleep_mode needs GPUs that rollout and learner share" in refusal(
        "engine.sleep_mode=true"
    )
    assert "sampling.top_p must be 1, got 0.9" in refusal("sampling.top_p=0.9")


def test_a_transport_that_does_not_fit_is_refused_with_the_cure() -> None:
    assert transport_for(RunConfig.model_validate(preset_values("eight-gpu"))) == "ipc"
    assert "needs engine.kind=vllm and no elastic workers" in refusal(
        "learner.transport=ipc", "elastic.enabled=true"
    )
    assert "does not fit cluster.roles" in refusal(
        "learner.transport=broadcast", preset="eight-gpu"
    )


def test_a_remote_root_needs_a_tracking_uri() -> None:
    remote = RunConfig.model_validate(
        {"preset": "tiny", "keep": {"artifact_root": "s3://bucket/runs"}}
    )
    assert remote.local_root() is None
    with pytest.raises(
        ValueError, match=r"keep\.tracking_uri must be given when keep\.artifact_root is a URL"
    ):
        remote.tracking_uri()
    local = RunConfig.model_validate({"preset": "tiny", "keep": {"artifact_root": "/data/runs"}})
    assert local.tracking_uri() == "sqlite:////data/runs/mlflow.db"


def test_a_root_is_named_as_sqlalchemy_reads_it(tmp_path: Path) -> None:
    root = tmp_path / "50%41 what? ä=1"
    config = RunConfig.model_validate({"preset": "tiny", "keep": {"artifact_root": str(root)}})
    assert make_url(config.tracking_uri()).database == str(root / "mlflow.db")
    assert sqlite_file(config.tracking_uri()) == root / "mlflow.db"


def test_a_password_of_the_tracking_server_is_not_told() -> None:
    told = refusal("keep.tracking_uri=http://me:hunter2@mlflow.example:5000")
    assert "keep.tracking_uri: tracking_uri must hold no secret" in told
    assert "hunter2" not in told


def test_a_root_in_the_home_folder_is_there_for_everybody() -> None:
    config = RunConfig.model_validate({"preset": "tiny", "keep": {"artifact_root": "~/runs"}})
    assert str(config.local_root()) == Store.open("~/runs").url == str(Path.home() / "runs")
    keep = {"model_cache": "~/models", "weights_dir": "~/weights"}
    kept = RunConfig.model_validate({"preset": "tiny", "keep": keep}).keep
    assert kept.model_cache == str(Path.home() / "models")
    assert kept.weights_dir == str(Path.home() / "weights")


def test_assignments_set_nested_values_as_json_or_else_as_text() -> None:
    assert assemble(
        "tiny",
        "",
        [
            "num_steps=5",
            "learner.optimizer.learning_rate=1e-5",
            "cluster.roles=rollout: 0, learner: 0",
        ],
    ) == {
        "preset": "tiny",
        "num_steps": 5,
        "learner": {"optimizer": {"learning_rate": 1e-5}},
        "cluster": {"roles": "rollout: 0, learner: 0"},
    }
    assert assemble("tiny", "run-1",
        ["task.path=a=b", 'x={"y": null}', "a.b=1", "a.c=true", "a.b=2"]) == {
        "preset": "tiny", "resume": "run-1", "task": {"path": "a=b"}, "x": {"y": None},
        "a": {"b": 2, "c": True},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["2026", "1e5", "007", "true", "2026.10"])
def test_a_number_is_text_where_the_field_is_text(text: str) -> None:
    values = assemble(
        "tiny", "", [f"run_name={text}", f"keep.experiment={text}", f"rewards.add.path={text}"]
    )
    assert (values["run_name"], values["keep"]["experiment"], values["rewards"]["add"]["path"]) == (
        text,
        text,
        text,
    )


def test_text_fields_take_json_text_and_null_as_well() -> None:
    assert assemble("tiny", "", ['run_name="2026"', "cluster.scheduler_address=null"]) == {
        "preset": "tiny", "run_name": "2026", "cluster": {"scheduler_address": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("assignment", "field"),
    [
        ("task.num_prompts=0", "task.num_prompts is wrong"),
        ("scheduling.eta=1", "scheduling.eta must be a known field"),
        (
            'rewards={"add": {"kind": "custom", "path": "m:f", "memory_bytes": 0}}',
            "rewards.add.memory_bytes is wrong",
        ),
        ("learner.loss.nonsense=1", "learner.loss.nonsense must be a known field"),
    ],
)
def test_a_fault_names_the_field_as_the_user_writes_it(assignment: str, field: str) -> None:
    assert refusal(assignment).startswith(field)


@pytest.mark.parametrize("assignment", ["num_steps", "=5", ""])
def test_an_assignment_without_field_or_value_is_refused(assignment: str) -> None:
    with pytest.raises(ValueError, match="--set must read FIELD=VALUE"):
        assemble("tiny", "", [assignment])


def test_json_that_a_shell_has_unquoted_is_refused_with_another_way_to_say_it() -> None:
    with pytest.raises(
        ValueError,
        match=r"--set model must be JSON .* got '\{kind:path\}' .*: --set model\.FIELD=VALUE",
    ):
        assemble("tiny", "", ["model={kind:path}"])


def test_a_field_that_is_set_leaves_those_beside_it_as_they_are() -> None:
    """Also where the part has other defaults than its class."""
    words = ["task.worked=true", "learner.critic.optimizer.warmup_steps=3"]
    config = RunConfig.model_validate(assemble("smollm2-answers", "", words)).model_dump()
    usual = RunConfig.model_validate({"preset": "smollm2-answers"}).model_dump()
    usual["task"]["worked"] = True
    usual["learner"]["critic"]["optimizer"]["warmup_steps"] = 3
    assert config == usual


@pytest.mark.parametrize("text", ["{question} Reply with a number.", "[INST] {question}", "[1, 2]"])
def test_a_text_may_begin_as_json_does(text: str) -> None:
    values = assemble("tiny", "", ["task.kind=files", f"task.prompt_template={text}"])
    assert values["task"]["prompt_template"] == text


def test_a_part_is_replaced_field_by_field() -> None:
    words = [
        "model.kind=path",
        "model.path=/m",
        "rewards.*.kind=custom",
        "rewards.*.path=mine.py:reward",
    ]
    words += ["task.kind=reasoning_gym", "task.datasets.gcd={}"]
    config = RunConfig.model_validate(assemble("tiny", "", words))
    assert config.model.model_dump() == {"kind": "path", "path": "/m", "chat_template": ""}
    assert config.rewards["*"].kind == "custom"
    assert config.task.kind == "reasoning_gym"


@pytest.mark.parametrize("assignments", [["preset.x=1"], ["keep=5", "keep.checkpoints=2"]])
def test_an_assignment_below_a_plain_value_is_refused(assignments: list[str]) -> None:
    with pytest.raises(ValueError, match=f"--set {assignments[-1]} must name a field of a mapping"):
        assemble("tiny", "", assignments)


def test_a_sentence_names_every_fault_with_field_and_value() -> None:
    told = refusal("num_steps=0", "learner.optimizer.lr=1")
    assert "num_steps is wrong: input should be greater than or equal to 1, got 0;" in told
    assert (
        "learner.optimizer.lr must be a known field, it is not one; did you mean --set"
        " learner.optimizer.learning_rate=1?" in told
    )
    assert "\n" not in told


def test_a_rule_of_our_own_is_told_in_its_own_words() -> None:
    assert refusal("cluster.roles=rollout: 0").startswith(
        "cluster.roles must place rollout and learner, learner missing"
    )


def test_any_error_becomes_one_line() -> None:
    assert sentence(OSError("disk\n  full")) == "disk full"
    assert sentence(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_the_stream_trainer_needs_a_device_to_free() -> None:
    on = "stream_trainer.enabled=true"
    one_device = ("cluster.num_devices=1", 'cluster.roles="rollout: 0, learner: 0"')
    assert refusal(on, *one_device).startswith(
        "stream_trainer needs a learner device that a round can do without"
    )
    assert "got learner.advantage.kind 'reinforce_plus_plus'" in refusal(
        on, "learner.advantage.kind=reinforce_plus_plus"
    )
    apart = RunConfig.model_validate(
        assemble("tiny", "", [on, 'cluster.roles="rollout: 0, learner: 1"'])
    )
    assert apart.stream_trainer.milestones[0] == 0.2


def test_limits_of_freeing_that_nothing_would_obey_are_refused() -> None:
    """Where steps overlap no device is freed."""
    on, limits = "stream_trainer.enabled=true", ["stream_trainer.max_freed_share=0.25"]
    assert "got stream_trainer.max_freed_share 0.25: its steps train" in refusal(
        on, *limits, preset="tiny-async"
    )
    for preset, assigned in (
        ("tiny-sync", [on, *limits]),
        ("tiny-async", [on]),
        ("tiny-async", ["stream_trainer.enabled=false", *limits]),
    ):
        RunConfig.model_validate(assemble(preset, "", assigned))


def test_engines_are_rebuilt_where_they_rest_while_steps_train() -> None:
    planner, in_turn = "planner.enabled=true", "scheduling.at_update=pause"
    assert "rest with scheduling.at_update=pause" in refusal(planner, preset="tiny-async")
    RunConfig.model_validate(assemble("tiny-async", "", [planner, in_turn]))
    loss = "learner.loss.kind=policy_gradient"
    assert "must correct for older weights" in refusal(loss, in_turn, preset="tiny-async")


def test_sharded_parameters_need_ranks_that_train_at_the_same_time() -> None:
    sharded = "learner.parameters=sharded"
    alone = 'cluster.roles="rollout: 0-1, learner: 1"'
    assert refusal(sharded, alone).startswith(
        "learner.parameters=sharded needs two devices of the role learner or more, got 1"
    )
    assert refusal(sharded, "stream_trainer.enabled=true").startswith(
        "learner.parameters=sharded cannot train in mid-round"
    )
    both = RunConfig.model_validate(assemble("tiny", "", [sharded]))
    assert both.learner.ranks_in_step


def test_milestones_of_the_stream_trainer_are_checked() -> None:
    assert "last_milestone must be >= first_milestone (0.2), got 0.1" in refusal(
        "stream_trainer.last_milestone=0.1"
    )


def test_a_loss_a_gate_and_an_advantage_are_chosen_by_assignments() -> None:
    values = assemble(
        "tiny",
        "",
        [
            "learner.loss.kind=topr",
            "learner.loss.level=sequence",
            "learner.sequence_mask.kind=drift",
            "learner.sequence_mask.statistic=k1",
            "learner.sequence_mask.negative_only=true",
            "learner.advantage.kind=reinforce_plus_plus",
        ],
    )
    learner = RunConfig.model_validate(values).learner
    assert learner.loss == ToprLoss(level="sequence")
    assert learner.sequence_mask == DriftMask(statistic="k1", negative_only=True)
    assert learner.advantage == ReinforcePlusPlusAdvantage()
    assert (
        RunConfig.model_validate(assemble("tiny", "", [])).learner.sequence_mask == NoSequenceMask()
    )
