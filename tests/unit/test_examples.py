"""The examples work by their import paths alone, and pass the check that they show."""

from __future__ import annotations

import io
import math
import re
import shlex
import tokenize
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from record_factories import make_generated
from round_factories import make_plan, play, simulate_run

from artifacts.datasets.registry import load_dataset
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.records import Outcome, Prompt
from flows.commands.algebra_rows import algebra_rows
from flows.commands.rollflow import main
from flows.config.run_config import RunConfig
from research.spot.simulated_rounds import make_engines
from tasks.engines.base import ReplicaConfig
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.learner.advantage import CustomAdvantage, group_advantages
from tasks.learner.token_loss import TokenBatch
from tasks.rewards.registry import build_rewards
from tasks.scheduling.policies.sync import SyncConfig
from tests.test_layers import ROOMS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PARTS = ROOT / "docs" / "parts.md"
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")


# Any: values as a user writes them
def configured(**given: Any) -> RunConfig:
    """A run's configuration with these parts."""
    return RunConfig.model_validate({"preset": "tiny", "num_steps": 4, **given})


def own(name: str, **kwargs: object) -> dict[str, Any]:  # Any: as a user writes it
    """The settings of a part of the examples."""
    return {"kind": "custom", "path": str(ROOT / "examples" / name), "kwargs": kwargs}


def code_lines(path: Path) -> int:
    """Lines that hold code: no comment, no docstring, no import, nothing blank."""
    source = path.read_text()
    source = re.sub(r'""".*?"""', "", source, flags=re.DOTALL)
    source = re.sub(r"^(from|import) .*$", "", source, flags=re.MULTILINE)
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({token.start[0] for token in tokens if token.type not in ignored and token.string})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_less_than_thirty_lines_of_code(path: Path) -> None:
    assert 5 < code_lines(path) < 30


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes_the_check_that_it_shows(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    shown = re.findall(r"^    rollflow (check .*)$", path.read_text(), re.MULTILINE)
    assert len(shown) == 1
    assert main(shlex.split(shown[0])) == 0, capsys.readouterr().out
    assert "broken" not in capsys.readouterr().out
    assert path.name in PARTS.read_text() or path.stem == "in_turn_policy"


def test_the_policy_is_chosen_and_plays_a_run() -> None:
    config = configured(
        scheduling=own("ramp_policy.py:RampPolicy", first_prompts=2),
        batch={"prompts_per_step": 3, "responses_per_prompt": 2},
    )
    assert dict(algebra_rows(config))["scheduling policy"] == "custom: RampPolicy"
    rounds = run_virtual(
        simulate_run(
            config.batch,
            config.scheduling,
            num_steps=config.num_steps,
            engines=make_engines(2, SimulatedEngineConfig()),
            domains=("a", "b") * 20,
        )
    )
    assert [(played.plan.kind, len(played.result.groups)) for played in rounds] == [
        ("ramp", 2), ("ramp", 3), ("ramp", 3), ("ramp", 3),
    ]  # fmt: skip
    trained = [group.prompt.prompt_id for played in rounds for group in played.result.groups]
    assert len(set(trained)) == len(trained) == 11
    assert rounds[-1].state.queue == ()


def test_the_policy_with_a_scheduler_of_its_own_asks_one_prompt_after_the_other() -> None:
    config = configured(
        scheduling=own("in_turn_policy.py:InTurnPolicy"),
        batch={"prompts_per_step": 3, "responses_per_prompt": 2},
    )
    rounds = run_virtual(
        simulate_run(
            config.batch,
            config.scheduling,
            num_steps=config.num_steps,
            engines=make_engines(2, SimulatedEngineConfig()),
            domains=("a", "b") * 20,
        )
    )
    assert [len(played.result.groups) for played in rounds] == [3, 3, 3, 3]
    for played in rounds:
        assert played.plan.kind == "in_turn"
        times = [
            [response.generated for response in group.responses] for group in played.result.groups
        ]
        for before, after in pairwise(times):
            assert max(one.finished_s for one in before) <= min(one.submitted_s for one in after)


def test_the_reward_is_chosen_and_scores() -> None:
    reward = own("brief_reward.py:brief")
    del reward["kwargs"]
    config = configured(rewards={"*": reward})
    prompt = Prompt(prompt_id="0/1", domain="add", token_ids=(1,), gold="12", text="q")
    with closing(build_rewards(config.rewards)) as rewards:
        scores = [
            rewards.reward_of(prompt.domain).score(prompt, make_generated(text=text))
            for text in ("It is 12.", "No.", "Let me think: " * 4 + "it is 12.")
        ]
    assert [score.reward for score in scores] == [1.0, 0.1, 0.0]
    assert [score.outcome for score in scores] == [Outcome.OK, Outcome.OK, Outcome.WRONG]


def test_the_engine_is_chosen_and_plays_a_round(tmp_path: Path) -> None:
    character_tokenizer().save_pretrained(tmp_path)
    config = configured(engine={**own("echo_engine.py:EchoEngine", token_s=0.5)})
    assert config.engine.max_model_len == ReplicaConfig().max_model_len
    engine = config.engine.build_engine(str(tmp_path), "engine-0", core_ids=(), seed=0)
    assert isinstance(engine, SimulatedEngine)
    plan = make_plan()
    result = run_virtual(play(plan, [engine], max_response_tokens=200, policy=SyncConfig()))
    assert len(result.groups) == plan.accept_prompts
    for group in result.groups:
        for response in group.responses:
            generated = response.generated
            assert generated.token_ids == group.prompt.token_ids
            assert generated.finished_s - generated.submitted_s >= 0.5 * len(generated.token_ids)


def test_the_loss_is_chosen_and_has_the_gradient_of_its_formula() -> None:
    config = configured(
        learner={"loss": own("praise_loss.py:PraiseLoss", importance_cap=1.5)},
    )
    loss = config.learner.loss
    told = dict(algebra_rows(config))["policy loss"]
    assert told.startswith("custom: PraiseLoss: -w max(A, 0) logp")
    logp = torch.tensor([-1.0, -2.0, -0.5, -3.0], requires_grad=True)
    sampling_logp, advantage = [-1.2, -4.0, -0.1, -3.0], [0.5, 1.0, -2.0, 0.0]
    batch = TokenBatch(
        sampling_logp=torch.tensor(sampling_logp),
        advantage=torch.tensor(advantage),
        reward=torch.tensor(advantage),
        weight=torch.ones(4),
        num_tokens=torch.full((4,), 4.0),
        reference=None,
        mean_log_ratio=None,
    )
    result = loss.token_loss(logp, batch)
    result.loss.sum().backward()
    expected = [
        -min(math.exp(now - before), 1.5) * max(worth, 0.0)
        for now, before, worth in zip(logp.tolist(), sampling_logp, advantage, strict=True)
    ]
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(expected)
    assert result.truncated.tolist() == [False, True, False, False]
    assert result.clipped.tolist() == [False, False, True, False]


def test_the_advantage_is_chosen_and_counts_ranks() -> None:
    config = configured(learner={"advantage": own("rank_advantage.py:RankAdvantage")})
    advantage = config.learner.advantage
    assert isinstance(advantage, CustomAdvantage)
    assert group_advantages([0.0, 9.0, 1.0, None], advantage) == [-1.0, 1.0, 0.0, None]
    assert group_advantages([1.0, 1.0], advantage) == [0.0, 0.0]


def test_the_task_is_chosen_and_yields_rows() -> None:
    task = configured(task=own("squares_task.py:SquaresTask", num_prompts=50)).task
    dataset = load_dataset(task, seed=1)
    assert (len(dataset.rows), len(dataset.heldout)) == (50, 64)
    for row in (*dataset.rows, *dataset.heldout):
        number, again = map(int, re.findall(r"\d+", row.text))
        assert (number, row.domain) == (again, "squares")
        assert int(row.gold) == number * again
    assert not {row.text for row in dataset.rows} & {row.text for row in dataset.heldout}
    assert dataset == load_dataset(task, seed=1)
    assert dataset.digest != load_dataset(task, seed=2).digest


def test_the_page_names_files_and_tests_that_exist() -> None:
    page = PAGE.read_text()
    named = set(re.findall(r"`((?:tests|tasks|flows|artifacts|examples)/[\w/]+\.py)`", page))
    assert len(named) > 30
    assert not [name for name in named if not (ROOT / name).is_file()]
    shown = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert shown
    for file, test in shown:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def test_the_page_names_functions_where_they_are() -> None:
    named = re.findall(r"`([\w.]+)`(?: of the policy)? in `([\w/]+\.py)`", PAGE.read_text())
    assert len(named) >= 12
    for name, file in named:
        source = (ROOT / file).read_text()
        *owner, function = name.split(".")
        assert f"def {function}(" in source, f"{file} has no {name}"
        assert not owner or f"class {owner[0]}" in source, f"{file} has no {name}"


def test_the_page_has_the_rooms_in_their_order() -> None:
    section = PAGE.read_text().split("## Rooms")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = re.findall(r"`([^`]+)`", " ".join(rows))
    assert tuple(name.removesuffix("*.py").removesuffix("/") for name in names) == ROOMS


def test_the_page_has_every_invariant_and_the_code_cites_none_that_it_lacks() -> None:
    section = PAGE.read_text().split("## Invariants")[1].split("\n## ")[0]
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    assert listed == list(range(1, 20))
    folders = [ROOT / name for name in ("artifacts", "tasks", "flows", "research", "tests")]
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    cited = [
        int(number)
        for source in sources
        for numbers in re.findall(r"[Ii]nvariants? ([\d, and]+)", source)
        for number in re.findall(r"\d+", numbers)
    ]
    assert len(cited) > 5
    assert set(cited) <= set(listed)
