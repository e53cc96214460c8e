"""The examples work, and the diffs of docs/architecture.md are all that it takes to choose them."""

from __future__ import annotations

import io
import math
import re
import sys
import tokenize
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pydantic import create_model
from record_factories import make_generated
from round_factories import make_plan, play, simulate_run

from artifacts.datasets.registry import load_dataset
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.records import Generated, Outcome, Prompt
from examples.brief_reward import BriefConfig
from examples.echo_engine import EchoEngineConfig
from examples.praise_loss import PraiseLoss
from examples.ramp_policy import RampConfig
from examples.squares_task import SquaresConfig
from flows.commands.algebra_rows import algebra_rows
from flows.config.run_config import RunConfig
from research.spot.simulated_rounds import make_engines
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.token_loss import TokenBatch
from tasks.scheduling.policies.sync import SyncConfig
from tests.test_layers import ROOMS

BY_PATH = ["guess_environment"]  # examples that no line of ours chooses, but an import path
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
REGISTRIES = {
    "ramp_policy": "tasks/scheduling/policies/registry.py",
    "in_turn_policy": "tasks/scheduling/policies/registry.py",
    "brief_reward": "tasks/rewards/registry.py",
    "echo_engine": "tasks/engines/registry.py",
    "praise_loss": "tasks/learner/losses/registry.py",
    "squares_task": "artifacts/datasets/registry.py",
}


def shown_diffs() -> Mapping[str, tuple[str, str]]:
    """The diffs of the page by the example that they choose, each with the file that it changes."""
    blocks = re.findall(r"```diff\n--- (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    examples = [re.findall(r"^\+from examples\.(\w+) import", diff, re.M) for _, diff in blocks]
    return {name: block for (name,), block in zip(examples, blocks, strict=True)}


def applied(diff: str, source: str) -> str:
    """The source after the diff, whose every hunk must fit in exactly one place."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert source.count(old) == 1, f"this is not there once:\n{old}"
        source = source.replace(old, new)
    return source


def changed(example: str, monkeypatch: pytest.MonkeyPatch) -> Any:  # Any: a module made here
    """The registry of this example as the diff of the page makes it."""
    file, diff = shown_diffs()[example]
    module = ModuleType(f"changed_{Path(file).stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = applied(diff, (ROOT / file).read_text())
    exec(compile(source, file, "exec"), module.__dict__)
    return module


# Any: a class made here, and values as a user writes them
def configured(fields: Mapping[str, Any], **given: Any) -> Any:
    """A run's configuration of which these fields have other types."""
    wider = create_model("Wider", __base__=RunConfig, **{  # type: ignore[call-overload]
        name: (kind, ...) for name, kind in fields.items()
    })  # fmt: skip
    return wider.model_validate({"preset": "tiny", "num_steps": 4, **given})


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


def test_every_example_has_its_diff_of_an_import_and_a_line_of_a_union() -> None:
    diffs = shown_diffs()
    assert {name: file for name, (file, _) in diffs.items()} == REGISTRIES
    assert sorted([*REGISTRIES, *BY_PATH]) == [path.stem for path in EXAMPLES]
    for name, (_, diff) in diffs.items():
        imported, listed = [line[1:] for line in diff.splitlines() if line.startswith("+")]
        assert imported.startswith(f"from examples.{name} import ")
        assert listed.startswith(f"    | {imported.split()[-1]}  # ")
        assert not [line for line in diff.splitlines() if line.startswith("-")]


def test_the_policy_is_chosen_and_plays_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = changed("ramp_policy", monkeypatch)
    assert RampConfig in registry.POLICIES
    config = configured(
        {"scheduling": registry.SchedulingConfig},
        scheduling={"kind": "ramp", "first_prompts": 2},
        batch={"prompts_per_step": 3, "responses_per_prompt": 2},
    )
    run = simulate_run(
        config.batch,
        config.scheduling,
        num_steps=config.num_steps,
        engines=make_engines(2, SimulatedEngineConfig()),
        domains=("a", "b") * 20,
    )
    rounds = run_virtual(run)
    assert [(played.plan.kind, len(played.result.groups)) for played in rounds] == [
        ("ramp", 2), ("ramp", 3), ("ramp", 3), ("ramp", 3),
    ]  # fmt: skip
    trained = [group.prompt.prompt_id for played in rounds for group in played.result.groups]
    assert len(set(trained)) == len(trained) == 11
    assert rounds[-1].state.queue == ()


def test_the_policy_with_a_scheduler_of_its_own_asks_one_prompt_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = changed("in_turn_policy", monkeypatch)
    config = configured(
        {"scheduling": registry.SchedulingConfig},
        scheduling={"kind": "in_turn"},
        batch={"prompts_per_step": 3, "responses_per_prompt": 2},
    )
    run = simulate_run(
        config.batch,
        config.scheduling,
        num_steps=config.num_steps,
        engines=make_engines(2, SimulatedEngineConfig()),
        domains=("a", "b") * 20,
    )
    rounds = run_virtual(run)
    assert [len(played.result.groups) for played in rounds] == [3, 3, 3, 3]
    for played in rounds:
        assert played.plan.kind == "in_turn"
        times = [
            [response.generated for response in group.responses] for group in played.result.groups
        ]
        for before, after in pairwise(times):
            assert max(one.finished_s for one in before) <= min(one.submitted_s for one in after)


def test_the_reward_is_chosen_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = changed("brief_reward", monkeypatch)
    config = configured(
        {"rewards": Mapping[str, registry.RewardConfig]},
        rewards={"*": {"kind": "brief", "max_chars": 10}},
    )
    assert config.rewards == {"*": BriefConfig(max_chars=10)}
    rewards = registry.build_rewards(config.rewards)
    prompt = Prompt(prompt_id="0/1", domain="add", token_ids=(1,), gold="12", text="q")
    reward = rewards.reward_of(prompt.domain)
    early = reward.score(prompt, said("It is 12."))
    assert (early.reward, early.outcome, early.scorer) == (1.0, Outcome.OK, "brief")
    late = reward.score(prompt, said("Let me think: it is 12."))
    assert (late.reward, late.outcome, late.detail) == (0.0, Outcome.WRONG, "not_found")
    rewards.close()


def said(text: str) -> Generated:
    return make_generated(text=text)


def test_the_engine_is_chosen_and_plays_a_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    character_tokenizer().save_pretrained(tmp_path)
    choice = changed("echo_engine", monkeypatch)
    config = configured({"engine": choice.EngineConfig}, engine={"kind": "echo", "token_s": 0.5})
    assert config.engine == EchoEngineConfig(token_s=0.5)
    engine = config.engine.build_engine(str(tmp_path), "engine-0", core_ids=(), seed=0)
    plan = make_plan()
    result = run_virtual(play(plan, [engine], max_response_tokens=200, policy=SyncConfig()))
    assert len(result.groups) == plan.accept_prompts
    for group in result.groups:
        for response in group.responses:
            generated = response.generated
            assert generated.token_ids == group.prompt.token_ids
            assert generated.finished_s - generated.submitted_s >= 0.5 * len(generated.token_ids)


def test_the_loss_is_chosen_and_has_the_gradient_of_its_formula(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = changed("praise_loss", monkeypatch)
    learner = create_model("Learner", __base__=LearnerConfig, loss=(losses.LossConfig, ...))
    config = configured(
        {"learner": learner}, learner={"loss": {"kind": "praise", "importance_cap": 1.5}}
    )
    loss = config.learner.loss
    assert loss == PraiseLoss(importance_cap=1.5)
    told = "praise: good responses alone, weights truncated at 1.5"
    assert dict(algebra_rows(config))["policy loss"] == told
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


def test_the_task_is_chosen_and_yields_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = changed("squares_task", monkeypatch)
    config = configured({"task": sources.SingleTask}, task={"kind": "squares", "num_prompts": 50})
    assert config.task == SquaresConfig(num_prompts=50)
    dataset = load_dataset(config.task, seed=1)
    assert (len(dataset.rows), len(dataset.heldout)) == (50, 64)
    for row in (*dataset.rows, *dataset.heldout):
        number, again = map(int, re.findall(r"\d+", row.text))
        assert (number, row.domain) == (again, "squares")
        assert int(row.gold) == number * again
    assert not {row.text for row in dataset.rows} & {row.text for row in dataset.heldout}
    assert dataset == load_dataset(config.task, seed=1)
    assert dataset.digest != load_dataset(config.task, seed=2).digest


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
