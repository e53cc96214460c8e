"""Ranks of a learner on two hosts find each other, wherever their hosts' own names lead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs
import pytest
from listeners import listeners

from research.kills.network_hosts import network_hosts, why_not
from tasks.cluster.ports import free_port, reach_ranks_by
from tasks.learner.ranks import meeting_point

ROOT = Path(__file__).parents[2]
REASON = why_not()
INTERFACE = "GLOO_SOCKET_IFNAME"
MEET_WITHIN_S = 90.0
PORT = 29_500  # in a host of its own, where nobody else listens


RANK = """
import sys
import torch
from tasks.cluster.ports import reach_ranks_by
from tasks.learner.ranks import Ranks
rank, own, meeting = sys.argv[1:]
reach_ranks_by(own)
ranks = Ranks(int(rank), 2, torch.device("cpu"))
ranks.join(meeting, 60.0)
print(ranks.sum([1.0 + int(rank)]), flush=True)
sys.stdin.read()
ranks.close()
"""


@pytest.mark.skipif(bool(REASON), reason=REASON or "hosts can be made")
def test_ranks_on_two_hosts_add_up() -> None:
    found = sums_on_two_hosts()
    assert [("[3.0]" in out.splitlines(), code) for out, code in found] == [(True, 0)] * 2, found


def sums_on_two_hosts() -> list[tuple[str, int]]:
    """Output and exit status of each rank; those that have not met in time are killed."""
    with network_hosts("one", "two") as hosts:
        meeting = f"tcp://{hosts.address('one')}:{PORT}"
        ranks = [
            hosts.run_in(
                name,
                [sys.executable, "-c", RANK, str(rank), hosts.address(name), meeting],
                cwd=ROOT,
                # an earlier test of this process may have named the loopback interface
                env={key: value for key, value in os.environ.items() if key != INTERFACE},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, name in enumerate(("one", "two"))
        ]
        psutil.wait_procs([psutil.Process(rank.pid) for rank in ranks], MEET_WITHIN_S)
        for rank in ranks:
            rank.kill()
        return [(rank.communicate()[0], rank.returncode) for rank in ranks]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_ranks_of_one_machine_meet_in_a_file_of_their_own(host: str, tmp_path: Path) -> None:
    meeting = meeting_point(host, str(tmp_path))
    folder = Path(meeting.removeprefix("file://")).parent
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    assert {address for address, _ in places_of_ranks(meeting)} == {"127.0.0.1"}


def test_ranks_of_several_machines_meet_at_one_address_alone() -> None:
    port = free_port("127.0.0.2")  # as good as an address of a network
    places = places_of_ranks(f"tcp://127.0.0.2:{port}")
    assert ("127.0.0.2", port) in places
    assert {address for address, _ in places} == {"127.0.0.1", "127.0.0.2"}


def places_of_ranks(meeting: str) -> set[tuple[str, int]]:
    """Where two ranks listen that have met here."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), "127.0.0.1", meeting],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
        assert told == ["[3.0]\n", "[3.0]\n"]
        return {place for rank in ranks for place in listeners(rank.pid)}
    finally:
        for rank in ranks:
            rank.communicate()


def test_the_interface_is_that_of_the_address_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loopback = next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(found.address == "127.0.0.1" for found in addresses)
    )
    monkeypatch.setenv(INTERFACE, "")  # so that it is as it was afterwards
    monkeypatch.delenv(INTERFACE)
    reach_ranks_by("10.255.255.254")  # nobody's here
    assert INTERFACE not in os.environ
    reach_ranks_by("127.0.0.1")
    assert os.environ[INTERFACE] == loopback
    monkeypatch.setenv(INTERFACE, "ib0")
    reach_ranks_by("127.0.0.1")
    assert os.environ[INTERFACE] == "ib0"
