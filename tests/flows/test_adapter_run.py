"""Whole runs that train an adapter, on the real engine: what is published and checked, and what is
left behind computes what the run's engines did, in plain vLLM and PEFT. Runs that are killed:
`test_recovery`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from artifacts.adapter_files import A, B
from artifacts.weights import digest, read_weights
from flows.commands import ask, push
from tests.flows.asynchronous_records import check, commits, rows
from tests.flows.conftest import ADAPTER, DRAWN, ENDS_WITHIN_S, ROOT, Launcher, moment, wait_for

pytestmark = [pytest.mark.flow, pytest.mark.engine]

TOLERANCE_NATS = 0.1


def check_published(run: Path) -> None:
    """Every step's version is new, and engines computed with it as the learner does."""
    done = commits(run)
    assert len({commit["weights"]["digest"] for commit in done}) == len(done)
    for commit in done:
        assert 0 < commit["metrics"]["publish/probe_difference_nats"] < TOLERANCE_NATS


def sampled(run: Path) -> tuple[list[list[int]], list[Tensor]]:
    """Tokens and log-probabilities of the answers of the last evaluation; the former with their
    questions."""
    asked = rows(run / "evaluation", 2, "prompt_token_ids, token_ids, logprobs")
    return [[*given, *new] for given, new, _ in asked], [torch.tensor(each) for *_, each in asked]


def by_transformers(model: Any, tokens: list[list[int]]) -> list[Tensor]:  # Any: carries no types
    """Log-probabilities of all tokens but the first."""
    found = []
    for sequence in tokens:
        ids = torch.tensor([sequence])
        with torch.inference_mode():
            logits = model(ids).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0])
    return found


def by_vllm(model: str, adapter: Path, tokens: list[list[int]], file: Path) -> list[Tensor]:
    """The same of plain vLLM with the adapter."""
    file.write_text(json.dumps(tokens))
    command = [sys.executable, "-m", "tests.flows.plain_vllm", model, str(adapter), str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return [torch.tensor(each) for each in json.loads(file.read_text())]


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference of the last tokens that both have."""
    pairs = [(a, b, min(len(a), len(b))) for a, b in zip(one, other, strict=True)]
    return max(float((a[-num:] - b[-num:]).abs().max()) for a, b, num in pairs)


def check_exported(run: Path, scratch: Path) -> None:
    """Folder `adapter/` in plain vLLM and in PEFT, `model/` in transformers, and what the engine
    had in the last evaluation."""
    tokens, recorded = sampled(run)
    plain = AutoModelForCausalLM.from_pretrained
    base = json.loads((run / "adapter" / "adapter_config.json").read_text())
    base_path = base["base_model_name_or_path"]
    without = by_transformers(plain(base_path, dtype=torch.float32), tokens)
    merged = by_transformers(plain(run / "model", dtype=torch.float32), tokens)
    served = by_vllm(base_path, run / "adapter", tokens, scratch / "tokens.json")
    effect = distance(without, served)
    assert effect > 3 * TOLERANCE_NATS, "the adapter is not small"
    assert distance(served, recorded) < 0.02, "both in fp32"
    assert distance(served, merged) < TOLERANCE_NATS, "rounded to bf16"
    peft = pytest.importorskip("peft")
    beside = peft.PeftModel.from_pretrained(plain(base_path, dtype=torch.float32), run / "adapter")
    assert distance(served, by_transformers(beside, tokens)) < 1e-3


@pytest.mark.parametrize("publish", ["adapter", "merged"])
def test_a_run_trains_an_adapter(
    launcher: Launcher, tmp_path: Path, publish: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / publish
    settings = (DRAWN, ADAPTER, f"learner.lora.publish={publish}", f'run_name="{run.name}"')
    seen = ("engine.dtype=float32", "learner.optimizer.learning_rate=2e-2")  # in what is exported
    process = launcher.start(tmp_path, *settings, *(seen if publish == "adapter" else ()))
    last = moment(run, "00002.safetensors")
    wait_for(last, process)
    published = dict(read_weights(last))
    out, err = process.communicate(timeout=ENDS_WITHIN_S)
    assert process.returncode == 0, err
    assert "Held-out reward" in out
    check_published(run)
    assert digest(published.items()) == commits(run)[-1]["weights"]["digest"]
    are_of_adapter = [name.endswith((A, B)) for name in published]
    assert all(are_of_adapter) if publish == "adapter" else not any(are_of_adapter)
    assert "learner.lora.rank" in (run / "report" / "index.html").read_text()
    if publish == "merged":
        return
    assert ask.main([str(run), "--task", "0", "--before"]) == 0
    told = capsys.readouterr().out
    assert told.count("expected") == 2, "of the base, and of the merged model"
    assert push.main([str(run), "me/sums", "--adapter", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "adapter_model.safetensors" in told
    assert "an adapter of rank 4 on all" in told
    check_exported(run, tmp_path)


@pytest.mark.parametrize("at_update", ["keep", "pause"])
def test_running_responses_go_on_with_the_next_adapter(
    launcher: Launcher, tmp_path: Path, at_update: str
) -> None:
    """Over the cache of older ones; or stopped while the same devices train, in turn."""
    run = tmp_path / at_update
    settings = (ADAPTER, "num_steps=3", f"scheduling.at_update={at_update}")
    roles = ('cluster.roles="rollout: 0-1, learner: 0-1"',) if at_update == "pause" else ()
    words = (*settings, *roles, f'run_name="{run.name}"')
    finished = launcher.run(tmp_path, *words, preset="tiny-async")
    assert finished.code == 0, finished.err
    check_published(run)
    check(run, async_ratio=1.0, num_steps=3)


def test_episodes_train_an_adapter(launcher: Launcher, tmp_path: Path) -> None:
    settings = (ADAPTER, 'run_name="games"', "sampling.max_response_tokens=32")
    finished = launcher.run(tmp_path, *settings, preset="tiny-agent")
    assert finished.code == 0, finished.err
    check_published(tmp_path / "games")
