"""Which questions are the same, and what becomes of those that are left out."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.registry import CurriculumConfig, MixtureConfig, load_dataset
from artifacts.datasets.rows import Dataset, Message, Row, normal_form, question_row
from artifacts.models.character_tokenizer import character_tokenizer
from tasks.environments.episodes.prompts import render

Turns = Sequence[tuple[str, str]]


def write(path: Path, *chats: Turns) -> str:
    lines = (
        {"messages": [{"role": role, "content": content} for role, content in chat], "answer": 1}
        for chat in chats
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def load(train: str, heldout: str = "", **fields: Any) -> Dataset:
    given = {"messages_field": "messages", "heldout_fraction": 0.25, "heldout_path": heldout}
    return load_dataset(FilesConfig(path=train, **given | fields), 0)


def row_of(*turns: tuple[Any, str]) -> Row:
    messages = tuple(Message(role=role, content=content) for role, content in turns)
    return Row(domain="d", messages=messages, gold="1", text=messages[-1].content)


FIRST = ("user", "What is 2 + 3?")
LAST = ("user", "And now?")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ([FIRST], [("user", "What is 2 + 3? ")], True),
        ([FIRST], [("user", "\ufeffWhat is\u00a02 +\t3?\r\n")], True),
        ([FIRST], [("user", "What\u200b is 2 + 3\u200d?\u2060")], True),
        ([FIRST], [("user", "What is ２ ＋ ３？")], True),
        ([("user", "café")], [("user", "cafe\u0301")], True),
        ([("user", "ﬁnd ❤")], [("user", "find ❤\ufe0f")], True),
        ([("system", " \n"), FIRST], [FIRST], True),
        ([("user", "x²")], [("user", "x2")], False),
        ([("user", "½ + 1")], [("user", "1⁄2 + 1")], False),
        ([("user", "X + 1")], [("user", "x + 1")], False),
        ([("system", "Text A."), LAST], [("system", "Text B."), LAST], False),
        ([("system", "Text A."), LAST], [("user", "Text A."), LAST], False),
        ([FIRST, ("assistant", "5"), LAST], [FIRST, ("assistant", "6"), LAST], False),
        ([FIRST, ("assistant", "5"), LAST], [LAST], False),
        ([FIRST, ("assistant", "5"), LAST], [FIRST, ("assistant", "5 "), LAST], True),
    ],
)
def test_a_question_is_the_conversation_in_its_normal_form(
    one: Turns, other: Turns, is_same: bool
) -> None:
    assert (row_of(*one).identity == row_of(*other).identity) is is_same


@given(st.text())
def test_forms_of_a_text_are_one_question(text: str) -> None:
    normal = normal_form(text)
    assert normal == normal_form(normal) == normal_form(f"\n{text} \u200b")
    for form in ("NFC", "NFD"):
        assert normal_form(unicodedata.normalize(form, text)) == normal


def test_chats_that_end_alike_are_other_questions(tmp_path: Path) -> None:
    chats = [[("user", f"Say {number}."), ("assistant", "Done."), LAST] for number in range(80)]
    train = write(tmp_path / "train.jsonl", *chats)
    heldout = write(tmp_path / "heldout.jsonl", [("user", "Say no."), ("assistant", "No."), LAST])
    assert len(load(train, heldout).rows) == 80
    assert load(train, heldout).left_out == {}
    dataset = load(train)
    assert (len(dataset.rows), len(dataset.heldout)) == (60, 20)


def test_other_forms_of_a_held_out_question_are_not_trained_and_are_counted(tmp_path: Path) -> None:
    asked = [f"What is {number}\u00e9 + 1?" for number in range(24)]
    forms = [
        unicodedata.normalize("NFD", text) + " " * (place % 2) for place, text in enumerate(asked)
    ]
    train = write(tmp_path / "train.jsonl", *([("user", text)] for text in [*forms, "Else?"]))
    heldout = write(tmp_path / "heldout.jsonl", *([("user", text)] for text in asked))
    dataset = load(train, heldout)
    assert [row.text for row in dataset.rows] == ["Else?"]
    assert dataset.left_out == {"held_out": 24}
    both = write(tmp_path / "both.jsonl", *([("user", text)] for text in [*asked, *forms]))
    divided = load(both)
    assert not {row.identity for row in divided.rows} & {row.identity for row in divided.heldout}
    assert (len(divided.rows), len(divided.heldout)) == (36, 12)


def test_a_mixture_counts_what_its_parts_leave_out(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", *([("user", f"{number}?")] for number in range(20)))
    other = write(tmp_path / "two.jsonl", *([("user", f" {number}? ")] for number in range(30)))
    task: dict[str, Any] = {"kind": "files", "messages_field": "messages"}
    parts = [
        {"task": {**task, "path": one, "heldout_fraction": 0.5}},
        {
            "task": {**task, "path": other, "heldout_fraction": 0, "filter": ["answer == 1"]},
            "heldout_weight": 0,
        },
    ]
    mixed = {"parts": parts, "num_prompts": 100, "heldout_prompts": 10}
    dataset = load_dataset(MixtureConfig.model_validate(mixed), 0)
    assert not {row.identity for row in dataset.rows} & {row.identity for row in dataset.heldout}
    assert dataset.left_out == {"held_out": 10}


def test_a_stage_that_trains_another_form_of_a_held_out_question_is_refused(tmp_path: Path) -> None:
    learned = write(tmp_path / "one.jsonl", *([("user", f"{number}?")] for number in range(20)))
    stage = write(tmp_path / "two.jsonl", *([("user", f" {number}? ")] for number in range(20)))
    task: dict[str, Any] = {"kind": "files", "messages_field": "messages"}
    asked = {**task, "path": stage, "heldout_fraction": 0}
    config = CurriculumConfig.model_validate(
        {
            "stages": [{"task": asked, "num_prompts": 20}],
            "task": {**task, "path": learned, "heldout_fraction": 0.5},
        }
    )
    with pytest.raises(ValueError, match="must not train what the task holds out"):
        load_dataset(config, 0)


def test_who_scores_reads_every_turn(tmp_path: Path) -> None:
    chat = [("system", "Text A."), ("user", "b?"), ("assistant", "c"), ("user", "d?")]
    row = load(write(tmp_path / "rows.jsonl", chat), heldout_fraction=0).rows[0]
    told = render(row, character_tokenizer(), "0/0", 64).text
    assert told == "System: Text A.\n\nUser: b?\n\nAssistant: c\n\nUser: d?"


def test_what_the_task_says_before_every_question_is_part_of_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "1 + 1?", "answer": 2}) + "\n")
    files = FilesConfig(path=str(path), heldout_fraction=0, system_prompt="Be brief.")
    shown = question_row("d", "1 + 1?", "2", (Message(role="user", content="0 + 1?"),))
    for row in (load_dataset(files, 0).rows[0], shown):
        assert row.conversation == row.identity == "1 + 1?"
        assert len(row.messages) == 2
