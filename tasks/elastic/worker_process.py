"""The process of an elastic worker: a plain Dask worker without a nanny, and this as its preload.

    dask worker ADDRESS --no-nanny --resources elastic=1 --preload
    tasks.elastic.worker_process ...

    begins ─▶ card, leases ──SIGTERM, Ctrl-C, notice──▶ "leaving" ──dismissed, or drain_s──▶ 0
                │  └─ refused ─▶ 2
                └─ no scheduler, must begin anew ─▶ 3: whoever started it may start it again

`rollflow worker` starts one. Leaves out the engine, which the trainer builds here as it does
anywhere.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import click
from distributed import Worker
from distributed.comm.core import FatalCommClosedError

from artifacts.private_files import keep_private
from tasks.cluster.certificate import speaks_tls
from tasks.cluster.dask_cluster import pin_process
from tasks.cluster.parent import end_process
from tasks.cluster.roles import parse_ranges
from tasks.elastic.termination_notice import notice_given
from tasks.elastic.worker_card import (
    EXTENSION,
    RESOURCE,
    TOPIC,
    Terms,
    WorkerCard,
    devices_here,
    make_card,
    read_token,
)
from tasks.elastic.worker_defaults import DRAIN_S, GRACE_S, LEASE_S, PRICE_CLASS

DRAINED: Final = 0
REFUSED: Final = 2
LOST: Final = 3  # the scheduler is not there, or the run wants another process
INTERRUPTED: Final = 1
ANSWERED_WITHIN_S = 0.3  # who dismisses or refuses has its answer by then
CLOSES_WITHIN_S = 5.0
LOOK_S = 5.0  # between two looks for the scheduler
PR_SET_PDEATHSIG = 1
CERTIFICATE_NEEDED = "give address and certificate as the run named them at its start"
TIME = click.FloatRange(min=0.0, min_open=True)


class WorkerExtension:
    """A worker that says who it is, that it lives and that it leaves. Dask keeps it as an extension
    of the worker, so it has no method `heartbeat` or `close`."""

    def __init__(self, worker: Worker, terms: Terms) -> None:
        self._worker = worker
        self._terms = terms
        self._devices = devices_here()
        self._is_known = False  # somebody has read its card
        self._is_leaving = False
        self._is_ending = False
        self._loop = asyncio.get_running_loop()
        self._work: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return str(self._worker.name)

    @property
    def token(self) -> str:
        """The run's secret, as far as it was given one."""
        return self._terms.token

    def begin(self, notice: str) -> None:
        """Watch the signals, the scheduler and the notice, a file or a URL, if one is named."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._do(self._tell_leases())
        self._do(self._watch_scheduler())
        if notice:
            self._do(self._watch_notice(notice))
        self._say(f"looks for a run at {self._worker.scheduler.address}; Ctrl-C drains it")

    def card(self) -> WorkerCard:
        if not self._is_known:
            self._say("a run has found it")
        self._is_known = True
        address = self._worker.contact_address or self._worker.address
        return make_card(self.name, address, self._terms, self._devices)

    def leave(self, reason: str) -> None:
        """Say so, and go when dismissed or after drain_s, at once if no run has seen the card."""
        if self._is_leaving or self._is_ending:
            return
        self._is_leaving = True
        if not self._is_known:
            self.end(DRAINED, f"leaves ({reason}); no run had found it")
            return
        message = {"kind": "leaving", "name": self.name, "reason": reason}
        self._worker.log_event(TOPIC, message)
        drain_s = self._terms.drain_s
        self._say(f"leaves ({reason}) within {drain_s:g} s; Ctrl-C ends it at once")
        told = f"has left after {drain_s:g} s, the time it had for draining"
        self._loop.call_later(drain_s, self.end, DRAINED, told)

    def dismiss(self, reason: str) -> None:
        self.end(DRAINED, f"is dismissed: {reason}")

    def renew(self, reason: str) -> None:
        """Whoever started it may start it again."""
        self.end(LOST, f"must begin anew: {reason}")

    def refuse(self, reason: str) -> None:
        self.end(REFUSED, f"is refused: {reason}")

    def end(self, code: int, sentence: str) -> None:
        """Say why, and end the process a moment later; the first reason counts."""
        if self._is_ending:
            return
        self._is_ending = True
        self._say(sentence)
        self._do(self._end(code))

    async def _end(self, code: int) -> None:
        """Take leave of the scheduler. Dask may end the loop before that is through."""
        try:
            await asyncio.sleep(ANSWERED_WITHIN_S)
            async with asyncio.timeout(CLOSES_WITHIN_S):
                await self._worker.close(executor_wait=False, reason="elastic-worker-ends")
        finally:
            end_process(code)

    async def _tell_leases(self) -> None:
        while True:
            self._worker.log_event(TOPIC, {"kind": "lease", "name": self.name})
            await asyncio.sleep(self._terms.lease_s / 4)

    async def _watch_scheduler(self) -> None:
        """End when the scheduler has not answered for grace_s, before the first time as well. Time
        in which this process itself stood still is not the scheduler's."""
        look_s = min(LOOK_S, self._terms.grace_s / 4)
        silent_s = 0.0
        while silent_s < self._terms.grace_s:
            began_s = time.monotonic()
            await asyncio.sleep(look_s)
            answered = await self._scheduler_answers(look_s)
            silent_s += min(time.monotonic() - began_s, 2 * look_s)
            silent_s = 0.0 if answered else silent_s
        address, grace_s = self._worker.scheduler.address, self._terms.grace_s
        self.end(LOST, f"ends: the scheduler at {address} has not answered for {grace_s:g} s")

    async def _scheduler_answers(self, within_s: float) -> bool:
        address = self._worker.scheduler.address
        try:
            async with asyncio.timeout(within_s):
                await self._worker.scheduler.identity(n_workers=0)
        except FatalCommClosedError:
            self.refuse(f"{address} lets in who has the run's certificate; {CERTIFICATE_NEEDED}")
        except (OSError, TimeoutError):  # Dask's errors of communication are OSErrors
            if address.startswith("tcp://") and await asyncio.to_thread(speaks_tls, address):
                self.refuse(f"{address} takes nothing but TLS; {CERTIFICATE_NEEDED}")
        else:
            return True
        return False

    async def _watch_notice(self, where: str) -> None:
        await notice_given(where)
        self.leave(f"notice at {where}")

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Ctrl-C ends an elastic worker that leaves already; a second SIGTERM is patient."""
        if number == signal.SIGINT and (self._is_leaving or self._is_ending):
            end_process(INTERRUPTED)
        self._loop.call_soon_threadsafe(self.leave, signal.Signals(number).name)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Start it beside the worker's own work."""
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def _say(self, sentence: str) -> None:
        with suppress(OSError):  # its reader is gone, and this process may be about to follow
            print(f"elastic worker {self.name} {sentence}", file=sys.stderr, flush=True)


def end_with(parent: int) -> None:
    """Be drained when the process `parent`, which started this one, is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        raise ValueError(
            f"--parent must be the process that started this one, {os.getppid()}, got {parent};"
            " it has ended, or leave the option out"
        )


def check_worker(worker: Worker) -> None:
    """ValueError where the Dask worker was not started as an elastic worker must be."""
    if worker.nanny is not None:
        raise ValueError(
            "an elastic worker must have no nanny, which would start it again: give --no-nanny"
        )
    if not worker.state.total_resources.get(RESOURCE):
        raise ValueError(f"an elastic worker must be known for one: give --resources {RESOURCE}=1")
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("an elastic worker must be a process of its own, which signals can reach")


@click.command()
@click.option(
    "--price-class", default=PRICE_CLASS, show_default=True, help="What its devices cost."
)
@click.option("--token-file", default="", help="File with the run's token.")
@click.option(
    "--drain-s",
    default=DRAIN_S,
    type=click.FloatRange(min=0.0),
    show_default=True,
    help="Seconds that it takes to leave.",
)
@click.option(
    "--lease-s", default=LEASE_S, type=TIME, show_default=True, help="Seconds it may be silent."
)
@click.option(
    "--grace-s", default=GRACE_S, type=TIME, show_default=True, help="Seconds without a scheduler."
)
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
    """Make an elastic worker of the worker. Dask would go on without one after an error, so the
    process ends."""
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
    elastic_worker = worker.extensions[EXTENSION] = WorkerExtension(worker, terms)
    elastic_worker.begin(spot_notice)


def dask_teardown(worker: Worker) -> None:
    """The worker ends; for an elastic worker that has not said so itself the scheduler is gone, or
    wants it no more."""
    worker.extensions[EXTENSION].end(LOST, "ends: its connection to the scheduler has ended")
