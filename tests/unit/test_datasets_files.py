"""Users' JSON-lines files: field mapping, and errors that name file, line, field and cure."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.datasets.choice import Dataset, FilesConfig, load_dataset

GOOD = {"prompt": "1 + 1?", "answer": "2"}


def write(folder: Path, *rows: dict[str, Any] | str, name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows),
        encoding="utf-8",
    )
    return str(path)


def load(path: str, **fields: Any) -> Dataset:
    return load_dataset(FilesConfig(path=path, **{"heldout_fraction": 0.0, **fields}), 0)


def test_questions_answers_and_domains_come_from_the_named_fields(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "6 * 7?", "gold": 42, "tag": "times"})
    row = load(
        path,
        prompt_field="question",
        answer_field="gold",
        domain_field="tag",
        system_prompt="Be brief.",
    ).rows[0]
    assert (row.text, row.gold, row.domain) == ("6 * 7?", "42", "times")
    assert [(message.role, message.content) for message in row.messages] == [
        ("system", "Be brief."),
        ("user", "6 * 7?"),
    ]


@pytest.mark.parametrize("as_text", [True, False])
def test_a_chat_may_be_json_or_json_in_a_string(tmp_path: Path, as_text: bool) -> None:
    chat = [
        {"role": "system", "content": "Reason."},
        {"role": "user", "content": "Why?", "name": "x"},
    ]
    path = write(tmp_path, {"messages": json.dumps(chat) if as_text else chat, "answer": "because"})
    row = load(path, messages_field="messages").rows[0]
    assert [message.role for message in row.messages] == ["system", "user"]
    assert row.text == "Why?"


def test_blank_lines_are_skipped_and_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(GOOD) + "\n\n" + json.dumps(GOOD)).encode()))
    assert len(load(str(path)).rows) == 2


def test_equal_questions_stay_on_one_side(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        *({"prompt": f"question {number % 40}", "answer": number} for number in range(120)),
    )
    dataset = load(path, heldout_fraction=0.25)
    assert (len(dataset.rows), len(dataset.heldout)) == (90, 30)
    assert not {row.text for row in dataset.rows} & {row.text for row in dataset.heldout}


def test_the_held_out_side_is_never_empty_when_a_share_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, *({"prompt": str(number), "answer": number} for number in range(3)))
    assert len(load(path, heldout_fraction=0.01).heldout) == 1


@pytest.mark.parametrize(
    ("row", "fields", "message"),
    [
        ("{not json", {}, r"rows.jsonl:2: every line must be one JSON object"),
        ("[1]", {}, r"rows.jsonl:2: .*got list"),
        ({"answer": "2"}, {}, r"rows.jsonl:2: field 'prompt' is missing, the row has 'answer'"),
        ({"prompt": "1?"}, {}, r"rows.jsonl:2: field 'answer' is missing"),
        ({"prompt": " ", "answer": "2"}, {},
            r"rows.jsonl:2: field 'prompt' must be a text or a number and not blank"),
        ({"prompt": "1?", "answer": None}, {}, r"rows.jsonl:2: field 'answer' must be a text"),
        ({"prompt": "1?", "answer": True}, {}, r"rows.jsonl:2: field 'answer' must be a text"),
        ({**GOOD, "tag": ["a"]}, {"domain_field": "tag"},
            r"rows.jsonl:2: field 'tag' must be a text"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_named(
    tmp_path: Path, row: dict[str, Any] | str, fields: dict[str, str], message: str
) -> None:
    path = write(tmp_path, {**GOOD, "tag": "t"}, row)
    with pytest.raises(ValueError, match=message):
        load(path, **fields)


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        ("[{", r"rows.jsonl:1: field 'messages' must be a chat as JSON"),
        ({"role": "user"}, r"must be a list of turns, got dict"),
        ([{"role": "robot", "content": "x"}], r"must have a role"),
        ([{"role": "user", "content": 3}], r"text content"),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
            r"must end with a user turn",
        ),
        ([], r"must end with a user turn"),
    ],
)
def test_a_malformed_chat_is_named(tmp_path: Path, chat: Any, message: str) -> None:
    path = write(tmp_path, {"messages": chat, "answer": "2"})
    with pytest.raises(ValueError, match=message):
        load(path, messages_field="messages")


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found none at .*absent.jsonl; correct the path"):
        load(str(tmp_path / "absent.jsonl"))
    with pytest.raises(ValueError, match="at least one row"):
        load(write(tmp_path, "", ""))


def test_a_system_prompt_beside_a_chat_is_refused() -> None:
    with pytest.raises(ValidationError, match="messages_field goes without system_prompt"):
        FilesConfig(path="x", messages_field="messages", system_prompt="Be brief.")
