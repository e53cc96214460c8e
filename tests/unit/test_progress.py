"""The bar of a round: the first requests come before it, and one client serves all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from plan_factories import make_step_plan

from tasks import progress
from tasks.engines.simulation.virtual_time import run_virtual

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
    """Keeps the metadata that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def set_metadata(self, key: list[str], value: tuple[int, int]) -> None:
        assert key == ["rollflow", "run", "progress"]
        self.told.append(value)


async def inline(work: Callable[..., None], *arguments: object) -> None:
    work(*arguments)


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
            assert scheduler.told == [(0, 2)]
            assert Api.num_made == 0
            counted.num_finished = 1
            await asyncio.sleep(0.2)
            assert bar == [50.0]
            counted.num_finished = 3  # it launched one more than it planned
            await asyncio.sleep(2.0)

    run_virtual(a_round())
    assert bar == [50.0, 100.0]
    assert scheduler.told == [(0, 2), (1, 2), (3, 2)]
    assert Api.num_made == 1
