"""The flow that lends a machine: what it starts, what it says, and how it ends."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.commands.worker import dask_command, parser
from flows.elastic_worker import ElasticWorkerConfig, command_line, run_worker

LEAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], "w").close(), sys.exit(0)))
print("is there", file=sys.stderr, flush=True)
time.sleep(60)
"""


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def test_the_flow_starts_an_elastic_worker_with_what_it_is_given() -> None:
    config = ElasticWorkerConfig(
        address="tls://host:8786",
        name="spot-1",
        token_file="token",
        drain_s=0.0,
        tls_ca_file="ca.pem",
        tls_cert="cert.pem",
        tls_key="key.pem",
    )
    _, _, module, *words = command_line(config)
    assert module == "flows.commands.worker"
    command = " ".join(dask_command(parser().parse_args(words)))
    assert command.startswith("dask worker tls://host:8786 --name spot-1 --no-nanny")
    assert "--tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem --preload" in command
    assert "--token-file token --drain-s 0.0" in command
    assert f"--parent {os.getpid()}" in command


def test_an_address_without_its_protocol_is_refused() -> None:
    with pytest.raises(ValidationError, match="address"):
        ElasticWorkerConfig(address="host:8786")


async def test_an_elastic_worker_that_is_drained_completes_the_flow() -> None:
    said: list[str] = []
    await run_worker(python("import sys; print('is dismissed', file=sys.stderr)"), said.append, 1.0)
    assert said == ["is dismissed"]


async def test_an_elastic_worker_may_say_a_line_of_any_length() -> None:
    said: list[str] = []
    program = "import sys; print('x' * 200_000, 'is dismissed', sep='\\n', file=sys.stderr)"
    await run_worker(python(program), said.append, 1.0)
    assert [len(line) for line in said] == [200_000, len("is dismissed")]


async def test_a_refused_elastic_worker_fails_the_flow_with_the_sentence() -> None:
    program = "import sys; print('is refused: no token', file=sys.stderr); sys.exit(2)"
    with pytest.raises(RuntimeError, match="ended with exit status 2; it said last: is refused"):
        await run_worker(python(program), lambda line: None, 1.0)


async def test_a_cancelled_flow_has_its_elastic_worker_drained(tmp_path: Path) -> None:
    there, left = asyncio.Event(), tmp_path / "left"
    words = (*python(LEAVES), str(left))
    flow = asyncio.create_task(run_worker(words, lambda line: there.set(), 30.0))
    await there.wait()
    flow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flow
    assert left.exists()
