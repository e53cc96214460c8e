"""The verify worker and the user's own reward: limits hold, deaths are survived, failures are told apart."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from artifacts.records import Generated, Outcome, Prompt, Score
from tasks.rewards.custom import CustomConfig, CustomReward
from tasks.rewards.verify_worker import VerifyWorker, WorkerStartError

REWARD_FUNCTIONS = """
import os, signal, sys, time
calls = 0

def graded(prompt, response, gold):
    global calls
    calls += 1
    print("printing does not disturb the frames")
    return {"right": 1.0, "half": 0.5, "wrong": 0.0, "negative": -1}[response]

def echo(prompt, response, gold): return float(response == "\\udc80 " + "x" * 200_000 and gold == "g" and prompt == "q")
def raises(prompt, response, gold): raise KeyError("the table has no row \\udc80\\n" + response)
def exits(prompt, response, gold): sys.exit(3)
def dies(prompt, response, gold): os._exit(3)
def hangs(prompt, response, gold):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 9 ** 9 ** 9 ** 9
def bomb(prompt, response, gold):
    hoard = []
    while True: hoard.append(bytearray(1 << 24))
def nan(prompt, response, gold): return float("nan")
def text(prompt, response, gold): return "1.0"
def nothing(prompt, response, gold): return None
def pair(prompt, response, gold): return (1.0, 2.0)
def numpy_number(prompt, response, gold):
    import numpy
    return numpy.float32(0.25)
def slow_once(prompt, response, gold):
    if not os.path.exists(gold):
        open(gold, "w").close()
        time.sleep(60)
    return 1.0
def call_count(prompt, response, gold):
    global calls
    calls += 1
    return float(calls)
constant = 3
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARD_FUNCTIONS)
    return path


@pytest.fixture
def custom(functions: Path) -> Iterator[Callable[..., CustomReward]]:
    built: list[CustomReward] = []

    def build(name: str, timeout_s: float = 20.0) -> CustomReward:
        built.append(CustomReward(CustomConfig(path=f"{functions}:{name}", timeout_s=timeout_s)))
        return built[-1]

    yield build
    for reward in built:
        reward.close()


def score(reward: CustomReward, text: str = "right", finish_reason: str = "stop", gold: str = "g") -> Score:
    prompt = Prompt(prompt_id="0/1", domain="own", token_ids=(1,), gold=gold, text="q")
    generated = Generated(
        prompt_id="0/1", index=0, token_ids=(), logprobs=(), versions=(), finish_reason=finish_reason, text=text,  # type: ignore[arg-type]
        engine="engine-0", submitted_s=0.0, first_token_s=0.0, finished_s=0.0,
    )  # fmt: skip
    return reward.score(prompt, generated)


def test_custom_reward_keeps_its_number(custom: Callable[..., CustomReward]) -> None:
    reward = custom("graded")
    assert [(score(reward, text).reward, score(reward, text).outcome) for text in ("right", "half", "wrong", "negative")] == [
        (1.0, Outcome.OK), (0.5, Outcome.OK), (0.0, Outcome.WRONG), (-1.0, Outcome.WRONG),
    ]  # fmt: skip
    assert score(reward, "wrong", "length").outcome is Outcome.TRUNCATED


def test_custom_reward_sees_long_text_and_surrogates_unchanged(custom: Callable[..., CustomReward]) -> None:
    assert score(custom("echo"), "\udc80 " + "x" * 200_000).reward == 1.0


def test_numpy_numbers_are_numbers(custom: Callable[..., CustomReward]) -> None:
    assert score(custom("numpy_number")).reward == 0.25


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "KeyError"),
        ("exits", "SystemExit: 3"),
        ("dies", "exit code 3"),
        ("nan", "a finite number"),
        ("text", "a finite number"),
        ("nothing", "a finite number"),
        ("pair", "tuple, not a number"),
    ],
)
def test_custom_reward_that_fails_is_infra_with_one_sentence(custom: Callable[..., CustomReward], name: str, says: str) -> None:
    verdict = score(custom(name), "any\udc80")
    assert (verdict.reward, verdict.outcome) == (None, Outcome.INFRA)
    assert says in verdict.detail
    assert verdict.detail.isascii()
    assert verdict.detail.isprintable()


def test_custom_reward_that_hangs_is_a_timeout_of_zero(custom: Callable[..., CustomReward]) -> None:
    verdict = score(custom("hangs", timeout_s=0.5))
    assert (verdict.reward, verdict.outcome, verdict.detail) == (0.0, Outcome.TIMEOUT, "verify_timeout")


def test_memory_bomb_costs_the_response_and_not_the_parent(custom: Callable[..., CustomReward]) -> None:
    verdict = score(custom("bomb", timeout_s=60.0))
    assert (verdict.reward, verdict.outcome, verdict.detail) == (0.0, Outcome.WRONG, "verify_memory")


@pytest.mark.parametrize(
    "path",
    ["no_such_package.module:reward", "{file}:missing", "{file}:constant", "{file}", "nowhere/rewards.py:f", "math:", ":f"],
)
def test_custom_path_that_cannot_be_called_is_refused_when_the_run_is_built(functions: Path, path: str) -> None:
    with pytest.raises(ValueError, match="must name a function that can be imported"):
        CustomReward(CustomConfig(path=path.format(file=functions)))


def test_worker_starts_with_the_first_call_and_is_reused(functions: Path) -> None:
    worker = VerifyWorker(f"{functions}:call_count", timeout_s=20.0)
    assert worker.pid is None
    assert [worker.call("", "", "").value for _ in range(3)] == [1.0, 2.0, 3.0]
    assert worker.num_starts == 1
    worker.close()
    assert worker.pid is None


def test_worker_is_replaced_after_its_number_of_calls(functions: Path) -> None:
    worker = VerifyWorker(f"{functions}:call_count", timeout_s=20.0, recycle_calls=2)
    assert [worker.call("", "", "").value for _ in range(5)] == [1.0, 2.0, 1.0, 2.0, 1.0]
    worker.close()


def test_worker_killed_between_calls_is_replaced_unseen(functions: Path) -> None:
    worker = VerifyWorker(f"{functions}:call_count", timeout_s=20.0)
    worker.warm()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.call("", "", "").value == 1.0
    worker.close()


def test_worker_killed_mid_call_is_replaced_and_the_call_repeated(functions: Path, tmp_path: Path) -> None:
    worker = VerifyWorker(f"{functions}:slow_once", timeout_s=30.0)
    worker.warm()
    flag, pid = tmp_path / "entered", worker.pid
    assert pid is not None
    killer = threading.Thread(target=_kill_once_entered, args=(flag, pid))
    killer.start()
    reply = worker.call("", "", str(flag))
    killer.join()
    assert (reply.kind, reply.value) == ("value", 1.0)
    assert worker.num_starts == 2
    worker.close()


def _kill_once_entered(flag: Path, pid: int) -> None:
    deadline_s = time.monotonic() + 20.0
    while not flag.exists() and time.monotonic() < deadline_s:
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)


def test_worker_that_is_killed_leaves_no_process(functions: Path) -> None:
    worker = VerifyWorker(f"{functions}:hangs", timeout_s=0.3)
    worker.warm()
    pid = worker.pid
    assert pid is not None
    assert worker.call("", "", "").kind == "timeout"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_worker_gets_no_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    worker = VerifyWorker("os:getenv", timeout_s=20.0)
    assert worker.call("SECRET_TOKEN").value is None
    assert worker.call("PYTHONHASHSEED").value == "0"
    worker.close()


def test_scorer_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(WorkerStartError, match="has no function no_such_function"):
        VerifyWorker("os:no_such_function", timeout_s=1.0).call()
