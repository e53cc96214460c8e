"""The process of an elastic worker: a Dask worker without a nanny that preloads this module.

    dask worker ADDRESS --no-nanny --resources elastic=1 --preload tasks.elastic.worker_process ...

    begins ─▶ card, leases ──SIGTERM, Ctrl-C, notice──▶ "leaving" ──dismissed, or drain_s──▶ 0
                │  └─ refused ─▶ 2
                └─ no scheduler, must restart ─▶ 3: the program that started it may start it again

`rollflow worker` starts such a process. Leaves out the engine, which the trainer builds in this
process like in any other worker.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Coroutine
from contextlib import suppress
from http.client import HTTPException
from types import FrameType
from typing import Any, Final

import click
from distributed import Worker
from distributed.comm.core import FatalCommClosedError

from artifacts.private_files import keep_private
from artifacts.proxies import open_directly
from tasks.cluster.certificate import speaks_tls
from tasks.cluster.dask_cluster import pin_process
from tasks.cluster.devices import parse_ranges
from tasks.cluster.parent import end_process
from tasks.elastic.worker_card import (
    DRAIN_S,
    EXTENSION,
    GRACE_S,
    LEASE_S,
    PRICE_CLASS,
    RESOURCE,
    TOPIC,
    Ending,
    Terms,
    WorkerCard,
    devices_here,
    make_card,
    read_token,
)

DRAINED: Final = 0
REFUSED: Final = 2
LOST: Final = 3  # the scheduler is not there, or the run wants another process
INTERRUPTED: Final = 1
OF_ENDING: Final[dict[Ending, tuple[int, str]]] = {  # exit status, and how the process says it
    "dismiss": (DRAINED, "is dismissed"),
    "renew": (LOST, "must begin anew"),
    "refuse": (REFUSED, "is refused"),
}
ANSWERED_WITHIN_S = 0.3  # time in which the run that ends this process receives its answer
CLOSES_WITHIN_S = 5.0
POLL_S = 5.0  # between two polls of the scheduler
NOTICE_POLL_S = 2.0  # clouds give 25 s to 2 minutes of notice
NOTICE_ANSWER_S = 2.0
# Google's notice URL requires this header, other clouds ignore it
NOTICE_HEADERS = {"Metadata-Flavor": "Google"}
NO_NOTICE = {"", "FALSE", "NONE", "[]"}
PR_SET_PDEATHSIG = 1
CERTIFICATE_NEEDED = "give address and certificate as the run named them at its start"
TIME = click.FloatRange(min=0.0, min_open=True)


class WorkerExtension:
    """An elastic worker's process, as an extension of its Dask worker. It must have no method
    `heartbeat` or `close`, which Dask would call."""

    def __init__(self, worker: Worker, terms: Terms) -> None:
        self._worker = worker
        self._terms = terms
        self.token = terms.token  # the run's secret, empty if the worker was given none
        self._devices = devices_here()
        self._is_known = False  # a run has read the card
        self._is_leaving = False
        self._is_ending = False
        self._loop = asyncio.get_running_loop()
        self._work: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return str(self._worker.name)

    def begin(self, notice: str) -> None:
        """Renew leases, watch signals and scheduler, and this file or URL for the machine's end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._spawn(self._renew_leases())
        self._spawn(self._watch_scheduler())
        if notice:
            self._spawn(self._leave_on_notice(notice))
        self._print(f"looks for a run at {self._worker.scheduler.address}; Ctrl-C drains it")

    def card(self) -> WorkerCard:
        if not self._is_known:
            self._print("a run has found it")
        self._is_known = True
        address = self._worker.contact_address or self._worker.address
        return make_card(self.name, address, self._terms, self._devices)

    def leave(self, reason: str) -> None:
        """Announce to the run that this worker leaves. The process ends when dismissed or after
        drain_s; at once if no run has read the card."""
        if self._is_leaving or self._is_ending:
            return
        self._is_leaving = True
        if not self._is_known:
            self.end(DRAINED, f"leaves ({reason}); no run had found it")
            return
        message = {"kind": "leaving", "name": self.name, "reason": reason}
        self._worker.log_event(TOPIC, message)
        drain_s = self._terms.drain_s
        self._print(f"leaves ({reason}) within {drain_s:g} s; Ctrl-C ends it at once")
        sentence = f"has left after {drain_s:g} s, the time it had for draining"
        self._loop.call_later(drain_s, self.end, DRAINED, sentence)

    def end_as(self, how: Ending, reason: str) -> None:
        """End this process as the run asks: the exit status follows from `how`."""
        code, words = OF_ENDING[how]
        self.end(code, f"{words}: {reason}")

    def end(self, code: int, sentence: str) -> None:
        """Print the sentence and end the process with this exit status a moment later, once."""
        if self._is_ending:
            return
        self._is_ending = True
        self._print(sentence)
        self._spawn(self._end(code))

    async def _end(self, code: int) -> None:
        """Close the Dask worker, which deregisters it at the scheduler, and end the process."""
        try:  # Dask may end the event loop before the closing is complete
            await asyncio.sleep(ANSWERED_WITHIN_S)
            async with asyncio.timeout(CLOSES_WITHIN_S):
                await self._worker.close(executor_wait=False, reason="elastic-worker-ends")
        finally:
            end_process(code)

    async def _renew_leases(self) -> None:
        while True:
            self._worker.log_event(TOPIC, {"kind": "lease", "name": self.name})
            await asyncio.sleep(self._terms.lease_s / 4)

    async def _watch_scheduler(self) -> None:
        """End the process when the scheduler has not answered for grace_s; time in which this
        process itself was suspended does not count."""
        poll_s = min(POLL_S, self._terms.grace_s / 4)
        silent_s = 0.0
        while silent_s < self._terms.grace_s:
            began_s = time.monotonic()
            await asyncio.sleep(poll_s)
            answered = await self._scheduler_answers(poll_s)
            silent_s += min(time.monotonic() - began_s, 2 * poll_s)
            silent_s = 0.0 if answered else silent_s
        address, grace_s = self._worker.scheduler.address, self._terms.grace_s
        self.end(LOST, f"ends: the scheduler at {address} has not answered for {grace_s:g} s")

    async def _scheduler_answers(self, within_s: float) -> bool:
        address = self._worker.scheduler.address
        try:
            async with asyncio.timeout(within_s):
                await self._worker.scheduler.identity(n_workers=0)
        except FatalCommClosedError:
            self.end_as(
                "refuse", f"{address} lets in who has the run's certificate; {CERTIFICATE_NEEDED}"
            )
        except (OSError, TimeoutError):  # Dask's errors of communication are OSErrors
            if address.startswith("tcp://") and await asyncio.to_thread(speaks_tls, address):
                self.end_as("refuse", f"{address} takes nothing but TLS; {CERTIFICATE_NEEDED}")
        else:
            return True
        return False

    async def _leave_on_notice(self, where: str) -> None:
        await notice_given(where)
        self.leave(f"notice at {where}")

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Leave; a second Ctrl-C ends the process at once."""
        if number == signal.SIGINT and (self._is_leaving or self._is_ending):
            end_process(INTERRUPTED)
        self._loop.call_soon_threadsafe(self.leave, signal.Signals(number).name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _print(self, sentence: str) -> None:
        with suppress(OSError):  # the reader of the stream is gone
            print(f"elastic worker {self.name} {sentence}", file=sys.stderr, flush=True)


async def notice_given(where: str) -> None:
    """Wait until the file `where` exists, or the URL `where` answers with a notice, that the
    machine will be taken away: anything but 404 or NO_NOTICE, if it can be reached."""
    is_url = where.startswith(("http://", "https://"))
    has_notice = _url_has_notice if is_url else os.path.exists  # Path.exists may raise
    while not await asyncio.to_thread(has_notice, where):
        await asyncio.sleep(NOTICE_POLL_S)


def is_notice(status: int, body: str) -> bool:
    """True if an HTTP answer with this status and body is a notice of the machine's end."""
    return status == 200 and body.strip().upper() not in NO_NOTICE


def _url_has_notice(url: str) -> bool:
    request = urllib.request.Request(url, headers=NOTICE_HEADERS)
    try:
        with open_directly(request, NOTICE_ANSWER_S) as answer:
            return is_notice(answer.status, answer.read(4096).decode(errors="replace"))
    except (OSError, ValueError, HTTPException):  # 404 among them
        return False


def end_with(parent: int) -> None:
    """Send this process SIGTERM, so that it drains, when the process `parent`, which started it,
    ends. Raises ValueError if `parent` did not start this process."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        raise ValueError(
            f"--parent must be the process that started this one, {os.getppid()}, got {parent};"
            " it has ended, or leave the option out"
        )


def check_worker(worker: Worker) -> None:
    """Raise ValueError if the Dask worker was not started as an elastic worker must be."""
    if worker.nanny is not None:
        raise ValueError(
            "an elastic worker must have no nanny, which would start it again: give --no-nanny"
        )
    if not worker.state.total_resources.get(RESOURCE):
        raise ValueError(f"an elastic worker must be known for one: give --resources {RESOURCE}=1")
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("an elastic worker must be a process of its own, which signals can reach")


@click.command()
@click.option("--price-class", default=PRICE_CLASS, help="What its devices cost.")
@click.option("--token-file", default="", help="File with the run's token.")
@click.option("--drain-s", default=DRAIN_S, type=click.FloatRange(0.0), help="Seconds to leave in.")
@click.option("--lease-s", default=LEASE_S, type=TIME, help="Seconds it may be silent.")
@click.option("--grace-s", default=GRACE_S, type=TIME, help="Seconds without a scheduler.")
@click.option("--cores", default="", help="Cores to bind it to, like 0-1,4; all by default.")
@click.option("--spot-notice", default="", help="File or URL that tells the machine's end.")
@click.option("--parent", default=0, help="Process that started it, with which it goes.")
def dask_setup(
    worker: Worker,
    price_class: str,
    token_file: str,
    drain_s: float,
    lease_s: float,
    grace_s: float,
    cores: str,
    spot_notice: str,
    parent: int,
) -> None:
    """Turn this Dask worker into an elastic worker; an error ends the process."""
    keep_private()
    try:
        check_worker(worker)
        if parent:
            end_with(parent)
        terms = Terms(
            price_class=price_class,
            token=read_token(token_file),
            drain_s=drain_s,
            lease_s=lease_s,
            grace_s=grace_s,
        )
        if cores:
            pin_process(parse_ranges(cores, cores))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        end_process(REFUSED)
    extension = worker.extensions[EXTENSION] = WorkerExtension(worker, terms)
    extension.begin(spot_notice)


def dask_teardown(worker: Worker) -> None:
    """End the process when Dask closes its worker: the scheduler is gone, or has removed it."""
    worker.extensions[EXTENSION].end(LOST, "ends: its connection to the scheduler has ended")
