"""The verify worker and the user's own reward: limits hold, deaths are survived, failures are told
apart."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from record_factories import make_generated

from artifacts.records import Outcome, Prompt, Score
from tasks.isolation.interrupt import Interrupted
from tasks.rewards.custom import CustomConfig, CustomReward
from tasks.rewards.verify_worker import VerifyWorker, WorkerStartError, without_value

REWARD_FUNCTIONS = """
import os, signal, sys, time
calls = 0

def graded(prompt, response, gold):
    global calls
    calls += 1
    print("printing does not disturb the frames")
    return {"right": 1.0, "half": 0.5, "wrong": 0.0, "negative": -1}[response]

def echo(prompt, response, gold):
    same = response == "\\udc80 " + "x" * 200_000
    return float(same and gold == "g" and prompt == "q")
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
def huge(prompt, response, gold): return 10 ** 400
def beyond(prompt, response, gold): return -1e200
def whole(prompt, response, gold): return 10 ** 300
def truth(prompt, response, gold): return response == "right"
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
def naps(prompt, response, gold):
    time.sleep(0.6)
    return 1.0
def stops(prompt, response, gold):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 1.0
def stops_once(prompt, response, gold):
    if not os.path.exists(gold):
        open(gold, "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)
    return 1.0
def is_killed(prompt, response, gold): os.kill(os.getpid(), signal.SIGKILL)
def is_killed_once(prompt, response, gold):
    signal_number = signal.SIGKILL if os.path.exists(gold) else signal.SIGSTOP
    open(gold, "w").close()
    os.kill(os.getpid(), signal_number)
def rehearses_twice(prompt, response, gold):
    with open(gold, "a") as calls:
        calls.write(response or ".")
    if response or os.path.getsize(gold) > 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0
def crashes(prompt, response, gold): os.kill(os.getpid(), signal.SIGSEGV)
def hangs_on(prompt, response, gold):
    while response == gold: pass
    return 1.0
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


def score(
    reward: CustomReward, text: str = "right", finish_reason: str = "stop", gold: str = "g"
) -> Score:
    prompt = Prompt(prompt_id="0/1", domain="own", token_ids=(1,), gold=gold, text="q")
    generated = make_generated(finish_reason=finish_reason, text=text)
    return reward.score(prompt, generated)


def test_custom_reward_keeps_its_number(custom: Callable[..., CustomReward]) -> None:
    reward = custom("graded")
    assert [(score(reward, text).reward, score(reward, text).outcome) for text in ("right", "half",
        "wrong", "negative")] == [
        (1.0, Outcome.OK), (0.5, Outcome.OK), (0.0, Outcome.WRONG), (-1.0, Outcome.WRONG),
    ]  # fmt: skip
    assert score(reward, "wrong", "length").outcome is Outcome.TRUNCATED


def test_custom_reward_sees_long_text_and_surrogates_unchanged(
    custom: Callable[..., CustomReward],
) -> None:
    assert score(custom("echo"), "\udc80 " + "x" * 200_000).reward == 1.0


def test_numpy_numbers_are_numbers(custom: Callable[..., CustomReward]) -> None:
    assert score(custom("numpy_number")).reward == 0.25
    truth = custom("truth")
    assert [score(truth, text).reward for text in ("right", "wrong")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "KeyError"),
        ("exits", "SystemExit: 3"),
        ("dies", "ended with exit status 3"),
        ("is_killed", "was killed, twice"),
        ("nan", "a finite number"),
        ("text", "a finite number"),
        ("nothing", "a finite number"),
        ("beyond", "from -1,000,000 to 1,000,000, got -1e+200; scale it"),
        ("whole", "from -1,000,000 to 1,000,000, got 1000"),
        ("pair", "tuple, not a number"),
        ("huge", "int, not a number that a float can hold"),
    ],
)
def test_custom_reward_that_fails_is_infra_with_one_sentence(
    custom: Callable[..., CustomReward], name: str, says: str
) -> None:
    verdict = score(custom(name), "any\udc80")
    assert (verdict.reward, verdict.outcome) == (None, Outcome.INFRA)
    assert says in verdict.detail
    assert verdict.detail.isascii()
    assert verdict.detail.isprintable()


def test_custom_reward_that_stalls_has_no_verdict(custom: Callable[..., CustomReward]) -> None:
    verdict = score(custom("hangs", timeout_s=0.5))
    assert (verdict.reward, verdict.outcome) == (None, Outcome.INFRA)
    assert "raise deadlines.reward_s" in verdict.detail


def test_custom_reward_that_stalls_once_is_asked_once_more(
    custom: Callable[..., CustomReward],
    tmp_path: Path,
) -> None:
    assert score(custom("slow_once", timeout_s=2.0), gold=str(tmp_path / "entered")).reward == 1.0


def test_memory_bomb_has_no_verdict_and_costs_the_parent_nothing(
    custom: Callable[..., CustomReward],
) -> None:
    verdict = score(custom("bomb", timeout_s=60.0))
    assert (verdict.reward, verdict.outcome) == (None, Outcome.INFRA)
    assert "raise its memory_bytes" in verdict.detail


@pytest.mark.parametrize(
    "path",
    [
        "no_such_package.module:reward",
        "{file}:missing",
        "{file}:constant",
        "{file}",
        "nowhere/rewards.py:f",
        "math:",
        ":f",
    ],
)
def test_custom_path_that_cannot_be_called_is_refused_when_the_run_is_built(
    functions: Path, path: str
) -> None:
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


def test_worker_killed_mid_call_is_replaced_and_the_call_repeated(
    functions: Path, tmp_path: Path
) -> None:
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


def test_a_limit_in_processor_time_does_not_count_what_others_take(functions: Path) -> None:
    worker = VerifyWorker(f"{functions}:naps", timeout_s=0.2)
    assert worker.call("", "", "").value == 1.0
    worker.close()


def test_a_stopped_worker_is_replaced_and_the_call_repeated(
    functions: Path, tmp_path: Path
) -> None:
    worker = VerifyWorker(f"{functions}:stops_once", timeout_s=20.0)
    assert worker.call("", "", str(tmp_path / "entered")).value == 1.0
    assert worker.num_starts == 2
    worker.close()


@pytest.mark.parametrize(
    ("name", "kind", "outcome", "reward"),
    [
        ("hangs", "timeout", Outcome.TIMEOUT, 0.0),  # it computed as long as it may
        ("bomb", "memory", Outcome.WRONG, 0.0),
        ("crashes", "died", Outcome.WRONG, 0.0),
        ("stops", "lost", Outcome.INFRA, None),
        ("is_killed", "killed", Outcome.WRONG, 0.0),  # as one that takes the machine's memory is
        ("is_killed_once", "lost", Outcome.INFRA, None),
    ],
)
def test_only_what_a_text_does_to_a_scorer_is_the_texts_fault(
    functions: Path,
    tmp_path: Path,
    name: str,
    kind: str,
    outcome: Outcome,
    reward: float | None,
) -> None:
    limit_s = 20.0 if name == "bomb" else 0.5
    worker = VerifyWorker(f"{functions}:{name}", timeout_s=limit_s, memory_bytes=1 << 30)
    reply = worker.call("", "", str(tmp_path / "entered"))
    assert reply.kind == kind
    assert (without_value(reply).outcome, without_value(reply).reward) == (outcome, reward)
    assert (worker.pid is None) == (kind != "killed")
    worker.close()


def test_whoever_is_killed_without_a_text_too_is_not_killed_by_it(
    functions: Path,
    tmp_path: Path,
) -> None:
    rehearsal = ("", "", str(tmp_path / "calls"))
    scorer = f"{functions}:rehearses_twice"
    worker = VerifyWorker(scorer, timeout_s=20.0, rehearsals=[rehearsal])
    with pytest.raises(WorkerStartError, match="its first call ended with killed"):
        worker.call("", "text", rehearsal[-1])
    assert worker.pid is None


def test_a_call_that_nobody_needs_ends_with_its_process(functions: Path) -> None:
    worker = VerifyWorker(f"{functions}:hangs_on", timeout_s=600.0)
    worker.warm()
    pid = worker.pid
    assert pid is not None
    worker.interrupt.set()
    with pytest.raises(Interrupted):
        worker.call("", "same", "same")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    worker.interrupt.clear()
    assert worker.call("", "one", "another").value == 1.0
    worker.close()


def test_a_call_that_is_about_to_end_is_not_worth_its_process(functions: Path) -> None:
    worker = VerifyWorker(f"{functions}:call_count", timeout_s=600.0)
    worker.warm()
    worker.interrupt.set()
    assert [worker.call("", "", "").value for _ in range(2)] == [1.0, 2.0]
    assert worker.num_starts == 1
    worker.close()


def test_worker_gets_no_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    worker = VerifyWorker("os:getenv", timeout_s=20.0)
    assert worker.call("SECRET_TOKEN").value is None
    assert worker.call("PYTHONHASHSEED").value == "0"
    worker.close()


def test_scorer_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(WorkerStartError, match="has nothing named no_such_function"):
        VerifyWorker("os:no_such_function", timeout_s=1.0).call()


def test_a_file_named_like_a_module_shadows_nothing_in_the_worker(tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    path.write_text("def f(*_):\n    import random\n    return random.Random(1).randint(3, 3)\n")
    worker = VerifyWorker(f"{path}:f", timeout_s=20.0)
    assert worker.call("", "", "").value == 3
    worker.close()
