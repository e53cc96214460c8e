"""States of environment processes, by pool and for each process: how they are stored and shown.
pools publish PoolState ─▶ report/hosts.json ─▶ page, Prefect table, terminal
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from artifacts.layout import ENVIRONMENT_PROCESSES, report_file
from artifacts.store import Store

EARLIER_NAMES = {"hosts": "processes", "told_s": "reported_s"}  # of fields, in earlier versions


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """The state of one slot of a pool, and of the process in it."""

    number: int  # from 1 on
    state: str  # free, resetting, thinking, stepping, dead
    for_s: float  # seconds since it has this state
    age_s: float | None  # seconds since its process began; None without a process
    episode: str  # id of the response that it plays; empty without one
    kind: str  # class of its environment's settings
    num_steps: int  # answered steps
    mean_s: float  # wall seconds of a step
    p95_s: float  # wall seconds that 95 % of the steps took at most
    num_restarts: int  # processes in place of one that failed or was killed in a call
    last_failure: str  # in a few words; empty without a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """The last reported state of one pool of environment processes."""

    name: str  # of the worker that holds it
    machine: str  # name of that worker's machine
    reported_s: float  # time of the report, seconds since the epoch
    num_places: int  # processes at a time
    num_waiting: int  # episodes that wait for a place
    num_episodes: int  # begun episodes
    num_steps: int  # requested steps
    num_crashed: int  # calls that the environment crashed
    num_unanswered: int  # calls that the environment did not answer in time
    num_restarts: int  # processes in place of one that failed or was killed in a call
    num_late: int  # answers after the end of their call
    reset_p95_s: float  # wall seconds that 95 % of the resets took at most
    step_p95_s: float  # wall seconds that 95 % of the steps took at most
    processes: tuple[ProcessStatus, ...]  # of the slots that ever had a process

    @property
    def by_state(self) -> Mapping[str, int]:
        """Number of slots by state, the most frequent first."""
        return dict(Counter(process.state for process in self.processes).most_common())


def to_json(pool: PoolState) -> str:
    """Write a pool's state as JSON, for another process or a file."""
    return json.dumps(asdict(pool))


def from_json(text: str) -> PoolState:
    """The inverse of `to_json`."""
    state = json.loads(text)
    for before, now in EARLIER_NAMES.items():
        state |= {now: state.pop(before)} if before in state else {}
    processes = tuple(ProcessStatus(**process) for process in state["processes"])
    return PoolState(**state | {"processes": processes})


def keep_pools(store: Store, pools: Sequence[PoolState]) -> None:
    """Write the states to the run's report folder, in place of earlier ones."""
    lines = json.dumps([to_json(pool) for pool in pools])
    store.write(report_file(ENVIRONMENT_PROCESSES), lines.encode())


def read_pools(store: Store) -> tuple[PoolState, ...]:
    """Read the states that were written last; empty for a run without environments."""
    kept = store.read_if_there(report_file(ENVIRONMENT_PROCESSES)) or "[]"
    return tuple(map(from_json, json.loads(kept)))


def process_rows(pools: Sequence[PoolState], now_s: float) -> list[dict[str, object]]:
    """The rows of the table of environment processes, as cells by column name."""
    return [
        {
            "worker": pool.name,
            "process": process.number,
            "state": process.state,
            "for s": round(process.for_s),
            "age s": "" if process.age_s is None else round(process.age_s),
            "steps": process.num_steps,
            "mean ms": round(1000 * process.mean_s, 1),
            "p95 ms": round(1000 * process.p95_s, 1),
            "restarts": process.num_restarts,
            "last failure": process.last_failure,
            "reported s ago": round(now_s - pool.reported_s),
        }
        for pool in pools
        for process in pool.processes
    ]


def pools_summary(pools: Sequence[PoolState]) -> str:
    """One line on the pools, for a terminal; empty if there are none."""
    if not pools:
        return ""
    states = Counter(process.state for pool in pools for process in pool.processes)
    parts = [f"{count} {state}" for state, count in states.most_common()] or ["none started"]
    if waiting := sum(pool.num_waiting for pool in pools):
        parts.append(f"{waiting} episodes wait for one")
    if failures := sum(pool.num_crashed + pool.num_unanswered for pool in pools):
        parts.append(f"{failures} failures")
    if restarts := sum(pool.num_restarts for pool in pools):
        parts.append(f"{restarts} restarts")
    slowest_s = max(pool.step_p95_s for pool in pools)
    parts.append(f"95 % of steps within {1000 * slowest_s:.3g} ms")
    return f"environment processes: {', '.join(parts)}"
