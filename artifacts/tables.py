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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.layout import TableName
from artifacts.records import (
    CaseResult,
    CaseVerdict,
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


class Fate(StrEnum):
    """The column of the waste ledger that a response's tokens are booked in. Those that are stale,
    or that a judge wrote, are of no response in the table."""

    TRAINED = "trained"
    ABORTED = "aborted"
    DISCARDED = "discarded"
    FILTERED = "filtered"
    EVALUATED = "evaluated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRow:
    """One row of the responses table: a response, what it answered, and what became of it."""

    step: int  # the step that launched it
    kind: str  # the round's kind, as its policy names it
    prompt: Prompt  # what it answers
    response: Response  # with its score, once there is one
    fate: Fate | None = None  # ledger column; None until the round is over
    advantage: float | None = None  # what its gradient is multiplied by; None if it is in no loss


_TOKENS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("element", pa.float64(), nullable=False))
_VERSIONS = pa.list_(
    pa.struct([pa.field("version", pa.int32()), pa.field("num_tokens", pa.int32())])
)
_CASES = pa.list_(
    pa.struct(
        [
            ("key", pa.string()),
            ("verdict", pa.string()),
            ("wall_s", pa.float64()),
            ("limit_s", pa.float64()),
        ]
    )
)  # null where no program was executed; files of earlier runs lack the column
_PROMPT = [
    ("prompt_id", pa.string()),
    ("domain", pa.string()),
    ("prompt_text", pa.string()),
    ("gold", pa.string()),
    ("prompt_token_ids", _TOKENS),
]

RESPONSES = pa.schema(
    [
        ("kind", pa.string()),
        *_PROMPT,
        ("index", pa.int32()),
        ("text", pa.string()),
        ("token_ids", _TOKENS),
        ("logprobs", _FLOATS),
        ("versions", _VERSIONS),
        ("finish_reason", pa.string()),
        ("engine", pa.string()),
        ("submitted_s", pa.float64()),
        ("first_token_s", pa.float64()),
        ("finished_s", pa.float64()),
        ("attempt", pa.int64()),  # files of earlier runs lack the column
        ("outcome", pa.string()),
        ("reward", pa.float64()),
        ("detail", pa.string()),
        ("scorer", pa.string()),
        ("score_started_s", pa.float64()),
        ("score_finished_s", pa.float64()),
        ("cases", _CASES),
        ("fate", pa.string()),
        ("advantage", pa.float64()),
    ]
)
GROUPS = pa.schema(
    [
        *_PROMPT,
        ("indices", _TOKENS),
        ("rewards", pa.list_(pa.float64())),
        ("reward_mean", pa.float64()),
        ("num_tokens", pa.int64()),
    ]
)
SPANS = pa.schema(
    [
        ("device", pa.string()),
        ("actor", pa.string()),
        ("kind", pa.string()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
    ]
)
SCHEMAS: dict[TableName, pa.Schema] = {"responses": RESPONSES, "groups": GROUPS, "spans": SPANS}

Row = dict[str, Any]  # Any: one cell per column, of the column's type


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
    return _to_parquet(
        "spans",
        step,
        [{field.name: getattr(span, field.name) for field in fields(Span)} for span in spans],
    )


def spans_from_parquet(data: bytes) -> list[Span]:
    return [Span(**row) for row in _from_parquet("spans", data)[1]]


def _to_parquet(name: TableName, step: int, rows: list[Row]) -> bytes:
    schema = SCHEMAS[name].with_metadata(
        {VERSION_KEY: str(SCHEMA_VERSION), TABLE_KEY: name, STEP_KEY: str(step)}
    )
    table = pa.Table.from_pylist(rows, schema=schema)
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


def _prompt_cells(prompt: Prompt) -> Row:
    return {
        "prompt_id": prompt.prompt_id,
        "domain": prompt.domain,
        "prompt_text": prompt.text,
        "gold": prompt.gold,
        "prompt_token_ids": prompt.token_ids,
    }


def _prompt(row: Row) -> Prompt:
    return Prompt(
        prompt_id=row["prompt_id"],
        domain=row["domain"],
        text=row["prompt_text"],
        gold=row["gold"],
        token_ids=tuple(row["prompt_token_ids"]),
    )


_GENERATED_PLAIN = (
    "index",
    "text",
    "token_ids",
    "logprobs",
    "finish_reason",
    "engine",
    "submitted_s",
    "first_token_s",
    "finished_s",
)


def _response_cells(row: ResponseRow) -> Row:
    generated = row.response.generated
    cells: Row = {
        "kind": row.kind,
        **_prompt_cells(row.prompt),
        "fate": row.fate,
        "advantage": row.advantage,
    }
    cells |= {name: getattr(generated, name) for name in (*_GENERATED_PLAIN, "attempt")}
    cells["versions"] = [
        {"version": span.version, "num_tokens": span.num_tokens} for span in generated.versions
    ]
    return cells | _score_cells(row.response.score)


def _score_cells(score: Score | None) -> Row:
    """Empty cells, the outcome's among them, mean that there is no score yet."""
    if score is None:
        return {}
    cells: Row = {name: getattr(score, name) for name in ("outcome", "reward", "detail", "scorer")}
    cells["cases"] = [
        {field.name: getattr(case, field.name) for field in fields(CaseResult)}
        for case in score.cases
    ] or None
    return cells | {"score_started_s": score.started_s, "score_finished_s": score.finished_s}


def _response_row(step: int, row: Row) -> ResponseRow:
    fate = None if row["fate"] is None else Fate(row["fate"])
    response = Response(generated=_generated(row), score=_score(row))
    return ResponseRow(
        step=step,
        kind=row["kind"],
        prompt=_prompt(row),
        response=response,
        fate=fate,
        advantage=row["advantage"],
    )


def _generated(row: Row) -> Generated:
    plain: Row = {name: row[name] for name in _GENERATED_PLAIN}
    plain |= {"token_ids": tuple(row["token_ids"]), "logprobs": tuple(row["logprobs"])}
    versions = tuple(VersionSpan(**span) for span in row["versions"])
    attempt = row.get("attempt") or 0
    return Generated(prompt_id=row["prompt_id"], versions=versions, attempt=attempt, **plain)


def _score(row: Row) -> Score | None:
    if row["outcome"] is None:
        return None
    plain: Row = {name: row[name] for name in ("prompt_id", "index", "reward", "detail", "scorer")}
    times: Row = {"started_s": row["score_started_s"], "finished_s": row["score_finished_s"]}
    cases = tuple(
        CaseResult(**case | {"verdict": CaseVerdict(case["verdict"])})
        for case in row.get("cases") or ()
    )
    return Score(outcome=Outcome(row["outcome"]), cases=cases, **plain, **times)


def _group_cells(group: Group) -> Row:
    rewards = [response.score.reward if response.score else None for response in group.responses]
    known = [reward for reward in rewards if reward is not None]
    return {
        **_prompt_cells(group.prompt),
        "indices": [response.generated.index for response in group.responses],
        "rewards": rewards,
        "reward_mean": sum(known) / len(known) if known else None,
        "num_tokens": sum(len(response.generated.token_ids) for response in group.responses),
    }


def _group(row: Row, responses: dict[str, Response]) -> Group:
    return Group(
        prompt=_prompt(row),
        responses=tuple(
            responses[response_id(row["prompt_id"], index)] for index in row["indices"]
        ),
    )
