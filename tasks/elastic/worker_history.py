"""What elastic workers did in a run, step by step and over all attempts at it.

keeper: who is there ─┐
rows of a step ───────┼─▶ WorkerHistory ─▶ figures of the step, report/members.json, knocks.json
earlier attempts ─────┘
"""

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
from tasks.elastic.worker_events import AdmittedWorker
from tasks.elastic.worker_limits import LIMITS


class WorkerHistory:
    """The elastic workers of one run."""

    def __init__(
        self,
        store: Store,
        read: Callable[[], Sequence[AdmittedWorker]],
        knocks: Callable[[], Sequence[DeniedRequest]] = lambda: (),
    ) -> None:
        """read: those of this attempt, as they are now. knocks: who has asked for weights without a
        right since it began."""
        self._store, self._read, self._knocks = store, read, knocks
        self._before = tuple(map(_ended, read_elastic_workers(store)))
        self._knocks_before = read_denied_requests(store)
        self._responses, self._tokens = Counter[str](), Counter[str]()
        # that a step has told of
        self._joined, self._gone, self._late = set[str](), set[str](), set[str]()

    @property
    def members(self) -> tuple[ElasticWorkerRow, ...]:
        """All that ever came, with what they did in the steps that were entered."""
        return (*self._before, *(self._line(elastic_worker) for elastic_worker in self._read()))

    @property
    def elastic_workers(self) -> Sequence[AdmittedWorker]:
        """Those of this attempt, as they are now."""
        return self._read()

    @property
    def generations(self) -> Mapping[str, int]:
        """How often each worker came in earlier attempts at the run."""
        return Counter(line.worker for line in self._before)

    def keep(self) -> None:
        """Write them down, and who knocked; without any there is nothing to write."""
        if members := self.members:
            keep_elastic_workers(self._store, members)
        if knocks := self._knocks():
            keep_denied_requests(self._store, (*knocks, *self._knocks_before))

    def enter(self, rows: Sequence[ResponseRow]) -> dict[str, float]:
        """The figures of a step with these responses, since the one before."""
        elastic_workers = self._read()
        names = {elastic_worker.name for elastic_worker in elastic_workers}
        num_before = self._tokens.total()
        for generated in (row.response.generated for row in rows):
            if generated.engine in names:
                self._responses[generated.engine] += generated.finish_reason != "aborted"
                self._tokens[generated.engine] += generated.num_sampled
        joined = {
            elastic_worker.name
            for elastic_worker in elastic_workers
            if elastic_worker.version is not None
        } - self._joined
        self._joined |= joined
        gone = [
            elastic_worker
            for elastic_worker in elastic_workers
            if elastic_worker.state == "gone" and elastic_worker.name in self._joined
        ]
        lost = {elastic_worker.name for elastic_worker in gone} - self._gone
        self._gone |= lost
        return {
            "elastic/present": float(
                sum(elastic_worker.state == "present" for elastic_worker in elastic_workers)
            ),
            "elastic/pull_s": max(
                (
                    elastic_worker.took.pull_s
                    for elastic_worker in elastic_workers
                    if elastic_worker.state == "present"
                ),
                default=0.0,
            ),
            "elastic/tokens": float(self._tokens.total() - num_before),
            "elastic/joined": float(len(joined)),
            "elastic/lost": float(len(lost)),
            **self._missed(elastic_workers),
        }

    def _missed(self, elastic_workers: Sequence[AdmittedWorker]) -> dict[str, float]:
        """How many have missed which limit since the step before."""
        new = [
            elastic_worker
            for elastic_worker in elastic_workers
            if elastic_worker.missed and elastic_worker.name not in self._late
        ]
        self._late |= {elastic_worker.name for elastic_worker in new}
        missed = Counter(elastic_worker.missed for elastic_worker in new)
        return {f"elastic/missed_{limit}": float(missed[limit]) for limit in LIMITS}

    def _line(self, elastic_worker: AdmittedWorker) -> ElasticWorkerRow:
        return ElasticWorkerRow(
            name=elastic_worker.name,
            worker=elastic_worker.worker,
            price_class=elastic_worker.price_class,
            devices=elastic_worker.devices,
            state=elastic_worker.state,
            since_s=elastic_worker.since_s,
            until_s=elastic_worker.until_s,
            version=elastic_worker.version,
            reason=elastic_worker.reason,
            joined_s=elastic_worker.joined_s,
            build_s=elastic_worker.took.build_s,
            pull_s=elastic_worker.took.pull_s,
            load_s=elastic_worker.took.load_s,
            num_responses=self._responses[elastic_worker.name],
            num_tokens=self._tokens[elastic_worker.name],
        )


def _ended(line: ElasticWorkerRow) -> ElasticWorkerRow:
    """An elastic worker of an earlier attempt, of which nobody could say any more when it went."""
    if line.state == "gone":
        return line
    return replace(line, state="gone", reason="that attempt at the run ended")
