"""The columns of the tables that are kept, each stated once: its name and type in the file, how its
cell is made of a record, and what it says of the record that is read back.

Log-probabilities are stored as float64: engines hand out Python floats, and a replayed step must
train on exactly the numbers that the live one trained on. Leaves out which columns make a record,
and the files (`tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pyarrow as pa

from artifacts.episodes import Ending, Episode, Turn
from artifacts.layout import TableName
from artifacts.records import CaseResult, CaseVerdict, Fate, Group, Outcome, VersionSpan

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


def _version_spans(cell: Sequence[Row]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(**span) for span in cell)


def _cases(cell: Sequence[Row] | None) -> tuple[CaseResult, ...]:
    return tuple(
        CaseResult(**case | {"verdict": CaseVerdict(case["verdict"])}) for case in cell or ()
    )


def _episode_cell(episode: Episode | None) -> Row | None:
    if episode is None:
        return None
    (rest,) = _structs(_EPISODE, [episode])
    return {"turns": _structs(_TURN, episode.turns), **rest}


def _episode(cell: Row | None) -> Episode | None:
    if cell is None:
        return None
    turns = tuple(Turn(**turn | {"info": tuple(turn.get("info") or ())}) for turn in cell["turns"])
    ending = None if cell["ending"] is None else Ending(cell["ending"])
    return Episode(**cell | {"turns": turns, "ending": ending})


def _indices(group: Group) -> list[int]:
    return [response.generated.index for response in group.responses]


def _rewards(group: Group) -> list[float | None]:
    return [response.score.reward if response.score else None for response in group.responses]


def _reward_mean(group: Group) -> float | None:
    known = [reward for reward in _rewards(group) if reward is not None]
    return sum(known) / len(known) if known else None


def _num_tokens(group: Group) -> int:
    return sum(response.generated.num_sampled for response in group.responses)


PROMPT = (
    _field("prompt_id", pa.string()),
    _field("domain", pa.string()),
    _field("prompt_text", pa.string(), "text"),
    _field("gold", pa.string()),
    _tuples("prompt_token_ids", _TOKENS, "token_ids"),
    _field("episode_seed", pa.int64()),  # files of earlier runs lack the column
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
    Column(name="indices", type=_TOKENS, cell=_indices),
    Column(name="rewards", type=pa.list_(pa.float64()), cell=_rewards),
    Column(name="reward_mean", type=pa.float64(), cell=_reward_mean),
    Column(name="num_tokens", type=pa.int64(), cell=_num_tokens),
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


def cells_of(columns: Sequence[Column], record: object) -> Row:
    """What these columns hold of a record."""
    return {column.name: column.cell(record) for column in columns}


def fields_of(columns: Sequence[Column], row: Row) -> dict[str, Any]:  # Any: values of the fields
    """What these columns say of a record; a file may lack a column that was added later."""
    return {column.field: column.value(row.get(column.name)) for column in columns if column.field}
