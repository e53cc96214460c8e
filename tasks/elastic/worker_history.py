"""What guests did in a run, step by step and over all attempts at it.

keeper: who is there ─┐
rows of a step ───────┼─▶ WorkerHistory ─▶ figures of the step, report/members.json, knocks.json
earlier attempts ─────┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from artifacts.reports.denied_requests import (
    DeniedRequest,
    keep_denied_requests,
    read_denied_requests,
)
from artifacts.reports.elastic_workers import (
    ElasticWorkerRow,
    keep_elastic_workers,
    read_elastic_workers,
)
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.elastic.worker_events import AdmittedWorker
from tasks.elastic.worker_limits import LIMITS


class WorkerHistory:
    """The guests of one run."""

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
        return (*self._before, *(self._line(guest) for guest in self._read()))

    @property
    def guests(self) -> Sequence[AdmittedWorker]:
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
        guests = self._read()
        names = {guest.name for guest in guests}
        num_before = self._tokens.total()
        for generated in (row.response.generated for row in rows):
            if generated.engine in names:
                self._responses[generated.engine] += generated.finish_reason != "aborted"
                self._tokens[generated.engine] += generated.num_sampled
        joined = {guest.name for guest in guests if guest.version is not None} - self._joined
        self._joined |= joined
        gone = [guest for guest in guests if guest.state == "gone" and guest.name in self._joined]
        lost = {guest.name for guest in gone} - self._gone
        self._gone |= lost
        return {
            "guests/present": float(sum(guest.state == "present" for guest in guests)),
            "guests/pull_s": max(
                (guest.took.pull_s for guest in guests if guest.state == "present"), default=0.0
            ),
            "guests/tokens": float(self._tokens.total() - num_before),
            "guests/joined": float(len(joined)),
            "guests/lost": float(len(lost)),
            **self._missed(guests),
        }

    def _missed(self, guests: Sequence[AdmittedWorker]) -> dict[str, float]:
        """How many have missed which limit since the step before."""
        new = [guest for guest in guests if guest.missed and guest.name not in self._late]
        self._late |= {guest.name for guest in new}
        missed = Counter(guest.missed for guest in new)
        return {f"guests/missed_{limit}": float(missed[limit]) for limit in LIMITS}

    def _line(self, guest: AdmittedWorker) -> ElasticWorkerRow:
        return ElasticWorkerRow(
            name=guest.name,
            worker=guest.worker,
            price_class=guest.price_class,
            devices=guest.devices,
            state=guest.state,
            since_s=guest.since_s,
            until_s=guest.until_s,
            version=guest.version,
            reason=guest.reason,
            joined_s=guest.joined_s,
            build_s=guest.took.build_s,
            pull_s=guest.took.pull_s,
            load_s=guest.took.load_s,
            num_responses=self._responses[guest.name],
            num_tokens=self._tokens[guest.name],
        )


def _ended(line: ElasticWorkerRow) -> ElasticWorkerRow:
    """A guest of an earlier attempt, of which nobody could say any more when it went."""
    if line.state == "gone":
        return line
    return replace(line, state="gone", reason="that attempt at the run ended")
