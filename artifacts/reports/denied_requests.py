"""Who asked for weights without a right, as it is kept and shown.

weight server ─▶ Knock ─▶ report/knocks.json ─▶ page
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from artifacts.layout import KNOCKS, report_file
from artifacts.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedRequest:
    """What somebody without a right asked for, as often as it did for one reason."""

    address: str  # as the connection has it, never as a header claims
    reason: str  # a sentence
    count: int  # how often
    last_s: float  # Unix seconds


def keep_denied_requests(store: Store, knocks: Sequence[DeniedRequest]) -> None:
    """Keep them in the run's report folder, in place of what was kept before."""
    store.write(report_file(KNOCKS), json.dumps([*map(asdict, knocks)], indent=1).encode())


def read_denied_requests(store: Store) -> tuple[DeniedRequest, ...]:
    """What was kept last; nothing of a run at which nobody knocked."""
    try:
        kept = json.loads(store.read(report_file(KNOCKS)))
    except FileNotFoundError:
        return ()
    return tuple(DeniedRequest(**line) for line in kept)


def denied_requests_summary(knocks: Sequence[DeniedRequest]) -> list[str]:
    """A sentence for each."""
    return [*map(_told, knocks)]


def _told(knock: DeniedRequest) -> str:
    often = "once" if knock.count == 1 else f"{knock.count} times"
    last = f"{datetime.fromtimestamp(knock.last_s, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{knock.address} was refused weights {often}, at last on {last}: {knock.reason}"
