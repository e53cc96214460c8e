"""Ranks of a learner on two hosts find each other, wherever their hosts' own names lead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs
import pytest

from research.kills.network_hosts import network_hosts, why_not
from tasks.learner.ranks import reach_ranks_by

ROOT = Path(__file__).parents[2]
REASON = why_not()
PORT = 29_500  # in a host of its own, where nobody else listens
RANK = """
import sys
import torch
from tasks.learner.ranks import Ranks, reach_ranks_by
rank, own, meeting = sys.argv[1:]
reach_ranks_by(own)
ranks = Ranks(int(rank), 2, torch.device("cpu"))
ranks.join(meeting, 60.0)
print(ranks.sum([1.0 + int(rank)]))
ranks.close()
"""


@pytest.mark.skipif(bool(REASON), reason=REASON or "hosts can be made")
def test_ranks_on_two_hosts_add_up() -> None:
    with network_hosts("one", "two") as hosts:
        meeting = f"tcp://{hosts.address('one')}:{PORT}"
        ranks = [
            hosts.run_in(
                name,
                [sys.executable, "-c", RANK, str(rank), hosts.address(name), meeting],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(("one", "two"))
        ]
        told = [rank.communicate(timeout=120.0) for rank in ranks]
    assert [out.strip() for out, _ in told] == ["[3.0]", "[3.0]"], told


def test_the_interface_is_that_of_the_address_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loopback = next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(found.address == "127.0.0.1" for found in addresses)
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # so that it is as it was afterwards
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    reach_ranks_by("10.255.255.254")  # nobody's here
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    reach_ranks_by("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == loopback
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    reach_ranks_by("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
