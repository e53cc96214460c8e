"""Records of questions to judge models and of their judgements, which a resumed run reads from
Parquet, a part for each attempt at a round.

A judgement is found by its question's key, a hash over everything that decides the judgement. So a
file may be read into any run, and a run asks a question only once. Leaves out the judges.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from artifacts.layout import JUDGEMENTS, partition
from artifacts.store import RESTORE, Store

SCHEMA_VERSION = b"1"
VERSION_KEY = b"rollflow.judgements_version"

ASK_AGAIN = f"{RESTORE}, or delete it: what it says is asked again"

JudgeMode = Literal["yes_no", "generative"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeQuestion:
    """A question to a judge about one answer. Its texts must never be tokenised into special tokens
    of the judge's model."""

    key: str  # names the question and everything that decides its verdict
    before: str  # rubric, question and gold, and the opening delimiter
    answer: str  # what is judged; the only part that is cut when the whole is too long
    after: str  # the closing delimiter and what to reply
    mode: JudgeMode  # one constrained token, or a JSON object
    yes: str  # word that says the answer is right
    no: str  # word that says it is not
    max_new_tokens: int  # bound on what the judge may write


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judge's reply to one question."""

    key: str  # the question's
    # probability that the answer is right, 0..1; None if no verdict was reached
    p_yes: float | None
    prompt_tokens: int  # tokens that the judge read
    new_tokens: int  # tokens that it wrote
    detail: str  # why there is no verdict; empty if there is one


def judgements_to_parquet(judgements: Iterable[Judgement]) -> bytes:
    """The judgements as a file of this version."""
    import pyarrow as pa  # here, because every command reads the settings of judges
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("key", pa.string()),
            ("p_yes", pa.float64()),
            ("prompt_tokens", pa.int32()),
            ("new_tokens", pa.int32()),
            ("detail", pa.string()),
        ],
        {VERSION_KEY: SCHEMA_VERSION},
    )
    sink = io.BytesIO()
    rows = pa.Table.from_pylist([*map(asdict, judgements)], schema=schema)
    pq.write_table(rows, sink, compression="zstd")
    return sink.getvalue()


def judgements_from_parquet(data: bytes) -> list[Judgement]:
    """Read the judgements of a file. Raises ValueError for a file of another version."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(io.BytesIO(data)).read()
    found = (table.schema.metadata or {}).get(VERSION_KEY, b"none")
    if found != SCHEMA_VERSION:
        raise ValueError(
            f"the file must hold judgements of version {SCHEMA_VERSION.decode()}, got"
            f" {found.decode()}; read it with the code that wrote it"
        )
    return [Judgement(**row) for row in table.to_pylist()]


class JudgementCache:
    """The verdicts of a run, by question. A judgement without a verdict is not kept, so that its
    question is asked again."""

    def __init__(self, known: Iterable[Judgement] = ()) -> None:
        self._known = {judgement.key: judgement for judgement in known}
        self._unsaved: list[Judgement] = []

    @classmethod
    def read(cls, stores: Iterable[Store]) -> JudgementCache:
        """Read the judgements that earlier rounds saved in these stores."""
        return cls(
            judgement
            for store in stores
            for name in store.list(JUDGEMENTS)
            for judgement in _read(store, f"{JUDGEMENTS}/{name}")
        )

    def of_round(self) -> JudgementCache:
        """A view of these verdicts for one round. All views share verdicts, also those added later;
        `save` of a view writes only the verdicts that were added through it."""
        shared = JudgementCache()
        shared._known = self._known
        return shared

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Judgement | None:
        """The judgement of the question with this key, or None."""
        return self._known.get(key)

    def add(self, judgement: Judgement) -> None:
        """Keep a judgement if it has a verdict and its question had none yet."""
        if judgement.p_yes is not None and judgement.key not in self._known:
            self._known[judgement.key] = judgement
            self._unsaved.append(judgement)

    def save(self, store: Store, step: int) -> None:
        """Write the verdicts since the last `save` as one more part of the step."""
        unsaved, self._unsaved = self._unsaved, []
        if not unsaved:
            return
        first = len(store.list(partition(JUDGEMENTS, step)))
        store.keep_part(JUDGEMENTS, step, first, judgements_to_parquet(unsaved))


def kept_judgements(store: Store, step: int) -> list[Judgement]:
    """Read the judgements of a round, those of all attempts at it."""
    return list(_read(store, partition(JUDGEMENTS, step)))


def _read(store: Store, directory: str) -> Iterable[Judgement]:
    for part in store.list(directory):
        yield from store.parsed(f"{directory}/{part}", judgements_from_parquet, ASK_AGAIN)
