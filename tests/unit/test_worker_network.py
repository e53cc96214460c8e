"""An elastic worker behind a border of its own, whose wire is cut without a word."""

from __future__ import annotations

import subprocess
import sys

import pytest
from worker_processes import ROOT, a_trainer, ended

from research.kills.network_hosts import network_hosts, why_not
from tasks.elastic.worker_card import read_card

REASON = why_not()


@pytest.mark.skipif(bool(REASON), reason=REASON or "hosts can be made")
def test_an_elastic_worker_whose_link_falls_silent_ends_after_its_grace() -> None:
    with network_hosts("far") as hosts, a_trainer(host=hosts.here) as trainer:
        scheduler = trainer.address
        words = ["-m", "flows.commands.worker", scheduler, "--name", "far", "--grace-s", "3"]
        with hosts.run_in(
            "far", [sys.executable, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
        ) as process:
            address = trainer.address_of("far")
            assert address.startswith(f"tcp://{hosts.address('far')}:")
            trainer.client.run(read_card, workers=[address])
            hosts.cut("far")
            code, said = ended(process)
            hosts.mend("far")
    assert code == 3
    assert f"elastic worker far ends: the scheduler at {scheduler} has not answered for 3 s" in said
