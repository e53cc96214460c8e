"""A run that goes on: what is read back of an earlier attempt, and what may be given anew."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from plan_factories import CONTEXT
from pydantic import ValidationError

from artifacts import layout
from artifacts.commit import RunManifest, read_manifest, write_manifest
from artifacts.reports.tracking import RunTracker
from artifacts.store import Store, StoreError
from flows.config.presets import preset_values
from flows.config.run_config import RunConfig
from flows.resume import beside_resume, effective_config
from flows.run import OpenRun, new_run_id
from flows.run_record import record_beginning
from flows.train import evaluations_until
from tasks.learner.split import read_split
from tasks.run import prompts
from tasks.run.run_context import EVALUATION
from tasks.scheduling.policies.multilevel import MultilevelBatchingConfig


def opened(root: Path, every_steps: int, *recorded: int) -> OpenRun:
    """A run whose evaluations after these steps are recorded."""
    store = Store.open(str(root)).child("run")
    for step in recorded:
        store.child(EVALUATION).write(layout.step_file(layout.ROUNDS, step), b"{}")
    config = RunConfig.model_validate(
        {"preset": "tiny", "evaluation": {"every_steps": every_steps}}
    )
    return OpenRun(
        config=config, context=CONTEXT, store=store, tracker=RunTracker(""), commits=(), links={}
    )


@pytest.mark.parametrize(
    ("every_steps", "recorded", "step", "expected"),
    [
        (0, (), 0, [0]),
        (2, (0, 2, 4), 5, [0, 2, 4]),
        (2, (0, 2), 4, [0, 2, 4]),  # killed between the commit of step 4 and its evaluation
        (2, (0,), 5, [0]),  # the weights of steps 2 and 4 are gone
        (0, (0, 3), 3, [0, 3]),  # a finished run that is made longer
    ],
)
def test_a_resumed_run_shows_the_evaluations_before_it(
    tmp_path: Path, every_steps: int, recorded: tuple[int, ...], step: int, expected: list[int]
) -> None:
    assert evaluations_until(opened(tmp_path, every_steps, *recorded), step) == expected


def started(root: Path, **values: object) -> None:
    """A run of the tiny preset that was begun with these values."""
    config = RunConfig.model_validate({"preset": "tiny"} | values).model_dump(
        mode="json", exclude={"resume"}
    )
    del config["max_infra_fraction"]  # written by a version without the field
    manifest = RunManifest(
        run_id="run",
        created="",
        config=config,
        packages={},
        git_sha=None,
        mlflow_run_id=None,
    )
    write_manifest(Store.open(str(root)).child("run"), manifest)


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own() -> None:
    config = RunConfig.model_validate({"preset": "tiny"})
    assert new_run_id(config) != new_run_id(config)


def resumed(root: Path, **given: object) -> RunConfig:
    """What a run goes on with when it is resumed under another preset, its artifacts moved to this
    root."""
    keep = {"artifact_root": str(root)} | given.pop("keep", {})  # type: ignore[call-overload]  # a mapping where it is given
    return effective_config(
        RunConfig.model_validate({"preset": "smollm2", "resume": "run", "keep": keep} | given)
    )


@pytest.mark.parametrize("name", ["/runs/tiny-1", "runs/tiny-1", "tiny-1/", ".."])
def test_a_path_is_no_name_of_a_run_to_resume(name: str) -> None:
    with pytest.raises(ValueError, match=f"must be the name of a run under runs, got '{name}'"):
        effective_config(RunConfig.model_validate({"preset": "tiny", "resume": name}))


def test_a_resumed_run_keeps_its_configuration_but_for_what_is_given(tmp_path: Path) -> None:
    started(
        tmp_path,
        num_steps=7,
        seed=3,
        cluster={"num_devices": 4},
        keep={"weights_dir": "/kept", "checkpoints": 5},
    )
    places = {"model_cache": "/models"}
    config = resumed(
        tmp_path, seed=3, keep=places, cluster={"scheduler_address": "tcp://host:8786"}
    )
    assert (config.resume, config.preset) == ("run", "tiny")
    assert (config.seed, config.num_steps, config.cluster.num_devices) == (3, 7, 4)
    assert (config.keep.weights_dir, config.keep.checkpoints, config.keep.model_cache) == (
        "/kept",
        5,
        "/models",
    )
    assert (config.keep.artifact_root, config.cluster.scheduler_address) == (
        str(tmp_path),
        "tcp://host:8786",
    )


@pytest.mark.parametrize("preset", ["tiny", "smollm2"])
def test_a_number_of_steps_that_is_given_counts_even_if_it_is_the_presets(
    tmp_path: Path, preset: str
) -> None:
    started(tmp_path, num_steps=7)
    steps = preset_values(preset)["num_steps"]
    assert resumed(tmp_path, preset=preset).num_steps == 7
    assert resumed(tmp_path, preset=preset, num_steps=steps).num_steps == steps


def test_what_stands_in_a_runs_way_may_be_changed_and_is_checked_with_the_rest(
    tmp_path: Path,
) -> None:
    started(tmp_path)  # room for 256 tokens, 128 of them for the response
    assert resumed(tmp_path, engine={"max_model_len": 200}).engine.max_model_len == 200
    with pytest.raises(
        ValueError, match=r"max_response_tokens must leave room .* \(100\), got 128"
    ):
        resumed(tmp_path, engine={"max_model_len": 100})


def test_a_setting_beside_resume_is_one_of_the_runs_own_kind(tmp_path: Path) -> None:
    """The main job, which counts where no preset is named, has rounds of another kind."""
    started(tmp_path, scheduling={"kind": "multilevel_batching", "prompt_overprovision": 1.5})
    given = {
        "preset": "smollm2",
        "resume": "run",
        "keep": {"artifact_root": str(tmp_path)},
        "scheduling": {"num_levels": 2},
    }
    with pytest.raises(ValidationError):
        RunConfig.model_validate(given)
    config = effective_config(RunConfig.model_validate(beside_resume(given)))
    assert config.scheduling == MultilevelBatchingConfig(prompt_overprovision=1.5, num_levels=2)
    other = given | {"scheduling": {"kind": "sync"}}
    with pytest.raises(ValueError, match=r"scheduling\.kind must stay .*multilevel_batching"):
        effective_config(RunConfig.model_validate(beside_resume(other)))


@pytest.mark.parametrize("given", [{"num_steps": 3}, {"resume": 7}, {"resume": "run", "keep": 1}])
def test_values_that_resume_no_run_are_left_to_the_configuration(given: dict[str, object]) -> None:
    assert beside_resume(given) == given


@pytest.mark.parametrize("task", [7, {"kind": "tiny_mix"}])
def test_a_part_of_another_kind_gets_nothing_of_the_runs_own(tmp_path: Path, task: object) -> None:
    started(tmp_path)
    given = {"resume": "run", "keep": {"artifact_root": str(tmp_path)}, "task": task}
    assert beside_resume(given)["task"] == task


def test_a_run_that_is_not_there_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="RUN must be a run under"):
        beside_resume({"resume": "run", "keep": {"artifact_root": str(tmp_path)}})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": 4}, "seed must stay what the run was started with (0), got 4"),
        ({"batch": {"prompts_per_step": 4}}, "batch.prompts_per_step must stay"),
        ({"model": {"kind": "smollm2"}}, "model."),
        (
            {"learner": {"optimizer": {"learning_rate": 1e-6}}},
            "learner.optimizer.learning_rate must stay",
        ),
        ({"scheduling": {"kind": "sync"}}, "scheduling."),
        ({"cluster": {"num_devices": 3}}, "cluster.num_devices must stay"),
        (
            {"learner": {"parameters": "sharded"}},
            "learner.parameters must stay what the run was started with (replicated), got sharded",
        ),
    ],
)
def test_what_would_make_another_run_of_it_is_refused(
    tmp_path: Path, given: dict[str, object], words: str
) -> None:
    started(tmp_path)
    with pytest.raises(
        ValueError, match="beside resume; leave it out, or start a new run"
    ) as refused:
        resumed(tmp_path, **given)
    assert words in str(refused.value)


def test_the_manifest_records_what_was_changed_after_which_step(tmp_path: Path) -> None:
    started(tmp_path, num_steps=7)
    store = Store.open(str(tmp_path)).child("run")
    config = resumed(
        tmp_path,
        num_steps=20,
        engine={"max_model_len": 300},
        keep={"tracking_uri": "sqlite:///" + str(tmp_path / "m.db")},
    )
    record_beginning(config, "run", store, step=4).end("FINISHED")
    changes = {change["field"]: change for change in read_manifest(store).changes}
    assert changes["num_steps"] == {
        "after_step": 4,
        "field": "num_steps",
        "before": "7",
        "after": "20",
    }
    assert changes["engine.max_model_len"]["after"] == "300"
    assert "seed" not in changes
    record_beginning(resumed(tmp_path, num_steps=21), "run", store, step=20).end("FINISHED")
    found = [
        (change["after_step"], change["after"])
        for change in read_manifest(store).changes
        if change["field"] == "num_steps"
    ]
    assert found == [(4, "20"), (20, "21")]


def test_a_copy_of_a_run_is_a_run_of_its_own_in_mlflow(tmp_path: Path) -> None:
    root, keep = Store.open(str(tmp_path)), {"tracking_uri": f"sqlite:///{tmp_path}/m.db"}
    values = {"preset": "tiny", "keep": keep}
    begun, again = (RunConfig.model_validate(values | more) for more in ({}, {"resume": "run"}))
    record_beginning(begun, "run", root.child("run"), step=0).end("FINISHED")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    ids = [
        record_beginning(again, name, root.child(name), step=1).run_id
        for name in ("run", "copy", "copy", "run")
    ]
    assert ids[0] == ids[3] != ids[1] == ids[2]


def test_a_run_is_not_resumed_with_other_questions(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    values = {
        "preset": "tiny",
        "task": {"kind": "files", "path": str(rows)},
        "keep": {"artifact_root": str(tmp_path), "tracking_uri": f"sqlite:///{tmp_path}/m.db"},
    }
    begun, again = (RunConfig.model_validate(values | more) for more in ({}, {"resume": "run"}))
    store = Store.open(str(tmp_path)).child("run")
    rows.write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2=", "answer": 3}\n')
    record_beginning(begun, "run", store, step=0).end("FINISHED")
    record_beginning(again, "run", store, step=1).end("FINISHED")
    rows.write_text(rows.read_text().replace("1+2=", "2+1="))
    prompts._dataset.cache_clear()  # as in another process
    with pytest.raises(ValueError, match="must have the rows that run run was begun with"):
        record_beginning(again, "run", store, step=2)


def test_the_tasks_of_a_run_take_no_record_without_digest_and_make_its_folder_never_again(
    tmp_path: Path,
) -> None:
    context = replace(CONTEXT, artifact_root=str(tmp_path), has_digests=True)
    store = context.open_store()
    store.write(layout.step_file(layout.SPLITS, 1), b"[]")
    with pytest.raises(ValueError, match="it has no digest"):
        read_split(store, 1)
    store.delete("")
    with pytest.raises(StoreError, match=r"has no manifest.json any more"):
        replace(context, manifest_digest="kept").open_store().write("steps/1", b"")
    assert not (tmp_path / "run").exists()
