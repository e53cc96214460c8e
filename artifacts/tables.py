"""The tables that are kept and their records: responses, groups and spans, as Parquet with
explicit, versioned schemas.

    records -> table -> Parquet bytes -> table -> records, equal to the ones before, bit for bit

Log-probabilities are stored as float64: engines hand out Python floats, and a replayed step must
train on exactly the numbers that the live one trained on. Split into byte streams, the zero bytes
of numbers that were float32 compress to nothing. `step` is no column of the files: it is the Hive
partition they lie in (see `layout`) and an entry of their metadata. Leaves out where the bytes go
(`journal`, `store`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.layout import TableName
from artifacts.records import (
    CaseResult,
    CaseVerdict,
    Fate,
    Generated,
    Group,
    Outcome,
    Prompt,
    Response,
    Score,
    Span,
    VersionSpan,
    response_id,
)

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


Row = dict[str, Any]  # Any: one cell per column, of the column's type


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: how its cell is made of a record, and what it says of the record that is
    read back."""

    name: str  # in the file
    type: pa.DataType  # of its cells
    cell: Callable[[Any], object]  # Any: the table's record in, a cell out
    field: str = ""  # the field that is read back from it; empty for a figure to look at alone
    value: Callable[[Any], object] = lambda cell: cell  # Any: a cell in, the field's value out


def _field(
    name: str,
    type_: pa.DataType,
    field: str = "",
    *,
    cell: Callable[[Any], object] = lambda value: value,  # Any: the field's value
    value: Callable[[Any], object] = lambda cell: cell,  # Any: the cell
) -> Column:
    """The column of a record's field, of the same name unless another is given."""
    read = attrgetter(field or name)
    return Column(
        name=name,
        type=type_,
        cell=lambda record: cell(read(record)),
        field=field or name,
        value=value,
    )


def _tuples(name: str, type_: pa.DataType, field: str = "") -> Column:
    """The column of a tuple of numbers."""
    return _field(name, type_, field, value=tuple)


_TOKENS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("element", pa.float64(), nullable=False))
_VERSION = {"version": pa.int32(), "num_tokens": pa.int32()}
_CASE = {
    "key": pa.string(),
    "verdict": pa.string(),
    "wall_s": pa.float64(),
    "limit_s": pa.float64(),
}


def _structs(names: Iterable[str], records: Sequence[object]) -> list[Row]:
    return [{name: getattr(record, name) for name in names} for record in records]


def _version_spans(cell: Sequence[Row]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(**span) for span in cell)


def _cases(cell: Sequence[Row] | None) -> tuple[CaseResult, ...]:
    return tuple(
        CaseResult(**case | {"verdict": CaseVerdict(case["verdict"])}) for case in cell or ()
    )


PROMPT = (
    _field("prompt_id", pa.string()),
    _field("domain", pa.string()),
    _field("prompt_text", pa.string(), "text"),
    _field("gold", pa.string()),
    _tuples("prompt_token_ids", _TOKENS, "token_ids"),
)
GENERATED = (
    _field("index", pa.int32()),
    _field("text", pa.string()),
    _tuples("token_ids", _TOKENS),
    _tuples("logprobs", _FLOATS),
    _field(
        "versions",
        pa.list_(pa.struct(list(_VERSION.items()))),
        cell=lambda spans: _structs(_VERSION, spans),
        value=_version_spans,
    ),
    _field("finish_reason", pa.string()),
    _field("engine", pa.string()),
    _field("submitted_s", pa.float64()),
    _field("first_token_s", pa.float64()),
    _field("finished_s", pa.float64()),
    # files of earlier runs lack the column
    _field("attempt", pa.int64(), value=lambda cell: cell or 0),
)
SCORE = (  # all empty where there is no score yet
    _field("outcome", pa.string(), value=Outcome),
    _field("reward", pa.float64()),
    _field("detail", pa.string()),
    _field("scorer", pa.string()),
    _field("score_started_s", pa.float64(), "started_s"),
    _field("score_finished_s", pa.float64(), "finished_s"),
    # null where no program was executed; files of earlier runs lack the column
    _field(
        "cases",
        pa.list_(pa.struct(list(_CASE.items()))),
        cell=lambda cases: _structs(_CASE, cases) or None,
        value=_cases,
    ),
)
KIND = (_field("kind", pa.string()),)
END = (
    _field("fate", pa.string(), value=lambda cell: None if cell is None else Fate(cell)),
    _field("advantage", pa.float64()),
)
MEMBERS = (
    Column(name="indices", type=_TOKENS, cell=lambda group: _indices(group)),
    Column(name="rewards", type=pa.list_(pa.float64()), cell=lambda group: _rewards(group)),
    Column(name="reward_mean", type=pa.float64(), cell=lambda group: _reward_mean(group)),
    Column(name="num_tokens", type=pa.int64(), cell=lambda group: _num_tokens(group)),
)
SPAN = (
    _field("device", pa.string()),
    _field("actor", pa.string()),
    _field("kind", pa.string()),
    _field("start_s", pa.float64()),
    _field("end_s", pa.float64()),
)
TABLES: dict[TableName, tuple[Column, ...]] = {
    "responses": (*KIND, *PROMPT, *GENERATED, *SCORE, *END),
    "groups": (*PROMPT, *MEMBERS),
    "spans": SPAN,
}


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
    """The groups, with their responses looked up in the step's rows. Raises KeyError if one is
    missing."""
    _, cells = _from_parquet("groups", data)
    responses = {row.response.generated.response_id: row.response for row in rows}
    return [_group(row, responses) for row in cells]


def spans_to_parquet(step: int, spans: Sequence[Span]) -> bytes:
    return _to_parquet("spans", step, [_cells(SPAN, span) for span in spans])


def spans_from_parquet(data: bytes) -> list[Span]:
    return [Span(**_fields(SPAN, row)) for row in _from_parquet("spans", data)[1]]


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


def _leaf_paths(schema: pa.Schema) -> list[str]:
    """Parquet's names of the columns."""
    paths = []
    for field in schema:
        if not pa.types.is_list(field.type):
            paths.append(field.name)
        elif pa.types.is_struct(field.type.value_type):
            paths.extend(
                f"{field.name}.list.element.{child.name}" for child in field.type.value_type
            )
        else:
            paths.append(f"{field.name}.list.element")
    return paths


def _from_parquet(name: TableName, data: bytes) -> tuple[int, list[Row]]:
    table = pq.ParquetFile(io.BytesIO(data)).read()
    metadata = table.schema.metadata or {}
    found, version = (
        metadata.get(TABLE_KEY, b"nothing").decode(),
        int(metadata.get(VERSION_KEY, b"0")),
    )
    if found != name or version != SCHEMA_VERSION:
        want = f"table {name!r} of schema version {SCHEMA_VERSION}"
        raise ValueError(
            f"the file must hold {want}, got {found!r} version {version}; read it with the code"
            " that wrote it"
        )
    return int(metadata[STEP_KEY]), cast("list[Row]", table.to_pylist())


def _cells(columns: Sequence[Column], record: object) -> Row:
    return {column.name: column.cell(record) for column in columns}


def _fields(columns: Sequence[Column], row: Row) -> dict[str, Any]:  # Any: values of the fields
    """What these columns say of a record; a file may lack a column that was added later."""
    return {column.field: column.value(row.get(column.name)) for column in columns if column.field}


def _response_cells(row: ResponseRow) -> Row:
    generated, score = row.response.generated, row.response.score
    return {
        **_cells(KIND, row),
        **_cells(PROMPT, row.prompt),
        **_cells(GENERATED, generated),
        **(_cells(SCORE, score) if score is not None else {}),
        **_cells(END, row),
    }


def _response_row(step: int, row: Row) -> ResponseRow:
    prompt = Prompt(**_fields(PROMPT, row))
    response = Response(
        generated=Generated(prompt_id=prompt.prompt_id, **_fields(GENERATED, row)),
        score=_score(row),
    )
    rest = _fields((*KIND, *END), row)
    return ResponseRow(step=step, prompt=prompt, response=response, **rest)


def _score(row: Row) -> Score | None:
    if row["outcome"] is None:
        return None
    return Score(prompt_id=row["prompt_id"], index=row["index"], **_fields(SCORE, row))


def _group_cells(group: Group) -> Row:
    return _cells(PROMPT, group.prompt) | _cells(MEMBERS, group)


def _indices(group: Group) -> list[int]:
    return [response.generated.index for response in group.responses]


def _rewards(group: Group) -> list[float | None]:
    return [response.score.reward if response.score else None for response in group.responses]


def _reward_mean(group: Group) -> float | None:
    known = [reward for reward in _rewards(group) if reward is not None]
    return sum(known) / len(known) if known else None


def _num_tokens(group: Group) -> int:
    return sum(len(response.generated.token_ids) for response in group.responses)


def _group(row: Row, responses: dict[str, Response]) -> Group:
    names = [response_id(row["prompt_id"], index) for index in row["indices"]]
    return Group(
        prompt=Prompt(**_fields(PROMPT, row)),
        responses=tuple(responses[name] for name in names),
    )
