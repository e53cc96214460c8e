"""Questions from a user's JSON-lines file, by a mapping of its field names.

Every row is read before a run starts, so that a bad one is named with its file, line and field
instead of failing in a step.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import fsspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.datasets.rows import Dataset, Message, Row

Fields = Mapping[str, Any]  # Any: whatever JSON the user's row holds


class JsonlConfig(BaseModel):
    """Rows of a file, one JSON object per line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["jsonl"] = Field("jsonl", description="Chooses rows from a JSON-lines file.")
    path: str = Field(..., description="The file: a path or an fsspec URL; .gz is unpacked.")
    prompt_field: str = Field(
        "prompt", description="Field with the question as text; unused where messages_field is set."
    )
    messages_field: str = Field(
        "",
        description=(
            "Field with a chat (a list of role and content, or its JSON text); empty: none."
        ),
    )
    answer_field: str = Field(
        "answer", description="Field with the answer the reward compares with."
    )
    domain_field: str = Field(
        "", description="Field with the row's domain; empty: `domain` for every row."
    )
    domain: str = Field(
        "jsonl", min_length=1, description="Domain of the rows if domain_field is empty."
    )
    system_prompt: str = Field(
        "", description="System turn before the question of prompt_field; empty: none."
    )
    heldout_fraction: float = Field(
        0.05, ge=0, lt=1, description="Share of the distinct questions kept for evaluation."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.messages_field and self.system_prompt:
            raise ValueError(
                "system_prompt goes with prompt_field only, got messages_field"
                f" {self.messages_field!r} as well; put the system turn into the file's messages,"
                " or empty one of the two"
            )
        return self


def jsonl_rows(config: JsonlConfig, seed: int) -> Dataset:
    """The file's rows in their order, those of held-out questions apart. Raises ValueError for a
    file or row it cannot use."""
    rows = tuple(_read(config))
    if not rows:
        raise ValueError(
            f"task.path must hold at least one row, got none in {config.path}; give a file with"
            " JSON lines"
        )
    questions = sorted({row.text for row in rows})
    random.Random(f"{seed}/jsonl").shuffle(questions)
    num_heldout = min(
        len(questions) - 1,
        round(config.heldout_fraction * len(questions)) or int(config.heldout_fraction > 0),
    )
    kept = set(questions[:num_heldout])
    return Dataset(
        name="jsonl",
        rows=tuple(row for row in rows if row.text not in kept),
        heldout=tuple(row for row in rows if row.text in kept),
    )


def _read(config: JsonlConfig) -> Iterator[Row]:
    try:
        with fsspec.open(config.path, "rb", compression="infer") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _row(line, config, f"{config.path}:{number}")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ValueError(
            f"task.path must be a JSON-lines file, found none at {config.path}; correct the path"
        ) from error


def _row(line: bytes, config: JsonlConfig, where: str) -> Row:
    try:
        fields = json.loads(line)
    except ValueError as error:  # JSON and UTF-8 errors alike
        raise ValueError(
            f"{where}: every line must be one JSON object in UTF-8, got {line[:60]!r} ({error});"
            " repair the line"
        ) from error
    if not isinstance(fields, dict):
        raise ValueError(
            f"{where}: every line must be one JSON object, got {type(fields).__name__}; write one"
            " object per line"
        )
    messages = _messages(fields, config, where)
    return Row(
        domain=_text(fields, config.domain_field, where) if config.domain_field else config.domain,
        messages=messages,
        gold=_text(fields, config.answer_field, where),
        text=messages[-1].content,
    )


def _messages(fields: Fields, config: JsonlConfig, where: str) -> tuple[Message, ...]:
    if not config.messages_field:
        system = (
            (Message(role="system", content=config.system_prompt),) if config.system_prompt else ()
        )
        return (*system, Message(role="user", content=_text(fields, config.prompt_field, where)))
    messages = tuple(
        _message(turn, config.messages_field, where)
        for turn in _turns(fields, config.messages_field, where)
    )
    if not messages or messages[-1].role != "user":
        raise ValueError(
            f"{where}: field {config.messages_field!r} must end with a user turn; put the question"
            " last"
        )
    return messages


def _turns(
    fields: Fields, name: str, where: str
) -> list[Any]:  # Any: turns that nobody has checked yet
    value = _present(fields, name, where)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(
                f"{where}: field {name!r} must be a chat as JSON, got {value[:60]!r} ({error});"
                " repair it"
            ) from error
    if not isinstance(value, list):
        raise ValueError(
            f"{where}: field {name!r} must be a list of turns, got {type(value).__name__}; write"
            " [{role, content}, ...]"
        )
    return value


def _message(turn: Any, name: str, where: str) -> Message:  # Any: a turn as the file has it
    if (
        not isinstance(turn, dict)
        or turn.get("role") not in ("system", "user", "assistant")
        or not isinstance(turn.get("content"), str)
    ):
        raise ValueError(
            f"{where}: every turn of field {name!r} must have a role (system, user, assistant) and"
            f" a text content, got {str(turn)[:80]!r}; repair the turn"
        )
    return Message(role=turn["role"], content=turn["content"])


def _text(fields: Fields, name: str, where: str) -> str:
    """A field's text; a number is taken as it is written."""
    value = _present(fields, name, where)
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or not str(value).strip()
    ):
        raise ValueError(
            f"{where}: field {name!r} must be a text or a number and not blank, got {value!r}; fill"
            " it in"
        )
    return str(value)


def _present(fields: Fields, name: str, where: str) -> Any:  # Any: JSON
    if name not in fields:
        have = ", ".join(map(repr, sorted(fields)))
        raise ValueError(
            f"{where}: field {name!r} is missing, the row has {have}; name the right field in the"
            " task's config"
        )
    return fields[name]
