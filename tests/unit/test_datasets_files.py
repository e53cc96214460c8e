"""Users' files: every format, field mapping, filter and limit, and errors that name file, row,
field and cure."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.registry import load_dataset
from artifacts.datasets.rows import Dataset

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
        ({"answer": "2"}, {}, r"rows.jsonl:2: field 'prompt' is missing, there is 'answer'"),
        ({"prompt": "1?"}, {}, r"rows.jsonl:2: field 'answer' is missing"),
        ({"prompt": " ", "answer": "2"}, {},
            r"rows.jsonl:2: field 'prompt' must be a text or a number and not blank"),
        ({"prompt": "1?", "answer": None}, {}, r"rows.jsonl:2: field 'answer' must be a text"),
        ('{"prompt": "1?", "answer": NaN}', {}, r"rows.jsonl:2: field 'answer' must be .*'nan'"),
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
        ([{"role": "user", "content": " "}], r"must end with a user turn that is not blank"),
        ([], r"must end with a user turn"),
    ],
)
def test_a_malformed_chat_is_named(tmp_path: Path, chat: Any, message: str) -> None:
    path = write(tmp_path, {"messages": chat, "answer": "2"})
    with pytest.raises(ValueError, match=message):
        load(path, messages_field="messages")


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"absent.jsonl \(No such file or directory\); correct the"
    ):
        load(str(tmp_path / "absent.jsonl"))
    with pytest.raises(ValueError, match="at least one row"):
        load(write(tmp_path, "", ""))


def test_a_damaged_file_is_named_whatever_reads_it(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{json.dumps(row)}\n" for row in SUMS * 100).encode())
    columns = {"prompt": [f"{number}?" for number in range(5000)], "answer": list(range(5000))}
    pq.write_table(pa.table(columns), tmp_path / "rotten.parquet")
    rotten = (tmp_path / "rotten.parquet").read_bytes()
    for name, data in {
        "cut.jsonl.gz": whole[:-40],
        "none.jsonl.gz": b"no gzip",
        "none.jsonl.xz": b"no xz",
        "rotten.parquet": rotten[:2000] + b"\xff" * 400 + rotten[2400:],
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name}: must be a whole file .*; copy it again"):
            load(str(tmp_path / name))
    (tmp_path / "deep.jsonl").write_bytes(b'{"prompt": ' + b"[" * 100_000)
    with pytest.raises(ValueError, match=r"deep.jsonl:1: every line must be one JSON object"):
        load(str(tmp_path / "deep.jsonl"))


def test_a_packed_file_that_nothing_here_unpacks_is_no_damaged_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(fsspec.compression.compr, "zstd", raising=False)
    monkeypatch.delitem(fsspec.utils.compressions, "zst", raising=False)
    path = write(tmp_path, GOOD, name="rows.jsonl.zst")
    with pytest.raises(ValueError, match=r"unpacks .zst, got .*; pip install zstandard"):
        load(path)


def test_whole_numbers_of_any_size_are_answers(tmp_path: Path) -> None:
    assert load(write(tmp_path, {**GOOD, "answer": 10**400})).rows[0].gold == str(10**400)


def test_a_system_prompt_beside_a_chat_is_refused() -> None:
    with pytest.raises(ValidationError, match="messages_field goes without system_prompt"):
        FilesConfig(path="x", messages_field="messages", system_prompt="Be brief.")


def test_a_chat_beside_a_template_is_refused() -> None:
    with pytest.raises(ValidationError, match="goes without system_prompt and prompt_template"):
        FilesConfig(path="x", messages_field="messages", prompt_template="{a}")


def test_a_template_that_names_no_field_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"must name a field .* the same; write"):
        FilesConfig(path="x", prompt_template="Answer: {the question}")


SUMS = [{"prompt": f"{number} + 1?", "answer": number + 1} for number in range(30)]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    return str(path)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    lines = load(write(tmp_path, *SUMS))
    table = load(write_parquet(tmp_path / "rows.parquet", SUMS))
    values = load(write_csv(tmp_path / "rows.csv", SUMS))
    assert lines.digest == table.digest == values.digest
    assert len(lines.rows) == 30


def test_a_csv_file_may_have_a_column_without_a_name(tmp_path: Path) -> None:
    path = write(tmp_path, ",prompt,answer", "0,1 + 1?,2", name="rows.csv")
    assert load(path).rows[0].gold == "2"
    path = write(tmp_path, ",prompt,answer", "0,1 + 1?,2,3", name="rows.csv")
    with pytest.raises(ValueError, match=r"rows.csv:2: every row must have as many values"):
        load(path)


@pytest.mark.parametrize(
    ("answers", "golds"),
    [
        (pa.array([0.1, 2.5, None, -1e-30], pa.float32()), ["0.1", "2.5", "-1e-30"]),
        (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), ["1.50"]),
        (pa.array([1.5, float("nan")]), ["1.5"]),
    ],
)
def test_numbers_of_parquet_are_taken_as_they_were_written(
    tmp_path: Path, answers: pa.Array, golds: list[str]
) -> None:
    prompts = [f"question {number}" for number in range(len(answers))]
    pq.write_table(pa.table({"prompt": prompts, "answer": answers}), tmp_path / "rows.parquet")
    dataset = load(str(tmp_path / "rows.parquet"), unusable_rows="skip")
    assert [row.gold for row in dataset.rows] == golds


def test_a_format_may_be_named_where_the_suffix_says_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, *SUMS, name="rows.txt")
    with pytest.raises(ValueError, match=r"must end with one of .parquet, .*set task.format"):
        load(path)
    assert len(load(path, format="jsonl").rows) == 30
    with pytest.raises(ValueError, match=r"rows.txt: must be a Parquet file"):
        load(path, format="parquet")


def test_any_file_system_will_do_and_several_files(tmp_path: Path) -> None:
    for number in range(3):
        with fsspec.open(f"memory://sums/part-{number}.jsonl", "w") as file:
            file.write("\n".join(map(json.dumps, SUMS[number * 10 : number * 10 + 10])))
    assert load("memory://sums/part-*.jsonl").digest == load(write(tmp_path, *SUMS)).digest
    with pytest.raises(ValueError, match="must match at least one file"):
        load("memory://sums/absent-*.jsonl")
    with pytest.raises(ValueError, match=r"nonsense://x.jsonl \(Protocol not known"):
        load("nonsense://x.jsonl")


def test_fields_lie_as_deep_as_they_like(tmp_path: Path) -> None:
    row = {
        "a.b": "dotted",
        "reward": {"truth": 7, "by": [{"name": "f"}]},
        "extra": json.dumps({"kind": "sums"}),
    }
    paths = {"prompt_field": "a.b", "answer_field": "reward.truth", "domain_field": "extra.kind"}
    for path in (write(tmp_path, row), write_parquet(tmp_path / "rows.parquet", [row])):
        (found,) = load(path, **paths).rows
        assert (found.text, found.gold, found.domain) == ("dotted", "7", "sums")
        (found,) = load(path, prompt_template="Do {reward.by.0.name}!", answer_field="a.b").rows
        assert found.text == "Do f!"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("reward.none", r"rows.jsonl:1: field 'reward.none' is missing, there is 'by', 'truth'"),
        ("reward.by.3", r"there is a list of 0"),
        ("reward.truth.x", r"there is 7"),
        ("prompt.x", r"leads into a text that must be JSON, got '1 \+ 1"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_there_is(
    tmp_path: Path, path: str, message: str
) -> None:
    rows = write(tmp_path, {"prompt": "1 + 1?", "reward": {"truth": 7, "by": []}})
    with pytest.raises(ValueError, match=message):
        load(rows, answer_field=path)


def test_a_column_that_is_missing_is_named_before_a_row_is_read(tmp_path: Path) -> None:
    for path in (
        write_parquet(tmp_path / "rows.parquet", SUMS),
        write_csv(tmp_path / "rows.csv", SUMS),
    ):
        with pytest.raises(ValueError, match=r"field 'gold' is missing, the file has 'prompt'"):
            load(path, answer_field="gold")


def test_a_bad_row_is_named_in_every_format(tmp_path: Path) -> None:
    rows = [*SUMS[:9], {"prompt": "  ", "answer": 3}]
    with pytest.raises(ValueError, match=r"rows.parquet:10: field 'prompt' must be a text"):
        load(write_parquet(tmp_path / "rows.parquet", rows))
    with pytest.raises(ValueError, match=r"rows.csv:11: field 'prompt' must be a text"):
        load(write_csv(tmp_path / "rows.csv", rows))
    short = write(tmp_path, "prompt,answer", "1 + 1?", name="short.csv")
    with pytest.raises(ValueError, match=r"short.csv:2: every row must have as many values"):
        load(short)
    (tmp_path / "latin.csv").write_bytes(b"prompt,answer\n\xe4?,1\n")
    with pytest.raises(ValueError, match=r"latin.csv:\d: must be CSV in UTF-8"):
        load(str(tmp_path / "latin.csv"))


GRADED = [
    {"prompt": f"{number}?", "answer": 1, "level": str(number), "tags": ["even", "odd"][number % 2]}
    for number in range(12)
]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["level >= 9"], ["9?", "10?", "11?"]),
        (["level < 3", "tags == odd"], ["1?"]),
        (["level in 2, 3, 40"], ["2?", "3?"]),
        (['level in ["2", 3.0]'], ["2?", "3?"]),
        (["tags != odd", "level > 8.5"], ["10?"]),
        (["prompt contains 11"], ["11?"]),
        (["prompt == 4?"], ["4?"]),
    ],
)
def test_a_filter_keeps_what_meets_every_condition(
    tmp_path: Path, conditions: list[str], expected: list[str]
) -> None:
    dataset = load(write(tmp_path, *GRADED), filter=conditions)
    assert [row.text for row in dataset.rows] == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("price >= 2", ["c?"]),
        ("price == 1.50", ["b?"]),
        ("price != 1.5", ["a?", "c?"]),
        ("price in 0.1, 2", ["a?", "c?"]),
        ("day == 2024-01-02", ["b?"]),
        ("day in 2024-01-01, 2024-01-03", ["a?", "c?"]),
        ("day contains 2024", ["a?", "b?", "c?"]),
        ("good == true", ["a?", "c?"]),
        ("good == True", ["a?", "c?"]),
        ("good != True", ["b?"]),
        ("good in False", ["b?"]),
    ],
)
def test_a_filter_reads_what_parquet_has_beside_numbers_and_texts(
    tmp_path: Path, condition: str, expected: list[str]
) -> None:
    columns = {
        "prompt": ["a?", "b?", "c?"],
        "answer": [1, 2, 3],
        "price": list(map(Decimal, ("0.10", "1.50", "2.00"))),
        "day": [date(2024, 1, day) for day in (1, 2, 3)],
        "good": [True, False, True],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    dataset = load(str(tmp_path / "rows.parquet"), filter=[condition])
    assert [row.text for row in dataset.rows] == expected


def test_a_filter_without_sense_is_refused(tmp_path: Path) -> None:
    for condition in ("level", "level => 3", "tags < odd"):
        with pytest.raises(ValidationError, match=r"a filter"):
            FilesConfig(path="x", filter=(condition,))
    path = write(tmp_path, *GRADED)
    with pytest.raises(ValueError, match=r"rows.jsonl:1: field 'tags' must be a number"):
        load(path, filter=["tags < 3"])
    with pytest.raises(ValueError, match=r"none of .* under the filter \['level > 99'\]"):
        load(path, filter=["level > 99"])


@pytest.mark.parametrize("as_text", [True, False])
def test_long_whole_numbers_are_told_apart(tmp_path: Path, as_text: bool) -> None:
    numbers = [2**53, 2**53 + 1, 10**400]
    rows = [{**GOOD, "id": str(number) if as_text else number} for number in numbers]
    path = write(tmp_path, *rows)
    for condition in (f"id == {2**53 + 1}", f"id in {2**53 + 1}", f"id > {10**399}"):
        assert len(load(path, filter=[condition]).rows) == 1


def test_null_meets_no_condition(tmp_path: Path) -> None:
    path = write(tmp_path, {**GOOD, "level": None}, {**GOOD, "level": 2})
    for condition in ("level != 1", "level > 1", "level in 2"):
        assert len(load(path, filter=[condition]).rows) == 1


def test_a_limit_counts_rows_that_are_taken(tmp_path: Path) -> None:
    dataset = load(write(tmp_path, *GRADED[:4], "{broken"), filter=["tags == odd"], limit=2)
    assert [row.text for row in dataset.rows] == ["1?", "3?"]


def test_unusable_rows_are_left_out_where_that_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, GOOD, {"prompt": None, "answer": 1}, {"prompt": "2?"})
    dataset = load(path, unusable_rows="skip")
    assert [row.text for row in dataset.rows] == [GOOD["prompt"]]
    assert "rows_left_out=2" in caplog.text
    assert "rows.jsonl:2: field 'prompt'" in caplog.text
    with pytest.raises(ValueError, match=r"none of .* usable, the first because of: .*:1: field"):
        load(write(tmp_path, {"prompt": None}), unusable_rows="skip")


def test_questions_to_evaluate_on_may_have_a_file_of_their_own(tmp_path: Path) -> None:
    train = write(tmp_path, *SUMS)
    asked = write_parquet(tmp_path / "test.parquet", SUMS[:3])
    dataset = load(train, heldout_path=asked, heldout_fraction=0.9)
    assert len(dataset.rows) == 27
    assert {row.text for row in dataset.heldout} == {row["prompt"] for row in SUMS[:3]}
    with pytest.raises(ValueError, match="must hold a question that is not held out"):
        load(asked, heldout_path=train)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for number in range(4_000):
            file.write(json.dumps({"prompt": f"{number} {'x' * 5_000}", "answer": "1"}) + "\n")
    tracemalloc.start()
    dataset = load(str(path), heldout_fraction=0.1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 20e6
    assert peak < 2e6
    assert (len(dataset.rows), len(dataset.heldout)) == (3_600, 400)
    assert dataset.rows[17].text.partition(" ")[2] == "x" * 5_000
