"""The table of architectures: a cell says how its check ended, whatever became of it, and a page
keeps the cells that nobody tried again."""

from __future__ import annotations

from pathlib import Path

import ending_checks
import pytest

from artifacts.models.registry import SEEING
from research.benchmarks.architecture_table import (
    COLUMNS,
    EXPERTS,
    LEARNER,
    NOT_TRIED,
    NOTHING_THERE,
    PICTURES,
    Check,
    cell_of,
    import_once,
    rows_of,
    with_cells,
)
from research.benchmarks.architectures import main
from research.benchmarks.tiny_architectures import ARCHITECTURES, LABELS
from research.paper.compared import BEGIN, END

import_once(["research.benchmarks.architecture_table"])
PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.parametrize(
    ("check", "deadline_s", "cell"),
    [
        (ending_checks.passes, 60, "passes, llama in 3 steps"),
        (ending_checks.says_nothing, 60, "passes"),
        (ending_checks.refuses, 60, "refused: sinks (two)"),
        (ending_checks.refuses_in_other_words, 60, "refused: heads must be 32 wide, got 5"),
        (ending_checks.is_wrong, 60, "fails: no such tensor; write it anew"),
        (ending_checks.is_wrong_in_cells, 60, "fails: norm.weight: 3 / 4"),
        (ending_checks.fails, 60, "fails: StopIteration"),
        (ending_checks.dies, 60, "fails: its process ended with 7"),
        (ending_checks.hangs, 0.5, "fails: no result within 0.5 s"),
    ],
)
def test_a_cell_says_how_its_check_ended(check: Check, deadline_s: float, cell: str) -> None:
    assert cell_of(check, "llama", deadline_s) == cell


def test_the_learners_column_of_one_architecture_is_written_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter")
    main(["--only", "llama", "--columns", LEARNER, PICTURES, EXPERTS, "--markdown", str(page)])
    rows = rows_of(page.read_text())
    assert [*rows] == [*LABELS.values()]
    assert rows["Llama"] == ["passes", NOT_TRIED, NOT_TRIED, NOTHING_THERE, NOTHING_THERE]
    assert rows["Qwen3"] == [NOT_TRIED] * len(COLUMNS)
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter")


def test_cells_that_nobody_tried_again_stay_as_they_are() -> None:
    first = with_cells(f"{BEGIN}\n{END}", ["Llama", "Phi"], {("Llama", LEARNER): "passes"})
    second = with_cells(first, ["Phi", "Llama"], {("Phi", LEARNER): "refused: why"})
    assert {label: row[0] for label, row in rows_of(second).items()} == {
        "Phi": "refused: why",
        "Llama": "passes",
    }


def test_the_documents_have_a_row_for_every_architecture() -> None:
    assert LABELS.keys() == ARCHITECTURES.keys() | SEEING.keys()
    assert [*rows_of(PAGE.read_text())] == [*LABELS.values()]
