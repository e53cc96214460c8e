"""Numbers of any Arrow type, however deep they lie, are read as somebody wrote them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.parquet_rows import rows_of, values_of
from artifacts.datasets.registry import load_dataset

# a type, and a value of it with the text that a person would write for it
Leaf = tuple[Any, Any, str]


def of_width(kind: Any, bits: int) -> st.SearchStrategy[Leaf]:
    """Short decimals, as answers are."""
    narrow = {16: np.float16, 32: np.float32, 64: np.float64}[bits]
    numbers = st.floats(-1000, 1000, width=bits).map(lambda value: float(str(narrow(value))))
    return numbers.map(lambda value: (kind, narrow(value), str(value)))


LEAVES: st.SearchStrategy[Leaf] = st.one_of(
    of_width(pa.float16(), 16),
    of_width(pa.float32(), 32),
    of_width(pa.float64(), 64),
    st.integers(-128, 127).map(lambda value: (pa.int8(), value, str(value))),
    st.integers(0, 2**64 - 1).map(lambda value: (pa.uint64(), value, str(value))),
    st.decimals(-1000, 1000, places=2).map(lambda v: (pa.decimal128(9, 2), v, str(v))),
    st.decimals(-1000, 1000, places=3).map(lambda v: (pa.decimal256(60, 3), v, str(v))),
    st.text("ab é²\n", min_size=1).filter(str.strip).map(lambda v: (pa.string(), v, v)),
    st.text("ab", min_size=1).map(lambda v: (pa.large_string(), v, v)),
)


@st.composite
def nested(draw: st.DrawFn) -> tuple[Any, str, str]:
    """A column of three rows, the first null where its type wraps another; a path; a text."""
    kind, value, text = draw(LEAVES)
    path = "column"
    for wrap in draw(st.lists(st.sampled_from(sorted(WRAPS)), max_size=4)):
        kind, value, step = WRAPS[wrap](kind, value)
        path = path.replace("column", f"column{step}", 1)
    return pa.array([None, value, value], kind), path, text


WRAPS: dict[str, Any] = {
    "struct": lambda kind, value: (
        pa.struct([("other", pa.float32()), ("of", kind)]), {"other": 0.5, "of": value}, ".of"),
    "list": lambda kind, value: (pa.list_(kind), [None, value], ".1"),
    "large list": lambda kind, value: (pa.large_list(kind), [value], ".0"),
    "map": lambda kind, value: (pa.map_(pa.string(), kind), [("a", None), ("k", value)], ".k"),
}  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nested())
def test_a_gold_is_what_was_written_into_the_column(
    tmp_path: Path, column: tuple[Any, str, str]
) -> None:
    values, path, text = column
    table = pa.table({"prompt": ["1?", "2?", "3?"], "column": values})
    pq.write_table(table, tmp_path / "rows.parquet")
    config = FilesConfig(
        path=str(tmp_path / "rows.parquet"), answer_field=path, heldout_fraction=0,
        unusable_rows="skip",
    )  # fmt: skip
    dataset = load_dataset(config, 0)
    assert [row.gold for row in dataset.rows] == [text, text]
    assert dataset.left_out == {"unusable": 1}


@given(st.lists(st.none() | st.floats(width=32), min_size=1))
def test_a_number_of_32_bits_means_what_arrow_says_it_means(numbers: list[float | None]) -> None:
    array = pa.array(numbers, pa.float32())
    expected = array.cast(pa.string()).cast(pa.float64()).to_pylist()
    np.testing.assert_array_equal(
        np.array(values_of(array), float), np.array(expected, float), strict=True
    )


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([0.1, 0.1], pa.float32()).dictionary_encode(), [0.1, 0.1]),
        (pa.array([[0.1], None, []], pa.list_view(pa.float32())), [[0.1], None, []]),
        (pa.compute.run_end_encode(pa.array([0.1, 0.1], pa.float32())), [0.1, 0.1]),
        (pa.array([[0.1, 0.2]], pa.list_(pa.float32(), 2)).slice(0), [[0.1, 0.2]]),
        (
            pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.float32(), (2,)),
                pa.array([[0.1, 0.2]], pa.list_(pa.float32(), 2)),
            ),
            [[0.1, 0.2]],
        ),
        (pa.array([{"a": 0.1}, {"a": 0.2}], pa.struct([("a", pa.float16())]))[1:], [{"a": 0.2}]),
        (pa.array([{}, None], pa.struct([])), [{}, None]),
        (pa.array([b"\xff", None]), [b"\xff", None]),
        (pa.array([Decimal("1.50")]), [Decimal("1.50")]),
    ],
)
def test_types_that_stand_for_others_are_read_through(array: Any, expected: list[Any]) -> None:
    assert values_of(array) == expected


def test_times_that_python_has_not_hinder_no_other_field() -> None:
    struct = pa.array(
        [{"at": 2**62, "gold": "7"}, {"at": 0, "gold": "8"}],
        pa.struct([("at", pa.timestamp("s")), ("gold", pa.string())]),
    )
    rows = list(rows_of(pa.record_batch({"column": struct})))
    assert [row["column"]["gold"] for row in rows] == ["7", "8"]
    assert str(rows[1]["column"]["at"]) == "1970-01-01 00:00:00"
