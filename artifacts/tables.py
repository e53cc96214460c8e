"""The tables of a run and their records: responses, groups and spans, as Parquet with explicit,
versioned schemas.

    records -> table -> Parquet bytes -> table -> records, equal to the original ones, bit for bit

Each column is defined once: its name and type in the file, how its cell is made from a record, and
which field is read back from it. Log-probabilities are stored as float64: engines return Python
floats, and a replayed step must train on exactly the numbers that the first attempt trained on.
Split into byte streams, the zero bytes of values that were float32 compress to nothing. `step` is
no column of the files: it is their Hive partition (see `layout`) and an entry of their metadata.
Leaves out where the bytes are stored (`journal`, `store`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
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
    Score,
    Span,
    VersionSpan,
    response_id,
)

Row = dict[str, Any]  # Any: one cell per column, of the column's type


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table, and how a record's cell is written and read back."""

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
    """Make the column `name` for a record's field `field`, by default of the same name."""
    read = attrgetter(field or name)
    return Column(
        name=name,
        type=type_,
        cell=lambda record: cell(read(record)),
        field=field or name,
        value=value,
    )


_TOKENS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("element", pa.float64(), nullable=False))
_VERSION = {"version": pa.int32(), "num_tokens": pa.int32()}
_CASE = {
    "key": pa.string(),
    "verdict": pa.string(),
    "wall_s": pa.float64(),
    "limit_s": pa.float64(),
}
_TURN = {
    "num_given": pa.int32(),
    "num_sampled": pa.int32(),
    "observation": pa.string(),
    "action": pa.string(),
    "reward": pa.float64(),
    "asked_s": pa.float64(),
    "acted_s": pa.float64(),
    "answered_s": pa.float64(),
    "starts_over": pa.bool_(),
    "info": pa.map_(pa.string(), pa.string()),  # files of earlier runs lack it
}
_EPISODE = {  # beside its turns
    "ending": pa.string(),
    "detail": pa.string(),
    "last_observation": pa.string(),
    "reset_s": pa.float64(),
    "num_resumed": pa.int32(),  # files of earlier runs lack it, as they do the last two
    "num_replayed": pa.int32(),
    "num_restarted": pa.int32(),
    "num_forgotten": pa.int32(),
}


def _structs(names: Iterable[str], records: Sequence[object]) -> list[Row]:
    return [{name: getattr(record, name) for name in names} for record in records]


def _cases(cell: Sequence[Row] | None) -> tuple[CaseResult, ...]:
    return tuple(
        CaseResult(**case | {"verdict": CaseVerdict(case["verdict"])}) for case in cell or ()
    )


def _episode_cell(episode: Episode | None) -> Row | None:
    if episode is None:
        return None
    return {"turns": _structs(_TURN, episode.turns), **_structs(_EPISODE, [episode])[0]}


def _episode(cell: Row | None) -> Episode | None:
    if cell is None:
        return None
    turns = tuple(Turn(**turn | {"info": tuple(turn.get("info") or ())}) for turn in cell["turns"])
    ending = None if cell["ending"] is None else Ending(cell["ending"])
    return Episode(**cell | {"turns": turns, "ending": ending})


def _rewards(group: Group) -> list[float | None]:
    return [response.score.reward if response.score else None for response in group.responses]


def _reward_mean(group: Group) -> float | None:
    known = [reward for reward in _rewards(group) if reward is not None]
    return sum(known) / len(known) if known else None


PROMPT = (
    _field("prompt_id", pa.string()),
    _field("domain", pa.string()),
    _field("prompt_text", pa.string(), "text"),
    _field("gold", pa.string()),
    _field("prompt_token_ids", _TOKENS, "token_ids", value=tuple),
    _field("episode_seed", pa.int64()),  # files of earlier runs lack the column
)
GENERATED = (
    _field("index", pa.int32()),
    _field("text", pa.string()),
    _field("token_ids", _TOKENS, value=tuple),
    _field("logprobs", _FLOATS, value=tuple),
    _field(
        "versions",
        pa.list_(pa.struct(list(_VERSION.items()))),
        cell=lambda spans: _structs(_VERSION, spans),
        value=lambda cell: tuple(VersionSpan(**span) for span in cell),
    ),
    _field("finish_reason", pa.string()),
    _field("engine", pa.string()),
    _field("submitted_s", pa.float64()),
    _field("first_token_s", pa.float64()),
    _field("finished_s", pa.float64()),
    # files of earlier runs lack the column
    _field("attempt", pa.int64(), value=lambda cell: cell or 0),
    # null for a response of one turn; files of earlier runs lack the column
    _field(
        "episode",
        pa.struct([("turns", pa.list_(pa.struct(list(_TURN.items())))), *_EPISODE.items()]),
        cell=_episode_cell,
        value=_episode,
    ),
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
    Column(
        name="indices",
        type=_TOKENS,
        cell=lambda group: [response.generated.index for response in group.responses],
    ),
    Column(name="rewards", type=pa.list_(pa.float64()), cell=_rewards),
    Column(name="reward_mean", type=pa.float64(), cell=_reward_mean),
    Column(
        name="num_tokens",
        type=pa.int64(),
        cell=lambda group: sum(response.generated.num_sampled for response in group.responses),
    ),
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


def _cells_of(columns: Sequence[Column], record: object) -> Row:
    """The cells of a record in these columns."""
    return {column.name: column.cell(record) for column in columns}


def _fields_of(columns: Sequence[Column], row: Row) -> dict[str, Any]:  # Any: values of the fields
    """A record's fields, read from its cells; the cell of a column that the file lacks is None."""
    return {column.field: column.value(row.get(column.name)) for column in columns if column.field}


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
    cells = [
        {
            **_cells_of(KIND, row),
            **_cells_of(PROMPT, row.prompt),
            **_cells_of(GENERATED, row.response.generated),
            **(_cells_of(SCORE, row.response.score) if row.response.score is not None else {}),
            **_cells_of(END, row),
        }
        for row in rows
    ]
    return _to_parquet("responses", step, cells)


def responses_from_parquet(data: bytes) -> list[ResponseRow]:
    """Read the rows of a file of the responses table. Raises ValueError for another table or schema
    version."""
    step, cells = _from_parquet("responses", data)
    return [_response_row(step, row) for row in cells]


def groups_to_parquet(step: int, groups: Sequence[Group]) -> bytes:
    """Write the groups table as Parquet bytes: accepted groups in training order, each with the
    indices of its responses."""
    cells = [_cells_of(PROMPT, group.prompt) | _cells_of(MEMBERS, group) for group in groups]
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


def _response_row(step: int, row: Row) -> ResponseRow:
    prompt = Prompt(**_fields_of(PROMPT, row))
    generated = Generated(prompt_id=prompt.prompt_id, **_fields_of(GENERATED, row))
    score = None
    if row["outcome"] is not None:
        score = Score(prompt_id=row["prompt_id"], index=row["index"], **_fields_of(SCORE, row))
    response = Response(generated=generated, score=score)
    rest = _fields_of((*KIND, *END), row)
    return ResponseRow(step=step, prompt=prompt, response=response, **rest)
