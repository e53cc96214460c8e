"""Rows that cannot be used are refused with their place or left out and counted, whatever is wrong
with them; templates, and what they must not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.registry import load_dataset
from artifacts.datasets.rows import Dataset

GOOD = {"prompt": "1 + 1?", "answer": "2"}


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines))
    return path


def load(path: Path, **fields: Any) -> Dataset:
    return load_dataset(FilesConfig(path=str(path), heldout_fraction=0, **fields), 0)


# --- whatever is wrong with a row --------------------------------------------------------------

DEEP = "[" * 50_000
DEEP_TEST = ["assert f(1) == " + "-" * 90_000 + "1"]
CHAT = [{"role": "user", "content": "1?"}]


@pytest.mark.parametrize(
    ("fields", "usable", "unusable", "message"),
    [
        ({"filter": ["level > 1"]}, {"level": 3}, {"level": "hard"}, "'level' must be a number"),
        ({"filter": ["level > 1"]}, {"level": 3}, {}, "field 'level' is missing"),
        ({"filter": ["l.a > 1"]}, {"l": {"a": 3}}, {"l": DEEP}, "field 'l.a' leads into a text"),
        ({"answer_field": "a.of"}, {"a": {"of": 2}}, {"a": None}, "field 'a.of' must be a text"),
        ({"answer_field": "a.of"}, {"a": {"of": 2}}, {"a": DEEP}, "field 'a.of' leads into a text"),
        ({"answer_field": "a.²"}, {"a": {"²": 2}}, {"a": [1]}, "field 'a.²' is missing"),
        ({"messages_field": "m"}, {"m": CHAT}, {"m": DEEP}, "must be a chat as JSON"),
        ({"messages_field": "m"}, {"m": CHAT}, {"m": None}, "must be a list of turns"),
        ({"prompt_template": "{q}?"}, {"q": 1}, {"q": None}, "field 'q' must be a text"),
        ({"answer_form": "tests"}, {"answer": ["assert f(1) == 2"]}, {"answer": DEEP_TEST},
            "field 'answer' must hold tests|must hold values that can be read"),
        ({"answer_form": "tests"}, {"answer": ["assert f(1) == 2"]}, {"answer": None},
            "field 'answer' must hold tests"),
        ({"answer_form": "tagged"}, {"answer": "<answer> 2 </answer>"}, {"answer": "2"},
            "field 'answer' must hold an answer within <answer></answer>, got '2'"),
        ({"answer_form": "tagged"}, {"answer": "<answer>2</answer>"},
            {"answer": "<answer> </answer>"}, "field 'answer' must hold an answer within"),
        ({"domain_field": "tag"}, {"tag": "t"}, {"tag": None}, "field 'tag' must be a text"),
        ({}, {}, {"prompt": ""}, "field 'prompt' must be a text"),
    ],
)  # fmt: skip
def test_an_unusable_row_is_refused_with_its_place_or_left_out_and_counted(
    tmp_path: Path,
    fields: dict[str, Any],
    usable: dict[str, Any],
    unusable: dict[str, Any],
    message: str,
) -> None:
    path = write(tmp_path / "rows.jsonl", GOOD | usable, GOOD | unusable)
    with pytest.raises(ValueError, match=rf"rows.jsonl:2: .*({message})[\s\S]*unusable_rows=skip"):
        load(path, **fields)
    dataset = load(path, **fields, unusable_rows="skip")
    assert (len(dataset.rows), dataset.left_out) == (1, {"unusable": 1})


def test_a_row_without_the_shape_of_its_file_is_unusable(tmp_path: Path) -> None:
    for name, lines in {
        "rows.csv": ("prompt,answer", "1?", "2?,3,4", "5?,6"),
        "rows.jsonl": ("[1]", '"2?"', json.dumps(GOOD)),
    }.items():
        path = write(tmp_path / name, *lines)
        with pytest.raises(ValueError, match=rf"{name}:\d: .*unusable_rows=skip"):
            load(path)
        dataset = load(path, unusable_rows="skip")
        assert (len(dataset.rows), dataset.left_out) == (1, {"unusable": 2})


def test_a_null_meets_no_condition_wherever_it_stands(tmp_path: Path) -> None:
    rows = [{**GOOD, "l": level} for level in (None, {"a": None}, {"a": {"b": None}})]
    path = write(tmp_path / "rows.jsonl", *rows, {**GOOD, "l": {"a": {"b": 1}}})
    for condition in ("l.a.b >= 1", "l.a.b != 2", "l.a.b in 1, 2"):
        dataset = load(path, filter=[condition])
        assert (len(dataset.rows), dataset.left_out) == (1, {"filtered": 3})


# --- templates ---------------------------------------------------------------------------------

FORMULA = {"q": "2 * 3?", "x": "{a}", "answer": 6}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"{q} Put it into \boxed{{answer}}.", r"2 * 3? Put it into \boxed{answer}."),
        (r"{q} Put it into \boxed{}.", r"2 * 3? Put it into \boxed{}."),
        (r"{q} Put it into \boxed{{}}.", r"2 * 3? Put it into \boxed{}."),
        ("{{{q}}}", "{2 * 3?}"),
        ("{{{{{q}", "{{2 * 3?"),
        ("{x} {{x}} {q}", "{a} {x} 2 * 3?"),
        ('{{"a": {{"b": "{q}"}}}}', '{"a": {"b": "2 * 3?"}}'),
    ],
)
def test_a_template_has_doubled_braces_for_those_that_it_means(
    tmp_path: Path, template: str, expected: str
) -> None:
    path = write(tmp_path / "rows.jsonl", FORMULA)
    assert load(path, prompt_template=template).rows[0].text == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_template": r"{q} \boxed{answer}"}, r"not show .*{{answer}} for the text"),
        ({"prompt_template": "{q} {r}", "answer_field": "r.gold"}, r"not show the answer, got {r}"),
        ({"prompt_template": "{q} {r.gold.0}", "answer_field": "r.gold"}, "not show the answer"),
        ({"prompt_template": "{q} {s}", "answer_form": "tests", "solution_field": "s"},
            r"not show the answer, got {s}"),
        ({"prompt_template": "{q} {the answer}"}, r"a brace in prompt_template.*{the answer}'"),
        ({"prompt_template": "{q} }"}, r"a brace .* write {{ or }} for the brace"),
        ({"prompt_template": "{q!r}"}, "must name a field in braces"),
        ({"prompt_template": "{{q}}"}, "must name a field in braces"),
    ],
)  # fmt: skip
def test_a_template_that_shows_the_answer_or_is_none_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        FilesConfig(path="x", **fields)


def test_a_template_may_name_fields_that_are_called_like_the_answer() -> None:
    FilesConfig(path="x", prompt_template="{answers} {an} {r.other}", answer_field="answer")
