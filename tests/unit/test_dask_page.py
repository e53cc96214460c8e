"""Dask's page is a record of a run and no part of it: no scheduler holds its end up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.train import ANSWER_S, dask_page


class MuteScheduler:
    """A client whose scheduler answers at the beginning and never again."""

    def __init__(self, error: Exception) -> None:
        self.asked: list[float | None] = []
        self._error = error

    def sync(self, call: Any, *args: Any, callback_timeout: float | None = None, **_: Any) -> None:
        self.asked.append(callback_timeout)
        if args:
            raise self._error


@pytest.mark.parametrize("error", [TimeoutError(), OSError("closed"), RuntimeError("no loop")])
def test_what_the_scheduler_cannot_tell_is_left_out_and_said(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client: Any = MuteScheduler(error)
    with dask_page(client, tmp_path / "dask.html"):
        pass
    assert client.asked == [None, ANSWER_S]
    assert f"no page of Dask's: {error or 'no answer within 20 s'}" in caplog.text


def test_the_error_that_ended_the_run_stays_the_one_that_is_told(tmp_path: Path) -> None:
    client: Any = MuteScheduler(TimeoutError())
    with pytest.raises(KeyError, match="the run's own"), dask_page(client, tmp_path / "dask.html"):
        raise KeyError("the run's own")
