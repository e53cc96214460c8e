"""Settings of rounds without training, and what `rollflow rollout` makes of its options."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_run_factories import STEPS, keep_run
from report_factories import make_run
from round_factories import make_plan

from artifacts.store import Store
from flows.commands import demo, rollout
from flows.commands.algebra_rows import algebra_rows
from flows.config.run_config import RunConfig, without_training
from flows.config.settings_file import settings_of
from flows.recovery import PartialRound, copy_plans, keep_round, partial_round
from tasks.cluster.devices import worker_specs
from tasks.scheduling.events import PromptRef
from tasks.scheduling.queue_state import QueueState


def alone(preset: str = "tiny-sync", **values: object) -> RunConfig:
    given = {"cluster": {"device_kind": "cpu"}, **values}
    return RunConfig.model_validate({"preset": preset, "trains": False, **given})


def test_rounds_alone_make_no_room_for_an_adapter() -> None:
    """Of a run's adapter they ask the merged model."""
    assert alone("tiny-lora").engine.adapter is None


@pytest.mark.parametrize(
    ("roles", "kept"),
    [
        ("rollout: 0-1, learner: 0-1", "rollout: 0-1"),
        ("learner: 0,2, rollout: 0-1,3, judge: 2", "rollout: 0-1,3, judge: 2"),
        ("rollout: 0; learner: 1-3; environment: 2", "rollout: 0; environment: 2"),
        ("rollout: 0-1", "rollout: 0-1"),
    ],
)
def test_rounds_alone_have_no_learner_devices(roles: str, kept: str) -> None:
    assert without_training({"cluster": {"roles": roles}})["cluster"]["roles"] == kept


@pytest.mark.parametrize("preset", ["tiny", "tiny-judged", "rollpacker", "elastic", "eight-gpu"])
def test_nothing_trains_or_publishes_in_them(preset: str) -> None:
    config = alone(preset)
    assert "learner" not in {spec.role for spec in worker_specs(config.cluster)}
    parts = (config.stream_trainer, config.seeding, config.elastic, config.weight_check)
    assert not any(part.enabled for part in parts)
    assert RunConfig.model_validate(settings_of(config)) == config
    rows = dict(algebra_rows(config))
    assert rows["training"] == "none: no updates"
    assert not {"evaluation", "micro-batches", "learning rate"} & rows.keys()


def test_rounds_that_carry_responses_on_are_refused_without_training() -> None:
    with pytest.raises(ValueError, match="trains=false needs rounds that carry nothing"):
        alone("tiny-async")


def test_a_run_that_trains_replays_nothing() -> None:
    with pytest.raises(ValueError, match="replays needs trains=false, got '/a/run'"):
        RunConfig.model_validate({"preset": "tiny", "replays": "/a/run"})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Namespace, dict[str, Any]]]:
    """The options and the settings file that each run is started with."""
    seen: list[tuple[Namespace, dict[str, Any]]] = []

    def run(options: Namespace) -> int:
        settings = json.loads(Path(options.settings).read_text()) if options.settings else {}
        seen.append((options, settings))
        return 0

    monkeypatch.setattr(demo, "run", run)
    return seen


def test_the_command_starts_a_run_that_does_not_train(
    started: list[tuple[Namespace, dict[str, Any]]],
) -> None:
    assert rollout.main(["--preset", "tiny", "--set", "num_steps=2"]) == 0
    assert rollout.main(["--resume", "last"]) == 0
    begun, resumed = (options for options, _ in started)
    assert begun.set == ["num_steps=2", "trains=false"]
    assert (resumed.set, resumed.resume) == ([], "last")


def test_another_run_gives_its_settings_and_the_number_of_its_steps(
    tmp_path: Path, started: list[tuple[Namespace, dict[str, Any]]]
) -> None:
    source = keep_run(tmp_path / "recorded")
    words = ["--root", str(tmp_path), "--from", "last", "--set", "model.path=elsewhere"]
    assert rollout.main(words) == 0
    ((options, settings),) = started
    assert options.set == ["model.kind=path", "model.path=elsewhere", "trains=false"]
    assert (settings["replays"], settings["num_steps"]) == (str(source), STEPS)
    assert settings["batch"] == {"prompts_per_step": 4, "responses_per_prompt": 4}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "batch.prompts_per_step=2"], "got batch beside it"),
        (["--set", "seed=2", "--preset", "tiny"], "got seed, --preset beside it"),
        (["--resume", "last"], "got --resume beside it"),
    ],
)
def test_what_the_other_runs_rounds_decide_is_refused_beside_them(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_run(tmp_path / "recorded")
    assert rollout.main(["--root", str(tmp_path), "--from", "recorded", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_plans_of_another_run_are_stored_once_and_those_that_are_there_stay(
    tmp_path: Path,
) -> None:
    source = Store.open(str(keep_run(tmp_path / "recorded")))
    run = make_run(Store.open(str(tmp_path)), trains=False, replays=source.url)
    with pytest.raises(ValueError, match="has none for step 1; name another"):
        copy_plans(run)
    asked = (PromptRef(prompt_id="0/1", domain="a"), PromptRef(prompt_id="0/2", domain="a"))
    for step in range(1, STEPS + 1):
        plan = replace(make_plan(), step=step, prompts=asked)
        keep_round(source, PartialRound(before=QueueState(num_drawn=step), plan=plan))
    own = keep_round(run.store, PartialRound(before=QueueState(), plan=replace(plan, step=1)))
    copy_plans(run)
    found = [partial_round(run.store, step, STEPS, ()) for step in range(1, STEPS + 1)]
    assert found[0] == own
    assert found[1:] == [partial_round(source, step, STEPS, ()) for step in range(2, STEPS + 1)]
