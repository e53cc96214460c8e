"""The states of environment hosts as they are kept and shown: by pool, and of each place in it.

pools publish PoolState ─▶ report/hosts.json ─▶ page, Prefect table, terminal
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from artifacts.layout import HOSTS, report_file
from artifacts.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """One place for a process."""

    number: int  # from 1 on
    state: str  # free, resetting, thinking, stepping, dead
    for_s: float  # how long it has been so
    age_s: float | None  # of its process; None without one
    episode: str  # empty without one
    kind: str  # class of its environment's settings
    num_steps: int  # that were answered
    mean_s: float  # wall seconds of a step
    p95_s: float  # wall seconds that 95 % of the steps took at most
    num_restarts: int  # processes in place of one that failed or was killed in a call
    last_failure: str  # in a few words; empty without one


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One pool, as it last said."""

    name: str  # of the worker that holds it
    machine: str  # host name of that
    told_s: float  # when it said so, seconds since the epoch
    num_places: int  # processes at a time
    num_waiting: int  # episodes that wait for a place
    num_episodes: int  # that began
    num_steps: int  # that were asked for
    num_crashed: int  # calls that ended so
    num_unanswered: int  # calls that ended so
    num_restarts: int  # processes in place of one that failed or was killed in a call
    num_late: int  # answers after the end of their call
    reset_p95_s: float  # wall seconds that 95 % of the resets took at most
    step_p95_s: float  # wall seconds that 95 % of the steps took at most
    hosts: tuple[HostLine, ...]  # places that ever had a process

    @property
    def by_state(self) -> Mapping[str, int]:
        """Places by state, the most frequent first."""
        return dict(Counter(host.state for host in self.hosts).most_common())


def to_json(pool: PoolState) -> str:
    """For another process, or a file."""
    return json.dumps(asdict(pool))


def from_json(text: str) -> PoolState:
    """The inverse of `to_json`."""
    told = json.loads(text)
    return PoolState(**told | {"hosts": tuple(HostLine(**host) for host in told["hosts"])})


def keep_hosts(store: Store, pools: Sequence[PoolState]) -> None:
    """Keep them in the run's report folder, in place of what was kept before."""
    lines = json.dumps([to_json(pool) for pool in pools])
    store.write(report_file(HOSTS), lines.encode())


def read_hosts(store: Store) -> tuple[PoolState, ...]:
    """What was kept last; nothing of a run without environments."""
    try:
        return tuple(map(from_json, json.loads(store.read(report_file(HOSTS)))))
    except FileNotFoundError:
        return ()


def host_rows(pools: Sequence[PoolState], now_s: float) -> list[dict[str, object]]:
    """A row for each host, for a table."""
    return [
        {
            "worker": pool.name,
            "host": host.number,
            "state": host.state,
            "for s": round(host.for_s),
            "age s": "" if host.age_s is None else round(host.age_s),
            "steps": host.num_steps,
            "mean ms": round(1000 * host.mean_s, 1),
            "p95 ms": round(1000 * host.p95_s, 1),
            "restarts": host.num_restarts,
            "last failure": host.last_failure,
            "told s ago": round(now_s - pool.told_s),
        }
        for pool in pools
        for host in pool.hosts
    ]


def hosts_summary(pools: Sequence[PoolState]) -> str:
    """All of them in a line, for a terminal; empty where there are none."""
    if not pools:
        return ""
    states: Counter[str] = Counter()
    for pool in pools:
        states.update(pool.by_state)
    parts = [f"{count} {state}" for state, count in states.most_common()] or ["none started"]
    if waiting := sum(pool.num_waiting for pool in pools):
        parts.append(f"{waiting} episodes wait for one")
    if failures := sum(pool.num_crashed + pool.num_unanswered for pool in pools):
        parts.append(f"{failures} failures")
    if restarts := sum(pool.num_restarts for pool in pools):
        parts.append(f"{restarts} restarts")
    slowest_s = max(pool.step_p95_s for pool in pools)
    parts.append(f"95 % of steps within {1000 * slowest_s:.3g} ms")
    return f"environment hosts: {', '.join(parts)}"
