"""The journal stores responses on disk while their step still runs, so that an interrupted step
generates only the missing ones.

    append(generated), append(scored), ... killed ─▶ read(step): the recorded responses
    ─▶ append(generated), ... ─▶ finalise(step, rows): responses/

Callers append rows in batches, because a part costs a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from artifacts import layout
from artifacts.records import Group, Span
from artifacts.store import RESTORE, Store
from artifacts.tables import (
    ResponseRow,
    groups_from_parquet,
    groups_to_parquet,
    responses_from_parquet,
    responses_to_parquet,
    spans_from_parquet,
    spans_to_parquet,
)

GENERATE_AGAIN = f"{RESTORE}, or delete it: the responses in it are generated again"
PLAY_AGAIN = (  # the cure for the tables of a closed round
    f"{RESTORE}; if its step is not committed, delete what there is of it and of later steps in"
    " rounds/, splits/, moments/, groups/ and responses/ instead: that is made again"
)


class Journal:
    """The recorded responses, groups and spans of a run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next_part: dict[int, int] = {}

    def append(self, step: int, rows: Sequence[ResponseRow]) -> str | None:
        """Write rows as one more part of the step's journal; returns the part's name, or None for
        no rows. Several writers may append."""
        if not rows:
            return None
        data = responses_to_parquet(step, rows)
        first = self._next_part.get(step, len(self._parts(step)))
        part = self._store.keep_part(layout.JOURNAL, step, first, data)
        self._next_part[step] = part + 1
        return layout.part_file(layout.JOURNAL, step, part)

    def read(self, step: int) -> list[ResponseRow]:
        """Read every recorded response of a step once, in the order of first appearance: from the
        finalised table if there is one, else from the parts. Of several records of a response, a
        scored one wins, then the later one: rollout and reward append independently, so a score can
        be on disk before the batch in which its response was generated."""
        final = layout.table_file("responses", step)
        if self._store.exists(final):
            return self._store.parsed(final, responses_from_parquet, PLAY_AGAIN)
        latest: dict[str, ResponseRow] = {}
        for part in self._parts(step):
            for row in self._store.parsed(part, responses_from_parquet, GENERATE_AGAIN):
                name, is_scored = row.response.generated.response_id, row.response.score is not None
                if is_scored or name not in latest or latest[name].response.score is None:
                    latest[name] = row
        return list(latest.values())

    def finalise(
        self, step: int, rows: Sequence[ResponseRow], groups: Sequence[Group], spans: Sequence[Span]
    ) -> None:
        """Write the step's three tables. Calling `finalise` again with the same records changes
        nothing; call `drop_parts` when all writers have ended."""
        self._store.keep(layout.table_file("groups", step), groups_to_parquet(step, groups))
        self._store.keep(layout.table_file("spans", step), spans_to_parquet(step, spans))
        self._store.keep(layout.table_file("responses", step), responses_to_parquet(step, rows))

    def drop_parts(self, step: int) -> None:
        """Delete the parts of a finalised step, after its last `append`."""
        self._store.delete(layout.partition(layout.JOURNAL, step))
        self._next_part.pop(step, None)

    def steps(self) -> list[int]:
        """Every step with recorded responses, in order; the last one may still run."""
        return layout.steps_of((*self._store.list("responses"), *self._store.list(layout.JOURNAL)))

    def read_groups(self, step: int, rows: Iterable[ResponseRow] | None = None) -> list[Group]:
        """The trained groups in training order: all that a replay of the step's training needs.
        `rows`: the result of `read`, if the caller has it already. Raises ValueError if the table
        of responses is missing."""
        if rows is None:
            final = layout.table_file("responses", step)
            if not self._store.exists(final):
                raise ValueError(
                    f"the responses of step {step} must be in {self._store.url}/{final}, which is"
                    f" not there; {PLAY_AGAIN}"
                )
            rows = self.read(step)
        return self._store.parsed(
            layout.table_file("groups", step),
            lambda data: groups_from_parquet(data, rows),
            PLAY_AGAIN,
        )

    def read_spans(self, step: int) -> list[Span]:
        return self._store.parsed(layout.table_file("spans", step), spans_from_parquet, PLAY_AGAIN)

    def _parts(self, step: int) -> list[str]:
        directory = layout.partition(layout.JOURNAL, step)
        return [f"{directory}/{name}" for name in self._store.list(directory)]
