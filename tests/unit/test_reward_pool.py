"""The reward workers of a run: shared out by backlog, kept from round to round, ended with the
run."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_factories import make_generated

from artifacts.datasets.program_tests import AssertionCase, CodeGold, StdioCase, call_case
from artifacts.records import Generated, Outcome, Prompt, Score
from tasks.isolation.interrupt import Interrupted
from tasks.rewards.custom import CustomConfig
from tasks.rewards.maths.math_answer import MathAnswerConfig
from tasks.rewards.pool import RewardPool, close_pools, next_kind, pool_of
from tasks.rewards.programs.adaptive_timeout import AdaptiveTimeoutConfig, Anchor, MeasuredTimes
from tasks.rewards.programs.code_tests import CodeTests, CodeTestsConfig
from tasks.rewards.programs.sandbox.case_runner import CaseRunner
from tasks.rewards.registry import RewardConfig

WAIT_S = 60.0
Found = TypeVar("Found")


def prompt(domain: str) -> Prompt:
    return Prompt(prompt_id="0/1", domain=domain, token_ids=(1,), gold="8", text="q")


def response(text: str, finish_reason: str = "stop") -> Generated:
    return make_generated(finish_reason=finish_reason, text=text)


def make_pool(configs: dict[str, RewardConfig], num_workers: int = 2) -> RewardPool:
    return RewardPool(configs, num_workers, MeasuredTimes())


def test_verdicts_come_back_for_every_response() -> None:
    pool = make_pool({"*": MathAnswerConfig()})
    verdicts = [pool.submit(prompt("add"), response(f"Answer: {number}")) for number in range(20)]
    assert [verdict.result(WAIT_S).reward for verdict in verdicts] == [
        float(number == 8) for number in range(20)
    ]
    assert (
        pool.submit(prompt("add"), response("", "aborted")).result(WAIT_S).outcome
        is Outcome.ABORTED
    )
    pool.close()


def test_a_slow_kind_takes_all_workers_and_keeps_no_other_waiting(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    source = tmp_path / "waits.py"
    source.write_text(
        "import os\ndef waits(prompt, response, gold):\n    while not"
        f" os.path.exists({str(gate)!r}): pass\n    return 1\n"
    )
    pool = make_pool(
        {"slow": CustomConfig(path=f"{source}:waits", timeout_s=WAIT_S), "*": MathAnswerConfig()}
    )
    slow = [pool.submit(prompt("slow"), response("")) for _ in range(3)]
    assert pool.submit(prompt("add"), response("Answer: 8")).result(WAIT_S).reward == 1.0
    assert [verdict.running() for verdict in slow] == [True, True, False]
    gate.touch()
    assert [verdict.result(WAIT_S).reward for verdict in slow] == [1.0] * 3
    pool.close()


def test_a_verdict_that_nobody_needs_is_not_reached(tmp_path: Path) -> None:
    source, seen = tmp_path / "own.py", tmp_path / "seen"
    source.write_text(
        f"def notes(prompt, response, gold):\n    open({str(seen)!r}, 'a').write(response)\n   "
        " return 1\n"
    )
    pool = make_pool({"*": CustomConfig(path=f"{source}:notes", timeout_s=WAIT_S)}, num_workers=1)
    blocked: Future[Score] = pool.submit(prompt("x"), response("a"))
    dropped, kept = pool.submit(prompt("x"), response("b")), pool.submit(prompt("x"), response("c"))
    dropped.cancel()
    assert (blocked.result(WAIT_S).reward, kept.result(WAIT_S).reward) == (1.0, 1.0)
    pool.close()
    assert seen.read_text() == "ac" or not dropped.cancelled()


def test_a_reward_that_cannot_be_built_fails_its_verdict_and_not_the_worker(tmp_path: Path) -> None:
    pool = make_pool(
        {"bad": CustomConfig(path=f"{tmp_path}/none.py:f"), "*": MathAnswerConfig()}, num_workers=1
    )
    failed = pool.submit(prompt("bad"), response(""))
    with pytest.raises(ValueError, match="can be imported"):
        failed.result(WAIT_S)
    assert pool.submit(prompt("add"), response("Answer: 8")).result(WAIT_S).reward == 1.0
    with pytest.raises(ValueError, match="every domain needs a reward"):
        make_pool({"add": MathAnswerConfig()}).submit(prompt("story"), response(""))
    pool.close()


def killed_early(pool: RewardPool, text: str) -> tuple[Prompt, Generated, Score]:
    """A program and its verdict, after the anchor of its one case was set by a lucky fast
    answer."""
    gold = CodeGold(function="work", cases=(call_case((), 1),)).model_dump_json()
    asked, program = (
        Prompt(prompt_id="0/1", domain="code", token_ids=(1,), gold=gold, text="q"),
        response(text),
    )
    (key,) = (
        case.key
        for case in pool.submit(asked, response("def work(): return 2")).result(WAIT_S).cases
    )
    pool.times.learn({key: Anchor(slowest_s=0.001, num_correct=1)})
    return asked, program, pool.submit(asked, program).result(WAIT_S)


def test_a_program_that_was_killed_early_gets_a_second_look_that_mends_the_limit() -> None:
    pool = make_pool(
        {"*": CodeTestsConfig(timeout=AdaptiveTimeoutConfig(floor_s=0.05, ceiling_s=30.0))}
    )
    killed = killed_early(
        pool, "```python\nimport time\ndef work():\n    time.sleep(0.5)\n    return 1\n```"
    )
    assert (killed[2].outcome, killed[2].reward) == (Outcome.TIMEOUT, 0.0)
    (look,) = pool.look_again([killed])
    assert look.result(WAIT_S).reward == 1.0
    ((key, anchor),) = pool.relearned().items()
    assert anchor.num_correct == 1
    assert anchor.slowest_s >= 0.5
    assert pool.times.anchors[key] == anchor + Anchor(slowest_s=0.001, num_correct=1)
    assert pool.relearned() == {}
    pool.close()


def test_no_verdict_waits_for_a_second_look_and_the_end_of_the_run_does_not_either() -> None:
    config = CodeTestsConfig(timeout=AdaptiveTimeoutConfig(floor_s=2.0, ceiling_s=600.0))
    with closing(make_pool({"*": config}, num_workers=1)) as pool:
        killed = killed_early(pool, "while True: pass")
        (look,) = pool.look_again([killed, killed])
        assert pool.look_again([killed]) == []  # as many as there are workers, no more
        assert pool.submit(killed[0], response("def work(): return 1")).result(WAIT_S).reward == 1.0
        assert not look.done()
    assert look.cancelled() or isinstance(look.exception(), Interrupted)
    assert pool.relearned() == {}


LONG = AdaptiveTimeoutConfig(floor_s=600.0, ceiling_s=600.0)  # than anybody here waits
PATIENT = CodeTestsConfig(timeout=LONG)
CALLED = CodeGold(function="add", cases=(call_case((2, 3), 5),)).model_dump_json()
ADD = Prompt(prompt_id="0/1", domain="code", token_ids=(1,), text="q", gold=CALLED)
STATEMENT = AssertionCase(statement="assert add(2, 3) == 5")
ASSERTED = replace(ADD, gold=CodeGold(function="add", cases=(STATEMENT,) * 2).model_dump_json())
PRINTING = CodeGold(cases=(StdioCase(stdin="", stdout="5"),) * 2)
PRINTED = replace(ADD, gold=PRINTING.model_dump_json())
RIGHT = response("def add(a, b): return a + b")


def runner_of(pool: RewardPool) -> CaseRunner:
    """The runner of a pool of one kind and one worker, once it has begun."""
    (kind,) = pool._kinds.values()
    (verdict,) = until(lambda: tuple(kind.running))
    reward = until(lambda: verdict._reward)
    assert isinstance(reward, CodeTests)
    return reward._runner


def until(look: Callable[[], Found | None]) -> Found:
    """What `look` finds, as soon as it finds anything."""
    ends_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < ends_s
        os.sched_yield()
    return found


def running_program(runner: CaseRunner) -> psutil.Process:
    """The process that executes a program."""
    until(lambda: (candidate := runner._programs._candidate) and candidate.has_program)
    return psutil.Process(runner._programs.pid).children(recursive=True)[-1]


@pytest.mark.parametrize(
    ("asked", "program"),
    [
        (ADD, "while True: pass"),
        (ADD, "def add(a, b):\n    while True: pass"),
        (ASSERTED, "def add(a, b):\n    while True: pass"),
        (PRINTED, "while True: pass"),
    ],
)
def test_a_cancelled_program_is_gone_before_the_next_verdict(asked: Prompt, program: str) -> None:
    with closing(make_pool({"*": PATIENT}, num_workers=1)) as pool:
        endless = pool.submit(asked, response(program))
        runner = runner_of(pool)
        process = running_program(runner)
        endless.cancel()
        assert pool.submit(ADD, RIGHT).result(WAIT_S).reward == 1.0
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        assert runner._programs.num_starts == 1  # the sandbox goes on


def test_a_coroutine_that_gives_up_on_a_verdict_ends_the_program() -> None:
    async def round_that_closes(pool: RewardPool) -> None:
        verdict = asyncio.wrap_future(pool.submit(ADD, response("while True: pass")))
        waiting = asyncio.create_task(asyncio.wait_for(verdict, WAIT_S))
        await asyncio.to_thread(lambda: running_program(runner_of(pool)))
        waiting.cancel()
        await asyncio.wait([waiting])

    with closing(make_pool({"*": PATIENT}, num_workers=1)) as pool:
        asyncio.run(round_that_closes(pool))
        assert pool.submit(ADD, RIGHT).result(WAIT_S).reward == 1.0


def test_the_end_of_a_pool_ends_what_runs() -> None:
    pool = make_pool({"*": PATIENT}, num_workers=2)
    endless = [pool.submit(ADD, response("while True: pass")) for _ in range(3)]
    until(lambda: endless[1].running())
    pool.close()
    assert [verdict.cancelled() or verdict.done() for verdict in endless] == [True] * 3


def test_cancelling_one_verdict_changes_no_other() -> None:
    chance = random.Random(7)
    with closing(make_pool({"*": PATIENT}, num_workers=2)) as pool:
        kept = []
        for _ in range(60):
            unneeded = pool.submit(ADD, response("while True: pass"))
            kept.append(pool.submit(ADD, RIGHT))
            for _ in range(chance.randrange(3000)):  # at one time or another of its life
                os.sched_yield()
            unneeded.cancel()
        assert [verdict.result(WAIT_S).reward for verdict in kept] == [1.0] * len(kept)


def test_a_users_reward_that_nobody_needs_is_ended(tmp_path: Path) -> None:
    source, entered = tmp_path / "own.py", tmp_path / "entered"
    enters = f"open({str(entered)!r}, 'w').close()"
    waits = "while response == 'wait': pass"
    source.write_text(
        f"def waits(prompt, response, gold):\n    {enters}\n    {waits}\n    return 1\n"
    )
    config = CustomConfig(path=f"{source}:waits", timeout_s=600.0)
    with closing(make_pool({"*": config}, num_workers=1)) as pool:
        endless = pool.submit(prompt("x"), response("wait"))
        until(entered.exists)
        endless.cancel()
        assert pool.submit(prompt("x"), response("go")).result(WAIT_S).reward == 1.0


def test_a_run_keeps_its_pool_and_the_next_run_ends_it() -> None:
    first = pool_of("run-1", lambda: make_pool({"*": MathAnswerConfig()}))
    assert pool_of("run-1", lambda: make_pool({})) is first
    second = pool_of("run-2", lambda: make_pool({"*": MathAnswerConfig()}))
    assert second is not first
    with pytest.raises(RuntimeError, match="after shutdown"):
        first.submit(prompt("add"), response("Answer: 8"))
    close_pools()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reward")]


counts = st.integers(0, 9)


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(counts, counts), min_size=1),
    st.integers(1, 8),
)
def test_a_free_worker_turns_to_the_kind_with_the_fewest_workers(
    kinds: dict[str, tuple[int, int]], num_workers: int
) -> None:
    backlog = {kind: waiting for kind, (waiting, _) in kinds.items()}
    running = {kind: at_work for kind, (_, at_work) in kinds.items()}
    is_full = sum(running.values()) >= num_workers
    chosen = next_kind(backlog, running, num_workers)
    eligible = [kind for kind in kinds if backlog[kind] and (running[kind] == 0 or not is_full)]
    assert (chosen is None) == (not eligible)
    if chosen is not None:
        assert running[chosen] == min(running[kind] for kind in eligible)
