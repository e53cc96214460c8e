"""The work of elastic workers in a run, step by step and over all attempts at the run: figures of
steps, report/members.json and knocks.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from artifacts.reports.elastic_workers import (
    DeniedRequest,
    ElasticWorkerRow,
    keep_denied_requests,
    keep_elastic_workers,
    read_denied_requests,
    read_elastic_workers,
)
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.elastic.config import LIMITS
from tasks.elastic.worker_events import AdmittedWorker


class WorkerHistory:
    """The elastic workers of one run."""

    def __init__(
        self,
        store: Store,
        read_workers: Callable[[], Sequence[AdmittedWorker]],
        read_denied: Callable[[], Sequence[DeniedRequest]] = lambda: (),
    ) -> None:
        """read_workers: returns the elastic workers of this attempt, in their present state.
        read_denied: returns the unauthorised weight requests of this attempt."""
        self._store, self._read, self._read_denied = store, read_workers, read_denied
        self._before = tuple(map(_ended, read_elastic_workers(store)))
        self._denied_before = read_denied_requests(store)
        self._responses, self._tokens = Counter[str](), Counter[str]()
        # names that the figures of a step have counted
        self._joined, self._gone, self._late = set[str](), set[str](), set[str]()

    @property
    def rows(self) -> tuple[ElasticWorkerRow, ...]:
        """A row for each elastic worker of every attempt, with counts of the recorded steps."""
        return (*self._before, *map(self._row, self._read()))

    @property
    def workers(self) -> Sequence[AdmittedWorker]:
        """The elastic workers of this attempt, in their present state."""
        return self._read()

    @property
    def generations(self) -> Mapping[str, int]:
        """How often each Dask worker was admitted in earlier attempts at the run."""
        return Counter(row.worker for row in self._before)

    def save(self) -> None:
        """Write the elastic workers and denied weight requests, if any, to the store."""
        if rows := self.rows:
            keep_elastic_workers(self._store, rows)
        if denied := self._read_denied():
            keep_denied_requests(self._store, (*denied, *self._denied_before))

    def record_step(self, rows: Sequence[ResponseRow]) -> dict[str, float]:
        """Count a step with these responses; returns the figures `elastic/...` since the last."""
        workers = self._read()
        names = {worker.name for worker in workers}
        num_before = self._tokens.total()
        for generated in (row.response.generated for row in rows):
            if generated.engine in names:
                self._responses[generated.engine] += generated.finish_reason != "aborted"
                self._tokens[generated.engine] += generated.num_sampled
        present = [worker for worker in workers if worker.state == "present"]
        joined = {worker.name for worker in workers if worker.version is not None} - self._joined
        self._joined |= joined
        gone = {worker.name for worker in workers if worker.state == "gone"} & self._joined
        lost = gone - self._gone
        self._gone |= lost
        late = [worker for worker in workers if worker.missed and worker.name not in self._late]
        self._late |= {worker.name for worker in late}
        missed = Counter(worker.missed for worker in late)
        return {
            "elastic/present": float(len(present)),
            "elastic/pull_s": max((worker.took.pull_s for worker in present), default=0.0),
            "elastic/tokens": float(self._tokens.total() - num_before),
            "elastic/joined": float(len(joined)),
            "elastic/lost": float(len(lost)),
            **{f"elastic/missed_{limit}": float(missed[limit]) for limit in LIMITS},
        }

    def _row(self, worker: AdmittedWorker) -> ElasticWorkerRow:
        return ElasticWorkerRow(
            name=worker.name,
            worker=worker.dask_name,
            price_class=worker.price_class,
            devices=worker.devices,
            state=worker.state,
            since_s=worker.since_s,
            until_s=worker.until_s,
            version=worker.version,
            reason=worker.reason,
            joined_s=worker.joined_s,
            build_s=worker.took.build_s,
            pull_s=worker.took.pull_s,
            load_s=worker.took.load_s,
            num_responses=self._responses[worker.name],
            num_tokens=self._tokens[worker.name],
        )


def _ended(row: ElasticWorkerRow) -> ElasticWorkerRow:
    """Mark a row of an earlier attempt as gone: that attempt ended before it could record this."""
    if row.state == "gone":
        return row
    return replace(row, state="gone", reason="that attempt at the run ended")
