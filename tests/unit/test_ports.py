"""Ports: the usual one or another, the one that a user named or none, each for one run alone."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from artifacts.commit import RunManifest, write_manifest
from artifacts.store import Store
from flows.commands import demo, ui
from flows.commands.local_stack import SERVERS, wish_of
from flows.config.misfits import misfits_of_ports
from flows.config.run_config import RunConfig
from flows.resume import effective_config
from flows.run import _weight_server
from tasks.cluster.dask_cluster import wishes_of
from tasks.cluster.ports import LOOPBACK, Wish, address_on, free_port, held_port, refusal

HOLDING = """
import sys
from tasks.cluster.ports import Wish, held_port
wish = Wish(what="a server", port=int(sys.argv[1]), is_named=False, cure="")
with held_port(wish, print) as port:
    print(port, flush=True)
    sys.stdin.read()
"""
ELASTIC_WORKERS = {
    "enabled": True,
    "weights": {"enabled": True, "allowed_senders": ["127.0.0.0/8"]},
}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that a server of somebody else's listens on."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield listener.getsockname()[1]


def wish(port: int, *, is_named: bool) -> Wish:
    return Wish(what="the pages", port=port, is_named=is_named, cure="with --pages-port")


@pytest.mark.parametrize("is_named", [False, True])
def test_a_free_port_is_taken_without_a_word(is_named: bool) -> None:
    port, told = free_port(), list[str]()
    with held_port(wish(port, is_named=is_named), told.append) as held:
        assert (held, told) == (port, [])


def test_a_usual_port_that_is_taken_is_replaced_in_one_line(taken: int) -> None:
    told: list[str] = []
    with held_port(wish(taken, is_named=False), told.append) as port:
        assert port != taken
        assert not refusal(port), "whoever is to listen there finds it free"
    assert told == [f"port {taken} is taken: the pages has port {port}"]


def test_a_named_port_that_is_taken_is_refused_with_its_cure(taken: int) -> None:
    with pytest.raises(
        ValueError,
        match=f"of the pages must be free, 127.0.0.1:{taken} is not .*; end what listens there,"
        r" or name another with --pages-port \(0 takes a free one\)",
    ):
        wish(taken, is_named=True).check()


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_there_is_not_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"of the pages must be 0 to 65535, got {port}; choose"):
        wish(port, is_named=True).check()


def port_told(holder: subprocess.Popen[str]) -> str:
    """The port that such a process has, below what it says of one that is taken."""
    assert holder.stdout
    line = holder.stdout.readline()
    return holder.stdout.readline() if "is taken" in line else line


def test_processes_that_begin_at_once_get_ports_of_their_own() -> None:
    """None of their servers listens yet, so that the port looks free to each of them."""
    port = free_port()
    with ExitStack() as stack:
        holders = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", HOLDING, str(port)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        ports = [int(port_told(holder)) for holder in holders]
        with pytest.raises(ValueError, match="another run takes it"):
            wish(port, is_named=True).hold()
        for holder in holders:
            holder.communicate()
    assert len(set(ports)) == 4
    assert port in ports
    with held_port(wish(port, is_named=True), print) as again:
        assert again == port, "it is dropped with the process"


def test_a_free_port_is_none_that_a_connection_may_get_first(taken: int) -> None:
    """Or a server that is started on it finds it taken."""
    assert free_port() < taken
    assert len({free_port() for _ in range(10)}) > 1, "processes must not all take the same"


def test_an_address_of_another_machine_is_named() -> None:
    elsewhere = Wish(what="it", port=0, is_named=False, cure="", host="192.0.2.1")
    with pytest.raises(OSError, match=r"on 192.0.2.1, none is \(Cannot assign requested address"):
        elsewhere.hold()


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_has_a_usual_port_that_counts_as_not_named(name: str) -> None:
    for command in (ui, demo)[: 2 if name == "prefect" else 1]:
        assert getattr(command.parser().parse_args([]), f"{name}_port") is None
        asked = getattr(command.parser().parse_args([f"--{name}-port=4321"]), f"{name}_port")
        assert (wish_of(name, asked).is_named, wish_of(name, asked).port) == (True, 4321)
    assert (wish_of(name, None).is_named, wish_of(name, None).port) == (False, SERVERS[name][1])


FIELDS = {  # every port of a run, and what else must be set for it to be one
    "cluster.dashboard_port": {},
    "cluster.scheduler_port": {},
    "elastic.weights.port": {"elastic": ELASTIC_WORKERS},
}


def given(field: str, port: int, others: dict[str, Any]) -> dict[str, Any]:  # Any: parsed JSON
    values = json.loads(json.dumps({"preset": "tiny"} | others))
    *parents, last = field.split(".")
    below = values
    for parent in parents:
        below = below.setdefault(parent, {})
    below[last] = port
    return values


@pytest.mark.parametrize(("field", "others"), FIELDS.items())
def test_a_port_of_a_run_that_a_user_named_is_checked_first(
    taken: int, field: str, others: dict[str, Any]
) -> None:
    assert not [*misfits_of_ports(RunConfig.model_validate(given(field, free_port(), others)))]
    [told] = misfits_of_ports(RunConfig.model_validate(given(field, taken, others)))
    assert re.search(rf":{taken} is not .* in {field} \(0 takes a free one\)", told)


@pytest.mark.parametrize(("field", "others"), FIELDS.items())
def test_a_resumed_run_goes_on_with_free_ports_but_for_one_that_is_named_beside(
    taken: int, tmp_path: Path, field: str, others: dict[str, Any]
) -> None:
    """Whether its first attempt had named one or not."""
    kept = RunConfig.model_validate(given(field, taken, others))
    manifest = RunManifest(
        run_id="run",
        created="",
        config=kept.model_dump(mode="json", exclude={"resume"}),
        packages={},
        git_sha=None,
        mlflow_run_id=None,
    )
    write_manifest(Store.open(str(tmp_path)).child("run"), manifest)
    resume = {"resume": "run", "keep": {"artifact_root": str(tmp_path)}}
    kept_on = effective_config(RunConfig.model_validate({"preset": "tiny"} | resume))
    assert not [*misfits_of_ports(kept_on)]
    named = RunConfig.model_validate(given(field, taken, {}) | resume)
    [told] = misfits_of_ports(effective_config(named))
    assert f"in {field} (0 takes a free one)" in told


def test_the_weight_server_of_a_resumed_run_takes_any_port_where_its_own_is_taken(
    taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for port, told in (
        (taken, f"port {taken} is taken: the weight server has a free one\n"),
        (0, ""),
    ):
        config = RunConfig.model_validate(
            given("elastic.weights.port", port, {"elastic": ELASTIC_WORKERS})
        )
        server = _weight_server(config)
        assert server is not None
        assert (server.port, capsys.readouterr().out) == (0, told)


def test_an_interface_that_is_not_there_is_told_with_those_that_are() -> None:
    assert address_on("lo") == "127.0.0.1"
    with pytest.raises(ValueError, match=r"got 'ib7'; there are .*\blo\b"):
        address_on("ib7")
    weights = {"enabled": True, "interface": ["ib7"], "allowed_senders": ["10.0.0.0/8"]}
    config = RunConfig.model_validate(
        {"preset": "tiny", "elastic": {"enabled": True, "weights": weights}}
    )
    [told] = misfits_of_ports(config)
    assert told.startswith("elastic.weights.interface: a network interface must be of this machine")


def test_ports_of_a_preset_are_not_named() -> None:
    cluster = RunConfig.model_validate({"preset": "tiny-elastic"}).cluster
    assert cluster.scheduler_port
    assert [wish.is_named for wish in wishes_of(cluster)] == [False, False]
