"""An elastic worker's process: it joins, shows its card, tells that it lives and that it leaves,
and ends as it is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from worker_processes import ROOT, Trainer, a_trainer, an_elastic_worker, ended, wait_until

from tasks.cluster.dask_cluster import worker_addresses
from tasks.elastic import worker_process
from tasks.elastic.worker_card import (
    TOKEN_VARIABLE,
    devices_here,
    end_worker,
    is_proven,
    read_card,
)

TOKEN = "a-long-secret"


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    with a_trainer() as trainer:
        yield trainer


def test_an_elastic_worker_joins_shows_its_card_and_leaves_when_it_is_dismissed(
    trainer: Trainer,
) -> None:
    words = ("--name", "first", "--price-class", "cheap", "--lease-s", "0.4")
    with an_elastic_worker(trainer.address, *words, environment={TOKEN_VARIABLE: TOKEN}) as process:
        address = trainer.address_of("first")
        info = trainer.client.scheduler_info(n_workers=-1)["workers"][address]
        assert (info["resources"], info["nanny"]) == ({"elastic": 1.0}, None)

        card = trainer.client.run(read_card, workers=[address])[address]
        assert (card["name"], card["price_class"]) == ("first", "cheap")
        assert card["devices"] == list(devices_here())
        assert is_proven(card, TOKEN, address, time.time())
        assert not is_proven(card, "another", address, time.time())
        wait_until(lambda: len(trainer.told("lease", "first")) > 2, "leases arrive")

        process.send_signal(signal.SIGTERM)
        wait_until(lambda: bool(trainer.told("leaving", "first")), "it says that it leaves")
        (message,) = trainer.told("leaving", "first")
        assert message["reason"] == "SIGTERM"
        assert process.poll() is None

        trainer.client.run(end_worker, "dismiss", "its responses are elsewhere", workers=[address])
        code, said = ended(process)
    assert code == 0
    assert "elastic worker first leaves (SIGTERM) within 30 s" in said
    assert said.splitlines()[-1] == "elastic worker first is dismissed: its responses are elsewhere"
    assert "first" not in worker_addresses(trainer.client)


def test_an_elastic_worker_that_nobody_dismisses_goes_after_its_time(
    trainer: Trainer, tmp_path: Path
) -> None:
    notice = tmp_path / "notice"
    words = ("--name", "patient", "--drain-s", "0.5", "--spot-notice", str(notice))
    with an_elastic_worker(trainer.address, *words) as process:
        trainer.client.run(read_card, workers=[trainer.address_of("patient")])
        notice.touch()
        code, said = ended(process)
    assert code == 0
    assert trainer.told("leaving", "patient")[0]["reason"] == f"notice at {notice}"
    assert "elastic worker patient has left after 0.5 s" in said


def test_a_refused_elastic_worker_says_why_and_ends_with_2(trainer: Trainer) -> None:
    with an_elastic_worker(trainer.address, "--name", "stranger") as process:
        address = trainer.address_of("stranger")
        trainer.client.run(
            end_worker, "refuse", "an elastic worker must know the token", workers=[address]
        )
        code, said = ended(process)
    assert code == 2
    assert (
        said.splitlines()[-1]
        == "elastic worker stranger is refused: an elastic worker must know the token"
    )


def test_a_second_interrupt_ends_an_elastic_worker_at_once(trainer: Trainer) -> None:
    with an_elastic_worker(trainer.address, "--name", "hasty") as process:
        trainer.client.run(read_card, workers=[trainer.address_of("hasty")])
        process.send_signal(signal.SIGINT)
        wait_until(lambda: bool(trainer.told("leaving", "hasty")), "it says that it leaves")
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 1


def test_an_elastic_worker_that_no_run_has_found_leaves_at_once(trainer: Trainer) -> None:
    with an_elastic_worker(trainer.address, "--name", "unseen") as process:
        trainer.address_of("unseen")
        process.send_signal(signal.SIGINT)
        code, said = ended(process)
    assert (code, trainer.told("leaving", "unseen")) == (0, [])
    assert "elastic worker unseen leaves (SIGINT); no run had found it" in said


def test_a_killed_elastic_worker_leaves_no_process_behind(trainer: Trainer) -> None:
    with an_elastic_worker(trainer.address, "--name", "victim") as process:
        trainer.address_of("victim")
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
        wait_until(lambda: "victim" not in worker_addresses(trainer.client), "it is gone")


def test_an_elastic_worker_is_drained_when_the_process_that_started_it_is_gone(
    trainer: Trainer,
) -> None:
    elastic_worker = f"{sys.executable} -m flows.commands.worker {trainer.address} --name orphan"
    shell = ["sh", "-c", f"{elastic_worker} --parent $$ & wait"]
    with subprocess.Popen(shell, cwd=ROOT, stderr=subprocess.PIPE, text=True) as parent:
        trainer.address_of("orphan")
        parent.kill()
        assert parent.stderr is not None
        said = parent.stderr.read()  # until the last process that writes there has ended
    assert "elastic worker orphan leaves (SIGTERM); no run had found it" in said
    wait_until(lambda: "orphan" not in worker_addresses(trainer.client), "it is gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_elastic_worker_that_nobody_listens_to_any_more_leaves_all_the_same(
    trainer: Trainer, number: int
) -> None:
    with an_elastic_worker(trainer.address, "--name", f"unheard-{number}") as process:
        trainer.address_of(f"unheard-{number}")
        assert process.stderr is not None
        process.stderr.close()
        process.stderr = None
        process.send_signal(number)
        assert process.wait(timeout=60) == 0


def test_a_child_that_ends_by_itself_keeps_no_elastic_worker_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    gone = psutil.Process(child.pid)
    child.wait()
    ended: list[int] = []
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [gone])
    monkeypatch.setattr(worker_process.os, "_exit", ended.append)
    monkeypatch.setattr(sys, "addaudithook", lambda _: None)  # there is no way back
    worker_process.end_process(3)
    assert ended == [3]


def test_without_a_scheduler_an_elastic_worker_ends_after_its_grace() -> None:
    with an_elastic_worker("tcp://127.0.0.1:9", "--name", "early", "--grace-s", "1") as process:
        code, said = ended(process)
    assert code == 3
    assert (
        "elastic worker early ends: the scheduler at tcp://127.0.0.1:9 has not answered for 1 s"
        in said
    )


def test_an_elastic_worker_whose_scheduler_is_gone_ends_with_3() -> None:
    with a_trainer() as trainer, an_elastic_worker(trainer.address, "--name", "left") as process:
        trainer.address_of("left")
        trainer.client.cluster.close()
        code, said = ended(process)
    assert code == 3
    assert "elastic worker left ends: its connection to the scheduler has ended" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--token-file", "nowhere"), "--token-file must name a file that can be read"),
        (("--parent", "1"), "--parent must be the process that started this one, "),
    ],
)
def test_what_an_elastic_worker_finds_wrong_is_one_sentence(
    words: tuple[str, ...], sentence: str
) -> None:
    with an_elastic_worker("tcp://127.0.0.1:9", *words) as process:
        code, said = ended(process)
    assert code == 2
    assert sentence in said.splitlines()[-1]
