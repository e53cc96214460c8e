"""The bar of a round: the first requests come before it, and one client serves all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from plan_factories import make_step_plan

from tasks import progress
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.round_progress import RoundProgress

SHOWN = uuid4()


class Api:
    """As much of Prefect's client as an artifact takes; keeps the percentages that it is told."""

    num_made = 0

    def __init__(self, told: list[Any]) -> None:
        Api.num_made += 1
        self.id = SHOWN
        self._told = told

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def create_artifact(self, artifact: Any) -> Api:  # Any: Prefect's request
        self._told.append(artifact.data)
        return self

    async def update_artifact(self, artifact_id: UUID, artifact: Any) -> None:  # Any: as above
        assert artifact_id == SHOWN
        self._told.append(artifact.data)


class Scheduler:
    """Keeps when it is told the filling of the round; a client of itself."""

    def __init__(self) -> None:
        self.scheduler = self
        self.told_s: list[float] = []
        self.told: dict[str, Mapping[str, object] | None] = {}  # by what progresses

    def sync(self, work: Callable[..., None], callback_timeout: float, **named: Any) -> None:
        assert callback_timeout < progress.ENDS_WITHIN_S
        work(**named)

    def set_metadata(self, keys: list[str], value: Mapping[str, object] | None) -> None:
        assert keys[:3] == ["rollflow", "run", "progress"]
        assert value is None or RoundProgress(**value).step == 1  # type: ignore[arg-type]
        self.told[keys[3]] = value
        self.told_s.append(asyncio.get_running_loop().time())


async def inline(work: Callable[..., None], **named: object) -> None:
    work(**named)


class Endless(Api):
    """One that waits on although its task is cancelled."""

    async def __aenter__(self) -> Api:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)
        await asyncio.sleep(60.0)
        return self


def test_a_bar_that_does_not_end_holds_no_round_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "get_client", Scheduler)
    monkeypatch.setattr(progress, "prefect_client", lambda: Endless([]))
    monkeypatch.setattr(asyncio, "to_thread", inline)

    async def a_round() -> float:
        async with progress.shown_progress(make_step_plan()):
            await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(a_round()) == 1.0 + progress.ENDS_WITHIN_S


@pytest.mark.filterwarnings("ignore:Artifact creation outside")  # there is no task run here
def test_the_bar_waits_for_the_first_requests_and_takes_one_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, bar = Scheduler(), list[Any]()
    monkeypatch.setattr(Api, "num_made", 0)
    monkeypatch.setattr(progress, "get_client", lambda: scheduler)
    monkeypatch.setattr(progress, "prefect_client", lambda: Api(bar))
    monkeypatch.setattr(asyncio, "to_thread", inline)

    async def a_round() -> None:
        async with progress.shown_progress(make_step_plan()) as counted:
            await asyncio.sleep(0.4)
            assert len(scheduler.told_s) == 1
            assert Api.num_made == 0
            counted.num_finished = 1
            await asyncio.sleep(0.2)
            assert bar == [50.0]
            counted.num_finished = 3  # it launched one more than it planned
            await asyncio.sleep(2.0)

    run_virtual(a_round())
    assert bar == [50.0, 100.0]
    begin_s = scheduler.told_s[0]
    after_s = [round(told_s - begin_s, 3) for told_s in scheduler.told_s]
    assert after_s == [0.0, 0.5, 2.5, 2.6], "at once, with the bar, every two seconds, at the end"
    assert Api.num_made == 1


def test_an_evaluation_beside_a_round_is_told_apart_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler()
    monkeypatch.setattr(progress, "get_client", lambda: scheduler)
    monkeypatch.setattr(asyncio, "to_thread", inline)

    async def both() -> None:
        async with progress.shown_progress(make_step_plan()):
            async with progress.shown_progress(make_step_plan(kind="evaluate")):
                await asyncio.sleep(0.1)
                assert all(scheduler.told[name] for name in ("rollout", "evaluation"))
            assert scheduler.told["evaluation"] is None
            assert scheduler.told["rollout"] is not None

    run_virtual(both())
