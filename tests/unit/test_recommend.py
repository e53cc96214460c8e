"""What is recommended is the shortest step of all that were played, and what a run accepts."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_run_factories import CONFIG, STEP_S, keep_run

from artifacts.commit import read_manifest, write_manifest
from artifacts.store import Store
from flows.commands.candidates import Candidate, others
from flows.commands.command_line import assemble
from flows.commands.expected import (
    MAX_STEPS,
    MIN_STEPS,
    Expected,
    _accepted,
    compare_candidates,
    simulated_run,
)
from flows.commands.recommend import explanation, main, parser
from flows.commands.situation import build_situation
from flows.config.run_config import RunConfig
from tasks.scheduling.policies.multilevel import MultilevelBatchingConfig
from tasks.simulation.workloads import WORKLOADS

SMALL = ["--devices", "4", "--prompts", "4", "--responses", "2", "--cap", "1024", "--seeds", "2"]
MATH = [*SMALL, "--workload", "math"]
Json = dict[str, Any]  # Any: JSON values


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the settings of what was chosen; beside it, all that was played."""
    folder = tmp_path_factory.mktemp("recommend")
    said = io.StringIO()
    words = ("--json", str(folder / "kept" / "all.json"), "--write", str(folder / "best.json"))
    with redirect_stdout(said):
        assert main([*MATH, *words]) == 0
    (folder / "said").write_text(said.getvalue())
    return folder / "best.json"


@pytest.fixture(scope="module")
def answers(best: Path) -> list[Json]:
    found: list[Json] = json.loads((best.parent / "kept" / "all.json").read_text())
    return found


def test_every_size_policy_and_placement_is_played(answers: list[Json]) -> None:
    settings = [json.dumps(answer["settings"], sort_keys=True) for answer in answers]
    # sizes 1, 2 and 4; at the best of them four etas and rounds of levels: of four prompts 1.125
    # and 1.25 launch the same
    assert len(set(settings)) == len(settings) >= 3 + 4
    assert all(len(answer["step_s"]) == 2 and min(answer["step_s"]) > 0 for answer in answers)
    assert {answer["settings"]["scheduling"]["kind"] for answer in answers} == {
        "sync",
        "tail_batching",
        "multilevel_batching",
    }


def test_what_a_sharded_learner_cannot_do_is_left_out_with_the_reason(
    answers: list[Json], capsys: pytest.CaptureFixture[str]
) -> None:
    """The preset for GPUs shards the learner; replicated, the stream trainer is tried as well."""
    assert not any(answer["settings"]["stream_trainer"]["enabled"] for answer in answers)
    situation = build_situation(parser().parse_args(MATH))
    accepted = _accepted([Candidate(size=4, streams=True), Candidate(size=4)], situation)
    assert [candidate.streams for candidate, _ in accepted] == [False]
    reason = "not tried: synchronous, stream trainer, engines of 4: learner.parameters=sharded"
    assert reason in capsys.readouterr().err


def test_the_shortest_comes_first_and_is_what_is_written(answers: list[Json], best: Path) -> None:
    told = (best.parent / "said").read_text().splitlines()
    assert told[-1] == f"rollflow train --settings {best}"
    means = [sum(answer["step_s"]) for answer in answers]
    assert means == sorted(means)
    assert json.loads(best.read_text()) == answers[0]["settings"]


def test_what_is_written_is_a_configuration_with_what_was_asked_for(answers: list[Json]) -> None:
    for answer in answers:
        config = RunConfig.model_validate(answer["settings"])
        assert config.preset == "eight-gpu"
        assert config.cluster.num_devices == 4
        assert config.batch.prompts_per_step == 4
        assert config.batch.responses_per_prompt == 2
        assert config.sampling.max_response_tokens == 1024


def test_without_a_file_the_settings_are_told_as_train_takes_them(
    answers: list[Json], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(MATH) == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert words[:4] == ["rollflow", "train", "--preset", "eight-gpu"]
    assert set(words[4::2]) == {"--set"}
    told = RunConfig.model_validate(assemble("eight-gpu", "", words[5::2]))
    assert told == RunConfig.model_validate(answers[0]["settings"])


@pytest.mark.parametrize("has_tail", [True, False])
def test_tail_batching_pays_where_there_is_a_tail(has_tail: bool, tmp_path: Path) -> None:
    run = keep_run(tmp_path / "recorded", has_tail)
    options = parser().parse_args(["--run", str(run)])
    found = compare_candidates(build_situation(options), 2)
    step_s = {each.candidate: each.mean_s for each in found}
    batched = step_s[Candidate(size=1, prompt_eta=1.5, response_eta=1.5)]
    assert (batched < step_s[Candidate(size=1)]) == has_tail


def test_steps_that_overlap_are_tried_if_asked() -> None:
    best = Candidate(size=2)
    assert not any(each.async_ratio for each in others(best, 8, 1, 3, is_off_policy=False))
    found = [each for each in others(best, 8, 1, 3, is_off_policy=True) if each.async_ratio]
    assert [each.num_learners for each in found if not each.pauses] == [2, 4]
    assert found[0].roles(8) == "rollout: 0-5, learner: 6-7"
    in_turn = [each for each in found if each.pauses]
    assert [(each.extra_lag, each.streams) for each in in_turn] == [
        (lag, streams) for lag in (0, 4) for streams in (False, True)
    ]
    assert {each.roles(8) for each in in_turn} == {"rollout: 0-7, learner: 0-7"}
    assert in_turn[-1].scheduling["at_update"] == "pause"


def test_a_learner_apart_has_whole_groups_and_leaves_whole_engines() -> None:
    found = others(Candidate(size=4), 8, 2, 3, is_off_policy=False)
    assert {each.num_learners for each in found} == {0, 4}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "abacus"], "--device must be one of"),
        (["--model", "nowhere.json"], "--model must be one of"),
        (["--model", "README.md"], "--model must be a config.json"),
        (["--devices", "0"], "--devices must be >= 1"),
        (["--devices", "1", "--model", "qwen2.5-32b"], "must fit an engine of up to 1 h800"),
        (["--preset", "none"], "preset must be one of"),
        (["--run", "nowhere"], "RUN must be a run"),
    ],
)
def test_what_cannot_be_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *words]) == 2
    assert said in capsys.readouterr().err


NO_HEADS = '"num_attention_heads": null, "num_hidden_layers": 1, "hidden_size": 8'


@pytest.mark.parametrize("text", ["[]", "null", f'{{"model_type": "llama", {NO_HEADS}}}'])
def test_a_file_that_describes_no_model_is_said(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    assert main([*SMALL, "--model", str(file)]) == 2
    assert f"--model must be a config.json of transformers, {file}: " in capsys.readouterr().err


def test_what_was_found_is_shown_though_it_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*MATH, "--json", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "it is the shortest in" in told.out
    assert "Is a directory" in told.err


def test_a_model_may_be_a_config_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "num_hidden_layers": 4,
                "vocab_size": 49152,
                "tie_word_embeddings": True,
            }
        )
    )
    situation = build_situation(
        parser().parse_args([*MATH, "--model", str(tmp_path / "config.json")])
    )
    assert situation.sizes == (1, 2, 4)
    assert situation.base["model"] == {"kind": "path", "path": str(tmp_path)}


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("h200", "a roofline, compared with one H200 run"),
        ("h100", "a roofline, compared with nothing"),
    ],
)
def test_a_roofline_says_what_it_was_compared_with(device: str, words: str) -> None:
    situation = build_situation(parser().parse_args([*MATH, "--device", device]))
    assert words in situation.about


def test_a_run_says_what_is_not_given_and_how_fast_its_machine_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = keep_run(tmp_path / "recorded"), tmp_path / "best.json"
    assert main(["--run", str(run), "--seeds", "2", "--write", str(file)]) == 0
    told = capsys.readouterr().out
    assert "2 devices, a machine fitted to your run" in told
    assert f"it took {STEP_S:.2f} s" in told.partition("the recorded run itself plays as")[2]
    config = RunConfig.model_validate(json.loads(file.read_text()))
    assert config.batch == CONFIG.batch
    assert config.sampling == CONFIG.sampling
    assert config.num_steps == CONFIG.num_steps
    assert config.engine.tensor_parallel_size == 1, "no other size was recorded"
    assert config.cluster.num_devices == 2
    assert config.run_name == ""


def test_what_takes_as_long_in_every_draw_is_not_to_be_told_from_the_best() -> None:
    config = RunConfig.model_validate({"preset": "tiny"})
    best, equal, slower = (
        Expected(
            candidate=Candidate(size=size),
            config=config,
            step_s=(seconds, seconds + 1),
            rollout_share=0.5,
            tokens_per_s=1.0,
        )
        for size, seconds in ((1, 2.0), (2, 2.0), (4, 3.0))
    )
    assert "not to be told from it: synchronous, engines of 2" in list(
        explanation((best, equal, slower))
    )


def test_draws_of_a_run_differ_and_are_the_same_for_all(tmp_path: Path) -> None:
    options = parser().parse_args(
        [
            "--run",
            str(keep_run(tmp_path / "recorded")),
        ]
    )
    found = compare_candidates(build_situation(options), 2)
    assert all(len(set(each.step_s)) == 2 for each in found)
    again = compare_candidates(build_situation(options), 2)
    assert [each.step_s for each in again] == [each.step_s for each in found]


def test_lengths_of_a_run_may_be_played_on_other_devices(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "recorded")
    words = ["--run", str(run), "--model", "qwen2.5-7b", "--device", "h100", "--devices", "4"]
    situation = build_situation(parser().parse_args(words))
    assert situation.sizes == (1, 2, 4)
    assert situation.recorder is None
    assert situation.base["cluster"]["device_kind"] == "cuda"
    assert situation.work(0).longest_tokens == 128


def test_a_draw_of_a_period_without_end_is_bounded(tmp_path: Path) -> None:
    """Eight levels with an eta of 1.25 take more rounds than anybody would wait for."""
    situation = build_situation(
        parser().parse_args(["--run", str(keep_run(tmp_path / "recorded"))])
    )
    endless = MultilevelBatchingConfig(num_levels=8, prompt_overprovision=1.25)
    assert endless.algebra(CONFIG.batch).period_steps > 10_000
    config = CONFIG.model_copy(update={"scheduling": endless})
    assert simulated_run(config, 0, situation).num_steps == MAX_STEPS
    assert simulated_run(CONFIG, 0, situation).num_steps == MIN_STEPS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "qwen2.5-7b"], "--model must be left out"),
        (["--preset", "tiny"], "--preset must be left out"),
        (["--device", "h100"], "the run that is over has one, too"),
    ],
)
def test_what_does_not_go_with_a_run_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--run", str(keep_run(tmp_path / "recorded")), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_of_another_version_is_told_as_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = keep_run(tmp_path / "recorded")
    store = Store.open(str(run))
    manifest = read_manifest(store)
    config = {**manifest.config, "learner": {**manifest.config["learner"], "turbo": True}}
    write_manifest(store, replace(manifest, config=config))
    assert main(["--run", str(run)]) == 2
    assert "the run's manifest must have a configuration of this version" in capsys.readouterr().err


def test_every_workload_can_be_asked_for() -> None:
    (choices,) = (each.choices for each in parser()._actions if each.dest == "workload")
    assert list(choices or ()) == list(WORKLOADS)
