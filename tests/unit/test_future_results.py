"""What a Dask future holds: fetched when it is done, and never given up half-way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client

from tasks.cluster.actors import result_of


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


def test_what_is_not_done_in_time_is_a_timeout_and_no_fetch(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, fetches = client._gather_remote, []

    async def counted(*arguments: Any) -> Any:  # Any: passed on
        fetches.append(arguments)
        return await fetch(*arguments)

    monkeypatch.setattr(client, "_gather_remote", counted)
    future = client.submit(time.sleep, 1.0, pure=False)
    with pytest.raises(TimeoutError, match=r"not done within 0.1 s"):
        result_of(future, 0.1)
    assert not fetches
    assert result_of(future, 30) is None
    assert len(fetches) == 1


def test_an_error_of_the_work_is_raised_at_once(client: Client) -> None:
    def unbound() -> object:
        raise UnboundLocalError("of the work itself")

    with pytest.raises(UnboundLocalError, match="of the work itself"):
        result_of(client.submit(unbound, pure=False), 30)


def test_what_was_cancelled_does_not_wait(client: Client) -> None:
    future = client.submit(time.sleep, 0.5, pure=False)
    client.cancel([future], force=True)
    with pytest.raises(Exception, match="cancelled"):
        result_of(future, 30)
