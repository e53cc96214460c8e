"""The tables of a run and their records: responses, groups and spans, as Parquet with explicit,
versioned schemas.

    records -> table -> Parquet bytes -> table -> records, equal to the original ones, bit for bit

Log-probabilities are stored as float64: engines return Python floats, and a replayed step must
train on exactly the numbers that the first attempt trained on. Split into byte streams, the zero
bytes of values that were float32 compress to nothing. `step` is no column of the files: it is their
Hive partition (see `layout`) and an entry of their metadata.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.episodes import Ending, Episode, Turn
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
    Routes,
    Score,
    ShownPicture,
    Span,
    VersionSpan,
    response_id,
)

Row = dict[str, Any]  # Any: one cell per column, of the column's type
Columns = Mapping[str, pa.DataType]  # of a record, or of a struct in a cell

_TOKENS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("element", pa.float64(), nullable=False))
_VERSION: Columns = {"version": pa.int32(), "num_tokens": pa.int32()}
_CASE: Columns = {
    "key": pa.string(),
    "verdict": pa.string(),
    "wall_s": pa.float64(),
    "limit_s": pa.float64(),
}
_PICTURE: Columns = {
    "content": pa.string(),
    "begin": pa.int32(),
    "rows": pa.int32(),
    "columns": pa.int32(),
}
_PICTURES = pa.list_(pa.struct(list(_PICTURE.items())))
_TURN: Columns = {
    "num_given": pa.int32(),
    "num_sampled": pa.int32(),
    "observation": pa.string(),
    "action": pa.string(),
    "reward": pa.float64(),
    "asked_s": pa.float64(),
    "acted_s": pa.float64(),
    "answered_s": pa.float64(),
    "starts_over": pa.bool_(),
    "info": pa.map_(pa.string(), pa.string()),  # files of earlier runs lack it and the next
    "pictures": _PICTURES,
}
_EPISODE: Columns = {
    "turns": pa.list_(pa.struct(list(_TURN.items()))),
    "ending": pa.string(),
    "detail": pa.string(),
    "last_observation": pa.string(),
    "reset_s": pa.float64(),
    "num_resumed": pa.int32(),  # files of earlier runs lack it, as they do the last two
    "num_replayed": pa.int32(),
    "num_restarted": pa.int32(),
    "num_forgotten": pa.int32(),
}
_ROUTES: Columns = {"width": pa.int32(), "num_bytes": pa.int32(), "data": pa.binary()}
PROMPT: Columns = {
    "prompt_id": pa.string(),
    "domain": pa.string(),
    "prompt_text": pa.string(),
    "gold": pa.string(),
    "prompt_token_ids": _TOKENS,
    "episode_seed": pa.int64(),  # files of earlier runs lack this column and the next
    "pictures": _PICTURES,
}
# for readers of the files: it is in the prompt's id; empty in a run of one adapter, or of none
ADAPTER: Columns = {"adapter": pa.string()}
GENERATED: Columns = {
    "index": pa.int32(),
    "text": pa.string(),
    "token_ids": _TOKENS,
    "logprobs": _FLOATS,
    "versions": pa.list_(pa.struct(list(_VERSION.items()))),
    "finish_reason": pa.string(),
    "engine": pa.string(),
    "submitted_s": pa.float64(),
    "first_token_s": pa.float64(),
    "finished_s": pa.float64(),
    "attempt": pa.int64(),  # files of earlier runs lack the column
    # null for a response of one turn; files of earlier runs lack the column
    "episode": pa.struct(list(_EPISODE.items())),
    "routes": pa.struct(list(_ROUTES.items())),  # null without experts; earlier files lack it
}
SCORE: Columns = {  # all empty where there is no score yet
    "outcome": pa.string(),
    "reward": pa.float64(),
    "detail": pa.string(),
    "scorer": pa.string(),
    "score_started_s": pa.float64(),
    "score_finished_s": pa.float64(),
    # null where no program was executed; files of earlier runs lack the column
    "cases": pa.list_(pa.struct(list(_CASE.items()))),
}
KIND: Columns = {"kind": pa.string()}
END: Columns = {"fate": pa.string(), "advantage": pa.float64()}
MEMBERS: Columns = {  # of a group
    "indices": _TOKENS,
    "rewards": pa.list_(pa.float64()),
    "reward_mean": pa.float64(),
    "num_tokens": pa.int64(),
}
SPAN: Columns = {
    "device": pa.string(),
    "actor": pa.string(),
    "kind": pa.string(),
    "start_s": pa.float64(),
    "end_s": pa.float64(),
}
TABLES: Mapping[TableName, Columns] = {
    "responses": {**KIND, **PROMPT, **ADAPTER, **GENERATED, **SCORE, **END},
    "groups": {**PROMPT, **ADAPTER, **MEMBERS},
    "spans": SPAN,
}
# fields whose column has another name
FIELDS = {
    "prompt_text": "text",
    "prompt_token_ids": "token_ids",
    "score_started_s": "started_s",
    "score_finished_s": "finished_s",
}


def _cell(value: Any) -> Any:  # Any: a field of a record in, a cell out
    """Convert records within a field to structs."""
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_cell(part) for part in value]
    if is_dataclass(value):
        return {field.name: _cell(getattr(value, field.name)) for field in fields(value)}
    return value


def _shown(row: Row) -> tuple[ShownPicture, ...]:
    return tuple(ShownPicture(**picture) for picture in row.get("pictures") or ())


def _episode(cell: Row | None) -> Episode | None:
    if cell is None:
        return None
    turns = tuple(
        Turn(**turn | {"info": tuple(turn.get("info") or ()), "pictures": _shown(turn)})
        for turn in cell["turns"]
    )
    ending = None if cell["ending"] is None else Ending(cell["ending"])
    return Episode(**cell | {"turns": turns, "ending": ending})


# how cells become fields, where they are not the same; a column that the file lacks has None
READERS: Mapping[str, Callable[[Any], object]] = {  # Any: a cell
    "prompt_token_ids": tuple,
    "pictures": lambda cell: _shown({"pictures": cell}),
    "token_ids": tuple,
    "logprobs": tuple,
    "versions": lambda cell: tuple(VersionSpan(**span) for span in cell),
    "attempt": lambda cell: cell or 0,
    "episode": _episode,
    "routes": lambda cell: None if cell is None else Routes(**cell),
    "outcome": Outcome,
    "cases": lambda cell: tuple(
        CaseResult(**case | {"verdict": CaseVerdict(case["verdict"])}) for case in cell or ()
    ),
    "fate": lambda cell: None if cell is None else Fate(cell),
}


def _cells_of(columns: Columns, record: object) -> Row:
    """The cells of a record in these columns."""
    return {name: _cell(getattr(record, FIELDS.get(name, name))) for name in columns}


def _fields_of(columns: Columns, row: Row) -> dict[str, Any]:  # Any: values of the fields
    """A record's fields, read from its cells."""
    cells = {name: row.get(name) for name in columns}
    return {
        FIELDS.get(name, name): READERS[name](cell) if name in READERS else cell
        for name, cell in cells.items()
    }


SCHEMA_VERSION = 1
VERSION_KEY, TABLE_KEY, STEP_KEY = b"rollflow.schema_version", b"rollflow.table", b"rollflow.step"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRow:
    """One row of the responses table: a response, its prompt, and what became of it."""

    step: int  # the step that launched it
    kind: str  # the round's kind, as its policy names it
    prompt: Prompt  # what it answers
    response: Response  # with its score, once there is one
    fate: Fate | None = None  # ledger column; None until the round is over
    advantage: float | None = None  # what its gradient is multiplied by; None if it is in no loss


def responses_to_parquet(step: int, rows: Sequence[ResponseRow]) -> bytes:
    """Write rows of the responses table as Parquet bytes. Every row must be of `step`."""
    strays = {row.step for row in rows} - {step}
    assert not strays, f"rows of steps {strays} in the table of step {step}"
    cells: list[Row] = []
    for row in rows:
        generated, score = row.response.generated, row.response.score
        scored = _cells_of(SCORE, score) | {"cases": _cell(score.cases) or None} if score else {}
        told = _cells_of({**PROMPT, **ADAPTER}, row.prompt) | _cells_of(GENERATED, generated)
        cells.append(_cells_of({**KIND, **END}, row) | told | scored)
    return _to_parquet("responses", step, cells)


def responses_from_parquet(data: bytes) -> list[ResponseRow]:
    """Read the rows of a file of the responses table. Raises ValueError for another table or schema
    version."""
    step, cells = _from_parquet("responses", data)
    rows: list[ResponseRow] = []
    for row in cells:
        prompt_id, score = row["prompt_id"], None
        generated = Generated(prompt_id=prompt_id, **_fields_of(GENERATED, row))
        if row["outcome"] is not None:
            score = Score(prompt_id=prompt_id, index=row["index"], **_fields_of(SCORE, row))
        prompt, response = (
            Prompt(**_fields_of(PROMPT, row)),
            Response(generated=generated, score=score),
        )
        rest = _fields_of({**KIND, **END}, row)
        rows.append(ResponseRow(step=step, prompt=prompt, response=response, **rest))
    return rows


def groups_to_parquet(step: int, groups: Sequence[Group]) -> bytes:
    """Write the groups table as Parquet bytes: accepted groups in training order, each with the
    indices of its responses."""
    cells: list[Row] = []
    for group in groups:
        responses = group.responses
        rewards = [each.score.reward if each.score else None for each in responses]
        known = [reward for reward in rewards if reward is not None]
        members = {
            "indices": [each.generated.index for each in responses],
            "rewards": rewards,
            "reward_mean": sum(known) / len(known) if known else None,
            "num_tokens": sum(each.generated.num_sampled for each in responses),
        }
        cells.append(_cells_of({**PROMPT, **ADAPTER}, group.prompt) | members)
    return _to_parquet("groups", step, cells)


def groups_from_parquet(data: bytes, rows: Iterable[ResponseRow]) -> list[Group]:
    """Read the groups of a file, with their responses looked up in `rows`, the step's response
    rows. Raises ValueError if a response is missing."""
    _, cells = _from_parquet("groups", data)
    responses = {row.response.generated.response_id: row.response for row in rows}
    groups: list[Group] = []
    for row in cells:
        names = [response_id(row["prompt_id"], index) for index in row["indices"]]
        if missing := [name for name in names if name not in responses]:
            raise ValueError(f"its response {missing[0]} is not among the step's {len(responses)}")
        found = tuple(responses[name] for name in names)
        groups.append(Group(prompt=Prompt(**_fields_of(PROMPT, row)), responses=found))
    return groups


def spans_to_parquet(step: int, spans: Sequence[Span]) -> bytes:
    return _to_parquet("spans", step, [_cells_of(SPAN, span) for span in spans])


def spans_from_parquet(data: bytes) -> list[Span]:
    return [Span(**_fields_of(SPAN, row)) for row in _from_parquet("spans", data)[1]]


def _to_parquet(name: TableName, step: int, rows: list[Row]) -> bytes:
    marks = {VERSION_KEY: str(SCHEMA_VERSION), TABLE_KEY: name, STEP_KEY: str(step)}
    table = pa.Table.from_pylist(rows, schema=pa.schema(TABLES[name], metadata=marks))
    varied = {"logprobs.list.element", "rewards.list.element", "routes.data"}
    words = [path for path in _leaf_paths(table.schema) if path not in varied]
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
    """Parquet's paths of the leaf columns, also of those within lists, maps and structs."""
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
