"""The engines that a run did not start, as they are kept and shown: who, since when, and what each
did.

keeper ─▶ ElasticWorkerRow ─▶ report/members.json ─▶ page, Prefect table, terminal
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from artifacts.layout import MEMBERS, report_file
from artifacts.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticWorkerRow:
    """One elastic worker."""

    name: str  # of its engine: the worker's, and which of its processes it was
    worker: str  # name that its owner gave the worker
    price_class: str  # what an hour of it costs, by the name of the price
    devices: tuple[str, ...]  # that its engine works on
    state: str  # building, present, leaving, gone
    since_s: float  # when it was admitted, Unix seconds
    until_s: float | None  # when it was gone
    version: int | None  # weights that it held last; None before the first
    reason: str  # why it leaves or is gone; empty while it stays
    joined_s: float | None = None  # when it held weights for the first time, Unix seconds
    build_s: float = 0.0  # its engine took, with the model's folder on the way there
    pull_s: float = 0.0  # the version that it held last took on the way there
    load_s: float = 0.0  # and into the engine
    num_responses: int = 0  # that it ended, in steps that are committed
    num_tokens: int = 0  # that it sampled, in these


def keep_elastic_workers(store: Store, members: Sequence[ElasticWorkerRow]) -> None:
    """Keep them in the run's report folder, in place of what was kept before."""
    store.write(report_file(MEMBERS), json.dumps([*map(asdict, members)], indent=1).encode())


def read_elastic_workers(store: Store) -> tuple[ElasticWorkerRow, ...]:
    """What was kept last; nothing of a run without elastic workers."""
    try:
        kept = json.loads(store.read(report_file(MEMBERS)))
    except FileNotFoundError:
        return ()
    return tuple(ElasticWorkerRow(**line | {"devices": tuple(line["devices"])}) for line in kept)


def present_workers(store: Store) -> set[str]:
    """Workers whose engine rounds may ask."""
    return {member.worker for member in read_elastic_workers(store) if member.state == "present"}


def elastic_worker_rows(
    members: Sequence[ElasticWorkerRow], now_s: float
) -> list[dict[str, object]]:
    """A row for each, for a table."""
    return [
        {
            "elastic": member.name,
            "price": member.price_class,
            "devices": " ".join(member.devices),
            "state": member.state,
            "there s": _there_s(member, now_s),
            "build s": round(member.build_s, 1),
            "pull s": round(member.pull_s, 2),
            "load s": round(member.load_s, 2),
            "version": "" if member.version is None else member.version,
            "responses": member.num_responses,
            "tokens": member.num_tokens,
            "why": member.reason,
        }
        for member in members
    ]


def _there_s(member: ElasticWorkerRow, now_s: float) -> int | str:
    """Whole seconds; empty of one that went when nobody looked."""
    if member.state == "gone" and member.until_s is None:
        return ""
    return round((member.until_s or now_s) - member.since_s)


def elastic_workers_summary(members: Sequence[ElasticWorkerRow]) -> str:
    """All of them in a line, for a terminal; empty where there are none."""
    if not members:
        return ""
    states = Counter(member.state for member in members)
    present = [member.name for member in members if member.state == "present"]
    parts = [f"{count} {state}" for state, count in states.most_common()]
    names = f" ({', '.join(present)})" if present else ""
    tokens = sum(member.num_tokens for member in members)
    return f"elastic workers: {', '.join(parts)}{names}, {tokens:,} tokens"
