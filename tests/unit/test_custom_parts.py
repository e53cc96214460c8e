"""Parts of the user's own: what breaks a rule is found, errors name file and line, every process
makes its own, and what changed since the run began is told."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learner_factories import make_model, random_groups
from pydantic import TypeAdapter

from artifacts.custom_part import check_own_parts, own_parts, source_digests
from artifacts.records import pack
from flows import run_record
from flows.commands.rollflow import main
from flows.config.run_config import RunConfig
from flows.resume import resumed_config
from tasks.learner.conformance import LossRule, check_advantage, check_loss
from tasks.learner.credit import CreditConfig
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.losses.registry import CustomLoss, LossConfig
from tasks.learner.losses.weighted import PolicyGradientLoss, ReinforceLoss
from tasks.learner.token_loss import PolicyLoss
from tasks.learner.trainer import LearnerRank
from tasks.scheduling.policies.conformance import check_policy
from tasks.scheduling.policies.registry import SchedulingConfig

LOSS = """
import torch
from tasks.learner.losses.weighted import weighted_loss
from tasks.learner.token_loss import PolicyLoss, TokenLoss, importance


class Mine(PolicyLoss):
    cap: float = 2.0

    def token_loss(self, logp, batch):
        ratio = importance(logp, batch, "token")
        {body}
"""
REINFORCE = """weight = ratio.clamp(max=self.cap)
        return weighted_loss(weight, logp, batch, truncated=ratio > self.cap)"""
NONE = "torch.zeros_like(logp, dtype=torch.bool)"


def loss_of(folder: Path, body: str = REINFORCE, **kwargs: object) -> CustomLoss:
    """A loss with this body, in a file of its own."""
    path = folder / "my_loss.py"
    path.write_text(LOSS.format(body=body))
    return CustomLoss(path=f"{path}:Mine", kwargs=kwargs)


def returned(loss: str, clipped: str = NONE) -> str:
    return f"return TokenLoss(loss={loss}, truncated={NONE}, clipped={clipped})"


@pytest.mark.parametrize("kind", TypeAdapter(LossConfig).json_schema()["discriminator"]["mapping"])
def test_every_loss_of_ours_holds(kind: str) -> None:
    if kind != "custom":
        loss: PolicyLoss = TypeAdapter(LossConfig).validate_python({"kind": kind})
        assert {check.verdict for check in check_loss(loss)} == {"holds"}


@pytest.mark.parametrize(
    ("body", "rule", "said"),
    [
        ("return -batch.advantage * logp", LossRule.SHAPES, "must return a TokenLoss"),
        (returned("(-batch.advantage * logp).mean()"), LossRule.SHAPES, "one value per token"),
        (
            returned("-(batch.advantage - batch.advantage.mean()) * logp"),
            LossRule.ALONE,
            "no mean, sum or deviation",
        ),
        (
            returned("-torch.exp(logp - batch.sampling_logp) * batch.advantage"),
            LossRule.FAR,
            "take ratio, weighted_logp",
        ),
        (returned("-ratio * batch.weight * batch.advantage * logp"), LossRule.WEIGHT, "leave it"),
        (returned("-batch.advantage * logp + 0.1 * logp"), LossRule.NO_ADVANTAGE, "of advantage 0"),
        (
            returned("-batch.advantage * logp", "batch.advantage < 0"),
            LossRule.CLIPPED,
            "must have no gradient",
        ),
        (
            returned("-batch.advantage * logp * (batch.advantage > 0)", "batch.advantage <= 0"),
            LossRule.CLIPPED,
            "clips must be True",
        ),
        (
            returned("-batch.advantage * logp / (logp - batch.sampling_logp).abs()"),
            LossRule.RATIO_ONE,
            "(ratio 1)",
        ),
        (returned("-batch.advantage * logp.detach()"), LossRule.GRADIENT, "must have a gradient"),
        (
            "import math\n"
            "        class Wrong(torch.autograd.Function):\n"
            "            @staticmethod\n"
            "            def forward(ctx, x): return x.clone()\n"
            "            @staticmethod\n"
            "            def backward(ctx, g): return 2 * g\n"
            f"        {returned('-batch.advantage * Wrong.apply(logp)')}",
            LossRule.GRADIENT,
            "finite difference",
        ),
        ("return 1 / 0", LossRule.SHAPES, "my_loss.py line 12"),
    ],
)
def test_what_a_loss_breaks_is_found(tmp_path: Path, body: str, rule: LossRule, said: str) -> None:
    checks = {check.rule: check for check in check_loss(loss_of(tmp_path, body))}
    assert checks[rule].verdict == "broken"
    assert said in checks[rule].why


def test_a_loss_by_path_trains_bitwise_like_the_same_formula_built_in(tmp_path: Path) -> None:
    """Gradients and the weights after two updates, of a rank on a small model."""
    model = make_model(tmp_path / "model")
    weights = []
    for loss in (loss_of(tmp_path, cap=1.5), ReinforceLoss(importance_cap=1.5)):
        rank = LearnerRank(LearnerConfig(compute="fp32", loss=loss), model, 0, 1)
        for step in (1, 2):
            rank.accumulate(pack(random_groups(step)))
            rank.update(step)
        weights.append(rank._policy.parameters.values.clone())
    assert torch.equal(*weights)
    assert CustomLoss.model_validate_json(loss_of(tmp_path).model_dump_json()).part.clips is False


def test_another_process_makes_the_part_by_itself(tmp_path: Path) -> None:
    loss = loss_of(tmp_path, cap=3.0)
    assert loss.part.corrects_staleness  # made here, which must not travel
    asks = (
        "import pickle, sys; loss = pickle.load(sys.stdin.buffer);"
        " print(loss.part.cap, loss.explain())"
    )
    said = subprocess.run(
        [sys.executable, "-c", asks], input=pickle.dumps(loss), capture_output=True, check=True
    )
    assert said.stdout.decode().startswith("3.0 Mine: ")


def test_errors_name_file_line_and_cure(tmp_path: Path) -> None:
    loss = loss_of(tmp_path, "return logp + torch.ones(99)")
    with pytest.raises(ValueError, match=r"token_loss of .*my_loss.py:Mine must not raise") as told:
        loss.token_loss(torch.zeros(3), SimpleNamespace(sampling_logp=torch.zeros(3)))  # type: ignore[arg-type]
    assert f"{tmp_path}/my_loss.py line 12" in str(told.value)
    assert f"'rollflow check loss {tmp_path}/my_loss.py:Mine'" in str(told.value)
    with pytest.raises(ValueError, match=r"kwargs {'cup': 1}, it is not \(cup: Extra inputs"):
        _ = loss_of(tmp_path, cup=1).part
    (tmp_path / "other.py").write_text("import os\n\nclass Mine:\n    x = 1 / 0\n")
    with pytest.raises(ValueError, match=r"ZeroDivisionError.*other.py line 4\); write"):
        _ = CustomLoss(path=f"{tmp_path}/other.py:Mine").part
    (tmp_path / "third.py").write_text("class Mine:\n    pass\n")
    with pytest.raises(ValueError, match=r"must be a class of .*PolicyLoss"):
        _ = CustomLoss(path=f"{tmp_path}/third.py:Mine").part


def test_memory_that_is_exhausted_stays_what_it_is(tmp_path: Path) -> None:
    loss = loss_of(tmp_path, "raise torch.OutOfMemoryError('none left')")
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        loss.token_loss(torch.zeros(1), SimpleNamespace(sampling_logp=torch.zeros(1)))  # type: ignore[arg-type]


def config_with(**parts: Any) -> RunConfig:  # Any: as a user writes it
    return RunConfig.model_validate({"preset": "tiny", "num_steps": 2, **parts})


def test_a_run_is_refused_before_it_starts_with_the_field(tmp_path: Path) -> None:
    config = config_with(
        learner={"advantage": {"kind": "custom", "path": f"{tmp_path}/nothing.py:Mine"}}
    )
    with pytest.raises(ValueError, match=r"learner.advantage: .* there is no file .*nothing.py"):
        check_own_parts(config)
    (tmp_path / "nothing.py").write_text("class Mine:\n    pass\n")
    with pytest.raises(ValueError, match=r"advantage must have of, .* has no of; write it"):
        check_own_parts(config)


def test_files_are_recorded_and_a_changed_one_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loss = loss_of(tmp_path)
    config = config_with(
        learner={"loss": loss.model_dump()},
        rewards={"*": {"kind": "custom", "path": "examples.brief_reward:brief"}},
    )
    assert [field for field, _ in own_parts(config)] == ["rewards.*", "learner.loss"]
    before = source_digests(config)
    assert set(before) == {"rewards.*.path", "learner.loss.path"}
    assert run_record._changed_sources(before, before, 3) == ()
    loss_of(tmp_path, "raise NotImplementedError")
    now = source_digests(config)
    (change,) = run_record._changed_sources(before, now, 3)
    assert (change["after_step"], change["field"]) == (3, "learner.loss.path (file)")
    assert change["before"] != change["after"]
    assert "note: the file of learner.loss.path has changed" in capfd.readouterr().out


def test_a_file_may_move_beside_resume(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    started = config_with(learner={"loss": loss_of(here).model_dump()})
    kept = json.loads(started.model_dump_json(exclude={"resume"}))
    moved = {"loss": loss_of(there).model_dump()}
    config = resumed_config(config_with(resume="run", learner=moved), kept)
    assert config.learner.loss == loss_of(there)
    other = {"loss": loss_of(there, cap=9.0).model_dump()}
    with pytest.raises(ValueError, match=r"learner.loss.kwargs must stay"):
        resumed_config(config_with(resume="run", learner=other), kept)


ADVANTAGES = {
    "first": ("return [rewards[0] for _ in rewards]", "another order"),
    "memory": (
        "self.n = getattr(self, 'n', 0) + 1; return [r - min(rewards) + self.n for r in rewards]",
        "keep nothing between calls",
    ),
    "flat": ("return [r for r in rewards]", "equal rewards must have no advantage"),
    "sum": ("return [r - min(rewards) for r in rewards]", "must sum to zero"),
    "short": ("return rewards[1:]", "a finite number for each of the rewards"),
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_what_an_advantage_breaks_is_found(tmp_path: Path, name: str) -> None:
    body, said = ADVANTAGES[name]
    method = f"    def of(self, rewards):\n        {body}\n"
    (tmp_path / "mine.py").write_text(f"class Mine:\n    zero_sum = True\n{method}")
    given = {"kind": "custom", "path": f"{tmp_path}/mine.py:Mine"}
    checks = check_advantage(TypeAdapter[Any](CreditConfig).validate_python(given))
    assert any(said in check.why for check in checks), checks


POLICY = """
import random
from dataclasses import replace
from examples.in_turn_policy import InTurn, InTurnPolicy
from tasks.scheduling.events import AcceptGroup, Lost

class Scheduler(InTurn):
    def handle(self, event):
        {handle}

class Mine(InTurnPolicy):
    def plan_round(self, turn):
        {plan}

    def scheduler(self, plan):
        return Scheduler(plan)
"""
POLICIES = {
    "lost": ("return [] if isinstance(event, Lost) else super().handle(event)", "", "with Close"),
    "early": (
        "return [*super().handle(event), AcceptGroup(prompt_id=event.prompt_id, indices=(0,))]",
        "",
        "decided once",
    ),
    "raises": ("return {}[event.prompt_id]", "", "mine.py line 9"),
    "endless": ("", "return super().plan_round(replace(turn, step=1))", "must return None"),
    "again": (
        "",
        "return super().plan_round(replace(turn, seed=random.getrandbits(31)))",
        "the same plan",
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_policy_breaks_is_found(tmp_path: Path, name: str) -> None:
    handle, plan, said = POLICIES[name]
    handle, plan = (
        handle or "return super().handle(event)",
        plan or "return super().plan_round(turn)",
    )
    (tmp_path / "mine.py").write_text(POLICY.format(handle=handle, plan=plan))
    given = {"kind": "custom", "path": f"{tmp_path}/mine.py:Mine"}
    checks = check_policy(TypeAdapter[Any](SchedulingConfig).validate_python(given), num_runs=8)
    assert any(said in check.why for check in checks), checks


@pytest.mark.parametrize("kind", ["sync", "tail_batching", "multilevel_batching"])
def test_every_policy_of_ours_that_trains_what_it_asks_holds(kind: str) -> None:
    checks = check_policy(TypeAdapter[Any](SchedulingConfig).validate_python({"kind": kind}))
    assert {check.verdict for check in checks} == {"holds"}, checks


DATASET = """
import random
from artifacts.datasets.rows import Dataset, question_row

class Mine:
    def load(self, seed):
        rows = [question_row("sums", f"{{n}} + 1?", str(n + 1)) for n in range(20)]
        {body}
"""
DATASETS = {
    "list": ("return rows", "must return a Dataset"),
    "both": ("return Dataset(name='mine', rows=rows, heldout=rows[:4])", "on both sides"),
    "draws": (
        "random.shuffle(rows); return Dataset(name='mine', rows=rows[:9], heldout=rows[9:])",
        "the second time they were others",
    ),
    "none": ("return Dataset(name='mine', rows=rows, heldout=())", "hold out at least 2"),
}


@pytest.mark.parametrize("name", DATASETS)
def test_what_a_dataset_breaks_is_found(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body, said = DATASETS[name]
    (tmp_path / "mine.py").write_text(DATASET.format(body=body))
    assert main(["check", "dataset", f"{tmp_path}/mine.py:Mine"]) == 1
    assert said in " ".join(capsys.readouterr().out.split())


REWARDS = {
    "none": ("return None", "must be paid a finite number"),
    "same": ("return 0.5", "a right answer must be paid more than some other"),
    "draws": ("import random; return random.random()", "keep nothing between calls"),
}


@pytest.mark.parametrize("name", REWARDS)
def test_what_a_reward_breaks_is_found(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body, said = REWARDS[name]
    (tmp_path / "mine.py").write_text(f"def reward(prompt, response, gold):\n    {body}\n")
    assert main(["check", "reward", f"{tmp_path}/mine.py:reward"]) == 1
    assert said in " ".join(capsys.readouterr().out.split())


ENGINE = """
from dataclasses import replace
from examples.echo_engine import EchoEngine, EchoWriter
from tasks.engines.model_files import read_tokenizer
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
import random

class Broken(SimulatedEngine):
    {method}

class Mine(EchoEngine):
    def build_engine(self, model_path, name, core_ids, seed):
        return Broken(name, SimulatedEngineConfig(step_s=0.001),
                      writer=EchoWriter(read_tokenizer(model_path)))
"""
ENGINES = {
    "version": (
        "async def load_weights(self, weights, probes, running=None):\n"
        "        return await super().load_weights(replace(weights, version=7), probes)",
        "must attest version 1, got 7",
    ),
    "noise": (
        "async def submit(self, requests):\n"
        "        await super().submit([replace(r, prompt_tokens=(random.randrange(9, 30), 5))\n"
        "                              for r in requests])",
        "must be answered alike",
    ),
    "aborts all": (
        "async def abort(self, response_ids):\n        await super().abort(list(self._sequences))",
        "were aborted unasked",
    ),
    "stays": ("def close(self): pass", "a closed engine must raise EngineLost"),
}


@pytest.mark.parametrize("name", ENGINES)
def test_what_an_engine_breaks_is_found(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    method, said = ENGINES[name]
    (tmp_path / "mine.py").write_text(ENGINE.format(method=method))
    assert main(["check", "engine", f"{tmp_path}/mine.py:Mine"]) == 1
    assert said in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_checked_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "policy", "asynchronous"]) == 2
    assert "carries prompts over publications" in capsys.readouterr().err
    assert main(["check", "advantage", "gae"]) == 2
    assert "waits for all rewards of the step" in capsys.readouterr().err
    assert not PolicyGradientLoss().corrects_staleness


def test_the_check_of_a_kind_says_its_own_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's --set names a field of the part, not of a whole configuration."""
    for words, told in {
        "environment custom": "'rollflow check environment path/to/file.py:Name'",
        "environment gem": "error: id must be given, it is missing; --set id=VALUE",
        "loss ppo_clip --set clip_hi=0.3": "did you mean --set clip_high=0.3?",
        "reward math_answer --set percent=signn": "percent must be one of hundredth, sign, got",
    }.items():
        assert main(["check", *words.split()]) == 2
        assert told in capsys.readouterr().err
