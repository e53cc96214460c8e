"""An elastic worker of a run as a flow, so that a Prefect work pool on preemptible machines scales
the number of workers.

    rollflow worker ─▶ its lines in the flow's log ─▶ drained, dismissed: completed
                                                   ─▶ refused, scheduler gone, killed: failed
    cancelled, or SIGTERM for the machine ─▶ the elastic worker is drained

Leaves out the elastic worker itself (`tasks.elastic.worker_process`)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence

from prefect import flow, get_run_logger
from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.urls import Location, NetworkAddress
from flows.prefect_server import hide_refused_secrets
from tasks.cluster.deaths import manner
from tasks.cluster.process_environment import python_path
from tasks.elastic.worker_card import GRACE_S, LEASE_S, PRICE_CLASS

DRAIN_S = 20.0  # Prefect kills a cancelled flow after 30 s
CLOSES_WITHIN_S = 8.0  # a drained elastic worker ends within this time
# bytes of a line; libraries may print a whole list on one line, and asyncio's own limit is 64 KiB
LONGEST_LINE = 1 << 24


hide_refused_secrets()


class ElasticWorkerConfig(FrozenConfig):
    """Parameters of one elastic worker."""

    address: NetworkAddress = Field(
        ...,
        pattern="^(tcp|tls)://",
        description="The run's Dask scheduler: tls://HOST:8786, or tcp://HOST:8786.",
    )
    name: str = Field("", description="What the run calls it; empty: by host and process.")
    cores: str = Field("", description="Cores to bind it to, like 0-3,6; empty: all of them.")
    price_class: str = Field(
        PRICE_CLASS, description="By which the run looks up what an hour of it costs."
    )
    token_file: Location = Field(
        "",
        description="File with the run's token; empty: the environment's ROLLFLOW_ELASTIC_TOKEN.",
    )
    drain_s: float = Field(
        DRAIN_S,
        ge=0,
        description="Seconds that it takes to leave; Prefect kills a cancelled flow after 30.",
    )
    lease_s: float = Field(
        LEASE_S, gt=0, description="Seconds without a word after which it counts as lost."
    )
    grace_s: float = Field(
        GRACE_S, gt=0, description="Seconds without a scheduler after which it ends."
    )
    spot_notice: Location = Field(
        "", description="File that appears, or URL that answers, when the machine is to go."
    )
    local_directory: Location = Field("", description="Folder for weights and other files.")
    certificate: Location = Field("", description="The file that the run named at its start, PEM.")
    tls_ca_file: Location = Field("", description="Authority for tls:// addresses, PEM.")
    tls_cert: Location = Field("", description="Certificate for tls:// addresses, PEM.")
    tls_key: Location = Field("", description="Private key for tls:// addresses, PEM.")


@flow(
    name="elastic-worker", flow_run_name="elastic-worker-{config.price_class}", description=__doc__
)
async def elastic_worker(config: ElasticWorkerConfig) -> None:
    """Lend this machine to a run until the elastic worker is drained or dismissed."""
    await run_worker(command_line(config), get_run_logger().info, config.drain_s)


async def run_worker(command: Sequence[str], log: Callable[[str], None], drain_s: float) -> None:
    """Run the command and log each line of its error stream; drain the process when cancelled.
    Raises RuntimeError with the last logged line if the exit status is not 0."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | python_path(),
        limit=LONGEST_LINE,
    )
    assert process.stderr is not None
    last = "it said nothing"
    try:
        async for line in process.stderr:
            last = line.decode(errors="replace").rstrip()
            log(last)
        code = await process.wait()
    finally:
        if process.returncode is None:
            await drain(process, drain_s)
    if code:
        raise RuntimeError(
            f"the elastic worker must end with 0, it {manner(code)}; it said last: {last}"
        )


async def drain(process: asyncio.subprocess.Process, drain_s: float) -> None:
    """Terminate the process, and kill it if it does not end within drain_s + CLOSES_WITHIN_S."""
    process.terminate()
    try:
        async with asyncio.timeout(drain_s + CLOSES_WITHIN_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()


def command_line(config: ElasticWorkerConfig) -> tuple[str, ...]:
    """Build the command line of an elastic worker that ends with this process."""
    options = {
        "--name": config.name,
        "--cores": config.cores,
        "--price-class": config.price_class,
        "--token-file": config.token_file,
        "--drain-s": str(config.drain_s),
        "--lease-s": str(config.lease_s),
        "--grace-s": str(config.grace_s),
        "--spot-notice": config.spot_notice,
        "--local-directory": config.local_directory,
        "--certificate": config.certificate,
        "--tls-ca-file": config.tls_ca_file,
        "--tls-cert": config.tls_cert,
        "--tls-key": config.tls_key,
        "--parent": str(os.getpid()),
    }
    given = (word for option, value in options.items() if value for word in (option, value))
    return (sys.executable, "-m", "flows.commands.worker", config.address, *given)
