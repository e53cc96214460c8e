"""A process that runs out of GPU memory ends its run, with what it held and what to set."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learner_factories import make_model, random_groups

from artifacts.records import pack
from flows.config.sentence import sentence
from flows.recovery import RECOVERABLE
from tasks.cluster import cards
from tasks.cluster.actors import Remote
from tasks.cluster.cards import DeviceMemoryExhausted, is_out_of_memory
from tasks.engines.vllm.stepping import SteppingThread
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.remote import LearnerActor
from tasks.learner.trainer import LearnerRank

ASKED = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"


def no_memory(*_: object) -> None:
    raise torch.OutOfMemoryError(ASKED)


def test_a_learner_says_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model(tmp_path / "model")
    actor = LearnerActor(LearnerConfig(), path, 0, 1, (), "cpu")
    monkeypatch.setattr(LearnerRank, "accumulate", no_memory)
    with pytest.raises(DeviceMemoryExhausted) as caught:
        actor.accumulate(1, pack(random_groups(0)))
    told = str(pickle.loads(pickle.dumps(caught.value)))
    assert told.startswith(f"learner-0 ran out of GPU memory in training of step 1 ({ASKED})")
    assert "predicted for it: weights " in told
    assert "activations " in told
    assert told.endswith(
        "resume the run with a smaller engine.gpu_memory_utilization, or begin one with"
        " learner.recompute_layers=true, or with learner.max_tokens_per_microbatch below 2048"
    )


def test_a_learner_that_cannot_load_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(tmp_path / "model")
    monkeypatch.setattr(LearnerRank, "_load", no_memory)
    with pytest.raises(DeviceMemoryExhausted, match=r"learner-0 ran out .* in loading the model"):
        LearnerActor(LearnerConfig(), path, 0, 1, (), "cpu")


def test_other_errors_of_a_learner_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("something else")

    actor = LearnerActor(LearnerConfig(), make_model(tmp_path / "model"), 0, 1, (), "cpu")
    monkeypatch.setattr(LearnerRank, "update", fails)
    with pytest.raises(RuntimeError, match="something else"):
        actor.update(1)


class FullCore:
    """An engine core whose GPU is full."""

    busy = False

    def step(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


async def test_an_engine_names_its_share() -> None:
    thread = SteppingThread("engine-0", FullCore, "lower engine.gpu_memory_utilization")
    thread.start(10)
    expected = r"engine-0 ran out of GPU memory in its engine \(CUDA out .*; lower engine\.gpu_mem"
    for _ in range(2):  # the call, and every later one
        with pytest.raises(DeviceMemoryExhausted, match=expected):
            await thread.call("load", no_memory, 10)
    thread.close(10)


def test_an_engine_that_cannot_be_built_says_so() -> None:
    thread: SteppingThread[FullCore] = SteppingThread("engine-0", no_memory_core, "lower something")
    with pytest.raises(DeviceMemoryExhausted, match="engine-0 ran out of GPU memory"):
        thread.start(10)


def no_memory_core() -> FullCore:
    raise torch.OutOfMemoryError(ASKED)


async def test_the_sentence_reaches_the_flow_as_it_is() -> None:
    async def accumulate() -> None:
        raise cards.exhausted("learner-0", "x", torch.OutOfMemoryError(ASKED), {}, "a cure")

    loop = asyncio.get_running_loop()
    remote = Remote("learner-0", SimpleNamespace(accumulate=accumulate), loop)
    with pytest.raises(DeviceMemoryExhausted, match="learner-0 ran out of GPU memory") as caught:
        await remote.call("accumulate", deadline_s=10)
    assert sentence(caught.value).endswith("; a cure")


def test_nobody_is_made_anew_to_run_out_again() -> None:
    assert not issubclass(DeviceMemoryExhausted, RECOVERABLE)


def test_the_text_of_an_engine_s_own_process_is_understood() -> None:
    assert is_out_of_memory(RuntimeError(f"Worker failed with error '{ASKED}'"))
    assert not is_out_of_memory(ValueError("no available memory"))


def test_torch_s_counters_stand_beside_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {  # Any: of many types
        "is_initialized": True,
        "mem_get_info": (10**9, 80 * 10**9),
        "memory_allocated": 60 * 10**9,
        "memory_reserved": 70 * 10**9,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    error = cards.exhausted("learner-1", "x", torch.OutOfMemoryError(ASKED), {}, "cure")
    assert "torch has 60 GB in tensors of 70 GB that it keeps, and 1 of the GPU's 80 GB" in str(
        error
    )
