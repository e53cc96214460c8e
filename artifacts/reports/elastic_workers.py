"""Records of a run's elastic workers and of unauthorised requests for its weights: how they are
stored and shown.
keeper        ─▶ ElasticWorkerRow ─▶ report/members.json ─▶ page, Prefect table, terminal
weight server ─▶ DeniedRequest    ─▶ report/knocks.json  ─▶ page
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from artifacts.layout import DENIED_REQUESTS, ELASTIC_WORKERS, report_file
from artifacts.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticWorkerRow:
    """The last reported state of one elastic worker's engine."""

    name: str  # of the engine: the worker's name, and the number of its process
    worker: str  # name that the owner gave the worker
    price_class: str  # class of its price for an hour
    devices: tuple[str, ...]  # devices of the engine
    state: str  # building, present, leaving, gone
    since_s: float  # time of its admission, Unix seconds
    until_s: float | None  # time of its end, Unix seconds; None while it is there, or if unknown
    version: int | None  # weight version that it held last; None before the first
    reason: str  # of leaving, or of its end; empty while it stays
    joined_s: float | None = None  # time at which it first held weights, Unix seconds
    build_s: float = 0.0  # seconds to build its engine, the transfer of the model's folder included
    pull_s: float = 0.0  # seconds to transfer the version that it held last
    load_s: float = 0.0  # seconds to load that version into the engine
    num_responses: int = 0  # finished in committed steps
    num_tokens: int = 0  # sampled in committed steps


def keep_elastic_workers(store: Store, workers: Sequence[ElasticWorkerRow]) -> None:
    """Write the records to the run's report folder, in place of earlier ones."""
    store.write(
        report_file(ELASTIC_WORKERS), json.dumps([*map(asdict, workers)], indent=1).encode()
    )


def read_elastic_workers(store: Store) -> tuple[ElasticWorkerRow, ...]:
    """Read the records that were written last; empty for a run without elastic workers."""
    kept = json.loads(store.read_if_there(report_file(ELASTIC_WORKERS)) or "[]")
    return tuple(ElasticWorkerRow(**line | {"devices": tuple(line["devices"])}) for line in kept)


def elastic_worker_rows(
    workers: Sequence[ElasticWorkerRow], now_s: float
) -> list[dict[str, object]]:
    """The rows of the table of elastic workers, as cells by column name."""
    return [
        {
            "elastic": worker.name,
            "price": worker.price_class,
            "devices": " ".join(worker.devices),
            "state": worker.state,
            # empty for a worker that went unnoticed
            "there s": ""
            if worker.state == "gone" and worker.until_s is None
            else round((worker.until_s or now_s) - worker.since_s),
            "build s": round(worker.build_s, 1),
            "pull s": round(worker.pull_s, 2),
            "load s": round(worker.load_s, 2),
            "version": "" if worker.version is None else worker.version,
            "responses": worker.num_responses,
            "tokens": worker.num_tokens,
            "why": worker.reason,
        }
        for worker in workers
    ]


def elastic_workers_summary(workers: Sequence[ElasticWorkerRow]) -> str:
    """One line on the elastic workers, for a terminal; empty if there are none."""
    if not workers:
        return ""
    states = Counter(worker.state for worker in workers)
    present = [worker.name for worker in workers if worker.state == "present"]
    parts = [f"{count} {state}" for state, count in states.most_common()]
    names = f" ({', '.join(present)})" if present else ""
    tokens = sum(worker.num_tokens for worker in workers)
    return f"elastic workers: {', '.join(parts)}{names}, {tokens:,} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedRequest:
    """Unauthorised requests for weights from one address, refused for one reason."""

    address: str  # of the connection, never of a header
    reason: str  # a sentence
    count: int  # number of requests
    last_s: float  # time of the last one, Unix seconds


def keep_denied_requests(store: Store, denied: Sequence[DeniedRequest]) -> None:
    """Write the records to the run's report folder, in place of earlier ones."""
    store.write(report_file(DENIED_REQUESTS), json.dumps([*map(asdict, denied)], indent=1).encode())


def read_denied_requests(store: Store) -> tuple[DeniedRequest, ...]:
    """Read the records that were written last; empty for a run without such requests."""
    kept = json.loads(store.read_if_there(report_file(DENIED_REQUESTS)) or "[]")
    return tuple(DeniedRequest(**line) for line in kept)


def denied_requests_summary(denied: Sequence[DeniedRequest]) -> list[str]:
    """One sentence for each record, for the page."""
    return [
        f"{request.address} was refused weights"
        f" {'once' if request.count == 1 else f'{request.count} times'}, at last on"
        f" {datetime.fromtimestamp(request.last_s, UTC):%Y-%m-%d %H:%M} UTC: {request.reason}"
        for request in denied
    ]
