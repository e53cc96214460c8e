"""The flow of a step: what follows what, and whose failure is told."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from flows import rl_step as step_flow
from flows.steps import StepOrdering
from flows.task_runner import result_of
from tasks.engines.base import EngineLost
from tasks.run.sample_buffer import RoundAborted


def finished(result: object) -> Future[object]:
    future: Future[object] = Future()
    future.set_result(result)
    return future


async def no_abort(reason: str) -> None:
    raise AssertionError(f"nothing failed, but {reason}")


def test_update_and_publication_follow_the_gradients_and_wait_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def update(plan: str, gradients: str) -> str:
        return f"update of {gradients} in {plan}"

    async def publish(plan: str, policy: str) -> str:
        return f"publication after {policy}"

    monkeypatch.setattr(step_flow, "update_policy", update)
    monkeypatch.setattr(step_flow, "publish_weights", publish)
    reward: Future[object] = Future()

    async def step() -> list[object]:
        trained = asyncio.create_task(step_flow.update_and_publish("plan", finished("sums")))  # type: ignore[arg-type]
        await trained
        reward.set_result("verdicts")
        return await step_flow.all_results(no_abort, result_of(reward), trained)

    done = asyncio.run(asyncio.wait_for(step(), timeout=30))
    update_told = "update of sums in plan"
    assert done == ["verdicts", ("sums", update_told, f"publication after {update_told}")]


def test_a_step_tells_the_failure_that_made_the_others_fail() -> None:
    aborted: Future[object] = Future()
    aborted.set_exception(RoundAborted("the rollout failed"))
    cause: Future[object] = Future()
    cause.set_exception(ValueError("an engine refused its prompt"))

    async def step() -> None:
        await step_flow.all_results(abort, *map(result_of, (aborted, cause, finished("fine"))))

    reasons: list[str] = []

    async def abort(reason: str) -> None:
        reasons.append(reason)

    with pytest.raises(ValueError, match="refused its prompt"):
        asyncio.run(step())
    assert reasons == ["ValueError: an engine refused its prompt"]


async def test_a_coordinator_that_fails_before_it_begins_lets_none_wait_for_it() -> None:
    is_aborted = asyncio.Event()

    async def abort(_: str) -> None:
        is_aborted.set()

    async def refused() -> None:
        raise KeyError("settings")

    async def waits_for_responses() -> None:
        await is_aborted.wait()
        raise RoundAborted("the rollout failed")

    work = step_flow.all_results(abort, waits_for_responses(), refused())
    with pytest.raises(KeyError, match="settings"):
        await asyncio.wait_for(work, timeout=30)


async def test_who_waits_for_rounds_takes_no_thread_from_others() -> None:
    over = threading.Event()
    rounds = [asyncio.create_task(result_of(SimpleNamespace(result=over.wait))) for _ in range(40)]
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(asyncio.to_thread(int), 10) == 0
    finally:
        over.set()
    assert all(await asyncio.gather(*rounds))


def test_training_that_was_aborted_makes_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    async def update(plan: str, gradients: str) -> str:
        raise AssertionError("there are no gradients")

    monkeypatch.setattr(step_flow, "update_policy", update)
    aborted: Future[object] = Future()
    aborted.set_exception(RoundAborted("the rollout failed"))
    with pytest.raises(RoundAborted):
        asyncio.run(step_flow.update_and_publish("plan", aborted))  # type: ignore[arg-type]


async def test_the_update_waits_for_the_evaluation_of_the_weights_that_it_replaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ordering, told = StepOrdering(), list[str]()
    ordering.evaluation = asyncio.get_running_loop().create_future()

    async def update(plan: str, gradients: str) -> str:
        told.append("update")
        return "updated"

    async def publish(plan: str, policy: str) -> str:
        return "published"

    monkeypatch.setattr(step_flow, "update_policy", update)
    monkeypatch.setattr(step_flow, "publish_weights", publish)
    training = asyncio.create_task(step_flow.update_and_publish("plan", finished("sums"), ordering))  # type: ignore[arg-type]
    done, _ = await asyncio.wait({training}, timeout=0.1)
    assert (done, told) == (set(), [])
    ordering.evaluation.set_result(None)
    assert await training == ("sums", "updated", "published")
    assert ordering.held_s > 0


async def test_no_update_follows_an_evaluation_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def update(plan: str, gradients: str) -> str:
        raise AssertionError("the weights are still to be evaluated")

    monkeypatch.setattr(step_flow, "update_policy", update)
    ordering = StepOrdering()
    ordering.evaluation = asyncio.get_running_loop().create_future()
    ordering.evaluation.set_exception(EngineLost("engine-0 is gone"))
    with pytest.raises(RoundAborted, match="evaluation"):
        await step_flow.update_and_publish("plan", finished("sums"), ordering)  # type: ignore[arg-type]
