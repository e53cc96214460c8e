"""What is recommended is the shortest step of all that were played, and what a run accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.commands.command_line import assemble
from flows.commands.recommend import Candidate, main, parser, played
from flows.config.run_config import RunConfig

SMALL = ["--devices", "4", "--prompts", "8", "--responses", "4", "--cap", "2048", "--seeds", "1"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    path = tmp_path_factory.mktemp("recommend") / "all.json"
    assert main([*SMALL, "--workload", "math", "--json", str(path)]) == 0
    found: list[dict[str, object]] = json.loads(path.read_text())
    return found


def test_every_size_and_every_policy_is_played(answers: list[dict[str, object]]) -> None:
    settings = [json.dumps(answer["settings"], sort_keys=True) for answer in answers]
    assert len(set(settings)) == len(settings) == 3 + 7  # sizes 1, 2 and 4; policies at the best
    assert all(answer["step_s"][0] > 0 for answer in answers)  # type: ignore[index]


def test_the_shortest_is_recommended_with_settings_that_a_run_accepts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SMALL, "--workload", "math"]) == 0
    told = capsys.readouterr().out
    words = told.splitlines()[-1].removeprefix("rollflow train --set ").split(" --set ")
    config = RunConfig.model_validate(assemble("tiny", "", words))
    expected = [*played(parser().parse_args([*SMALL, "--workload", "math"]))]
    best = min(expected, key=lambda each: each.mean_s)
    assert config.stream_trainer.enabled == best.candidate.streams
    assert set(words) == {f"{name}={value}" for name, value in best.candidate.settings.items()}
    assert best.candidate.label in told


def test_without_a_tail_batching_it_gains_little() -> None:
    expected = [*played(parser().parse_args([*SMALL, "--workload", "no_tail"]))]
    plain = min(each.mean_s for each in expected if each.candidate.eta == 1)
    batched = min(each.mean_s for each in expected if each.candidate.eta > 1)
    assert batched > 0.75 * plain


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "abacus"], "--device must be one of"),
        (["--model", "nowhere.json"], "--model must be one of"),
        (["--model", "README.md"], "--model must be a config.json"),
        (["--devices", "0"], "must be >= 1"),
    ],
)
def test_what_cannot_be_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *words]) == 2
    assert said in capsys.readouterr().err


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
    words = [*SMALL, "--workload", "math", "--model", str(tmp_path / "config.json")]
    sizes = {each.candidate.size for each in played(parser().parse_args(words))}
    assert sizes == {1, 2, 4}
    assert Candidate(size=1).label == "synchronous"
