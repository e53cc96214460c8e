"""Places of elastic workers: which are filled again, and whose link carries weights."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from research.kills.elastic_pool import LOOK_S, RATE_MBIT, ElasticPool, WorkerPlace
from research.kills.network_hosts import NetworkHosts

NAMES = ["elastic-worker-0", "elastic-worker-1"]


class Wires:
    """Hosts of which a test says what their wires have carried."""

    here = "10.0.0.1"

    def __init__(self) -> None:
        self.bytes = dict.fromkeys(NAMES, 0)

    def received_bytes(self, host: str) -> int:
        return self.bytes[host]

    def carry(self, host: str, seconds: float) -> None:
        """As many bytes as at the full rate for so long."""
        self.bytes[host] += int(seconds * RATE_MBIT * 1e6 / 8)


@pytest.fixture
def wires() -> Wires:
    return Wires()


@pytest.fixture
def park(tmp_path: Path, wires: Wires) -> Iterator[ElasticPool]:
    made = ElasticPool(tmp_path, NAMES, cast("NetworkHosts", wires))
    for place in made.places:
        place.worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    made.transferring()  # from here on it knows how much is new
    time.sleep(1.5 * LOOK_S)
    yield made
    made.close()


def names(places: list[WorkerPlace]) -> list[str]:
    return [place.name for place in places]


def test_who_asks_twice_at_once_is_told_the_same_places(park: ElasticPool, wires: Wires) -> None:
    for name in NAMES:
        wires.carry(name, seconds=60.0)
    assert [names(park.transferring()) for _ in range(2)] == [NAMES, NAMES]


def test_a_link_that_is_still_again_carries_no_weights(park: ElasticPool, wires: Wires) -> None:
    wires.carry("elastic-worker-0", seconds=60.0)
    assert names(park.transferring()) == ["elastic-worker-0"]
    time.sleep(1.5 * LOOK_S)
    assert names(park.transferring()) == []


def test_the_last_empty_place_is_left_to_who_is_told_to_join(
    park: ElasticPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[str] = []
    monkeypatch.setattr(park, "fill", lambda place: filled.append(place.name))
    first, _ = park.places
    assert first.worker is not None
    first.worker.kill()
    first.worker.wait()
    assert names(park.empty()) == ["elastic-worker-0"]
    first.filled_from_s = 0.0  # its pause is over
    assert names(park.empty()) == ["elastic-worker-0"]
    assert filled == []
