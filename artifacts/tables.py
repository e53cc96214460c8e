"""The tables that are kept and their records: responses, groups and spans, as Parquet with
explicit, versioned schemas.

    records -> table -> Parquet bytes -> table -> records, equal to the ones before, bit for bit

Split into byte streams, the zero bytes of log-probabilities that were float32 compress to nothing.
`step` is no column of the files: it is the Hive partition they lie in (see `layout`) and an entry
of their metadata. Leaves out the columns themselves (`columns`) and where the bytes go (`journal`,
`store`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.columns import (
    END,
    GENERATED,
    KIND,
    MEMBERS,
    PROMPT,
    SCORE,
    SPAN,
    TABLES,
    Row,
    cells_of,
    fields_of,
)
from artifacts.layout import TableName
from artifacts.records import Fate, Generated, Group, Prompt, Response, Score, Span, response_id

SCHEMA_VERSION = 1
VERSION_KEY, TABLE_KEY, STEP_KEY = b"rollflow.schema_version", b"rollflow.table", b"rollflow.step"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRow:
    """One row of the responses table: a response, what it answered, and what became of it."""

    step: int  # the step that launched it
    kind: str  # the round's kind, as its policy names it
    prompt: Prompt  # what it answers
    response: Response  # with its score, once there is one
    fate: Fate | None = None  # ledger column; None until the round is over
    advantage: float | None = None  # what its gradient is multiplied by; None if it is in no loss


def responses_to_parquet(step: int, rows: Sequence[ResponseRow]) -> bytes:
    """A file of the responses table. Every row must be of `step`."""
    strays = {row.step for row in rows} - {step}
    assert not strays, f"rows of steps {strays} in the table of step {step}"
    return _to_parquet("responses", step, [_response_cells(row) for row in rows])


def responses_from_parquet(data: bytes) -> list[ResponseRow]:
    step, cells = _from_parquet("responses", data)
    return [_response_row(step, row) for row in cells]


def groups_to_parquet(step: int, groups: Sequence[Group]) -> bytes:
    """A file of the groups table: accepted groups in training order, their responses by index."""
    return _to_parquet("groups", step, [_group_cells(group) for group in groups])


def groups_from_parquet(data: bytes, rows: Iterable[ResponseRow]) -> list[Group]:
    """The groups, with their responses looked up in the step's rows. Raises ValueError if one is
    missing."""
    _, cells = _from_parquet("groups", data)
    responses = {row.response.generated.response_id: row.response for row in rows}
    return [_group(row, responses) for row in cells]


def spans_to_parquet(step: int, spans: Sequence[Span]) -> bytes:
    return _to_parquet("spans", step, [cells_of(SPAN, span) for span in spans])


def spans_from_parquet(data: bytes) -> list[Span]:
    return [Span(**fields_of(SPAN, row)) for row in _from_parquet("spans", data)[1]]


def _to_parquet(name: TableName, step: int, rows: list[Row]) -> bytes:
    columns = [(column.name, column.type) for column in TABLES[name]]
    marks = {VERSION_KEY: str(SCHEMA_VERSION), TABLE_KEY: name, STEP_KEY: str(step)}
    table = pa.Table.from_pylist(rows, schema=pa.schema(columns, metadata=marks))
    floats = {"logprobs.list.element", "rewards.list.element"}
    words = [path for path in _leaf_paths(table.schema) if path not in floats]
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=words,
        use_byte_stream_split=["logprobs.list.element"] if name == "responses" else False,
    )
    return sink.getvalue()


def _leaf_paths(fields: Iterable[pa.Field], above: str = "") -> list[str]:
    """Parquet's names of the columns, those within lists and structs included."""
    paths: list[str] = []
    for field in fields:
        path, type_ = f"{above}{field.name}", field.type
        if pa.types.is_list(type_):
            path, type_ = f"{path}.list.element", type_.value_type
        if pa.types.is_map(type_):
            paths.extend((f"{path}.key_value.key", f"{path}.key_value.value"))
        elif pa.types.is_struct(type_):
            paths.extend(_leaf_paths(type_, f"{path}."))
        else:
            paths.append(path)
    return paths


def _from_parquet(name: TableName, data: bytes) -> tuple[int, list[Row]]:
    table = pq.ParquetFile(io.BytesIO(data)).read()
    metadata = table.schema.metadata or {}
    found = metadata.get(TABLE_KEY, b"nothing").decode()
    version = int(metadata.get(VERSION_KEY, b"0"))
    if found != name or version != SCHEMA_VERSION:
        want = f"table {name!r} of schema version {SCHEMA_VERSION}"
        raise ValueError(
            f"the file must hold {want}, got {found!r} version {version}; read it with the code"
            " that wrote it"
        )
    return int(metadata[STEP_KEY]), cast("list[Row]", table.to_pylist())


def _response_cells(row: ResponseRow) -> Row:
    generated, score = row.response.generated, row.response.score
    return {
        **cells_of(KIND, row),
        **cells_of(PROMPT, row.prompt),
        **cells_of(GENERATED, generated),
        **(cells_of(SCORE, score) if score is not None else {}),
        **cells_of(END, row),
    }


def _response_row(step: int, row: Row) -> ResponseRow:
    prompt = Prompt(**fields_of(PROMPT, row))
    response = Response(
        generated=Generated(prompt_id=prompt.prompt_id, **fields_of(GENERATED, row)),
        score=_score(row),
    )
    rest = fields_of((*KIND, *END), row)
    return ResponseRow(step=step, prompt=prompt, response=response, **rest)


def _score(row: Row) -> Score | None:
    if row["outcome"] is None:
        return None
    return Score(prompt_id=row["prompt_id"], index=row["index"], **fields_of(SCORE, row))


def _group_cells(group: Group) -> Row:
    return cells_of(PROMPT, group.prompt) | cells_of(MEMBERS, group)


def _group(row: Row, responses: dict[str, Response]) -> Group:
    names = [response_id(row["prompt_id"], index) for index in row["indices"]]
    if missing := [name for name in names if name not in responses]:
        raise ValueError(f"its response {missing[0]} is not among the step's {len(responses)}")
    return Group(
        prompt=Prompt(**fields_of(PROMPT, row)),
        responses=tuple(responses[name] for name in names),
    )
