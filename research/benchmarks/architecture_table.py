"""The table of architectures in a page of the documents, cell by cell.

    architecture, check ─▶ a process of its own ─▶ cell ─▶ the page, between its marks

What a check raises, and how its process dies, is told in the cell; the others go on. Cells that
nobody tried again stay as they are on the page. Leaves out what is checked (`architectures`).
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from research.ablations.ablation_figures import markdown_table
from research.paper.compared import BEGIN, END, with_figures

LEARNER, ENGINE, ADAPTER, PICTURES, EXPERTS = COLUMNS = (
    "learner", "engine and weight check", "adapter", "pictures", "experts",
)  # fmt: skip
HEAD = ("architecture", *COLUMNS)
NOT_TRIED, NOTHING_THERE = "not tried", "-"  # the latter: it has no experts, it sees nothing
DEADLINE_S = 900.0  # of a check, on a machine that does much else
MOST_LETTERS = 160  # of a failure in a cell
# takes the name of an architecture and an empty folder, returns what there is to say of a pass;
# raises StartRefused, and any other error where it fails
Check = Callable[[str, Path], str]
_CONTEXT = multiprocessing.get_context("forkserver")  # processes that find everything imported


class StartRefused(Exception):
    """What a run refuses before it starts."""


@contextmanager
def refusals() -> Iterator[None]:
    """Make refusals of the ValueErrors of a block."""
    try:
        yield
    except ValueError as error:
        raise StartRefused(str(error)) from error


def import_once(modules: Sequence[str]) -> None:
    """Import these modules once for all processes to come."""
    _CONTEXT.set_forkserver_preload([*modules])


def cell_of(check: Check, name: str, deadline_s: float = DEADLINE_S) -> str:
    """What the table says of an architecture after this check, in a process of its own."""
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_send_outcome, args=(sender, check, name))
    process.start()
    sender.close()
    try:
        if not receiver.poll(deadline_s):
            return f"fails: no result within {deadline_s:g} s"
        told: str = receiver.recv()
        return told
    except EOFError:
        process.join()
        return f"fails: its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _send_outcome(sender: Connection, check: Check, name: str) -> None:
    sender.send(outcome(check, name))


def outcome(check: Check, name: str) -> str:
    """What a cell says: passes, refused or fails, and with what."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            said = check(name, Path(folder))
        except StartRefused as refusal:
            return f"refused: {reason_of(refusal)}"
        except Exception as failure:
            traceback.print_exc()
            return f"fails: {_first_line(failure)[:MOST_LETTERS]}"
    return f"passes, {said}" if said else "passes"


def reason_of(refusal: Exception) -> str:
    """What is in the way, without the model's folder and the cure."""
    line = _first_line(refusal)
    return (line.partition(": it has ")[2] or line).partition(";")[0]


def _first_line(error: Exception) -> str:
    """The first line of the error's words; a bar would end the cell, and is a slash."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line.replace("|", "/")


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of the table between a page's marks, by their first cell."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {label: row for label, *row in cells[2:]}  # the head, and the line below


def with_cells(page: str, labels: Sequence[str], cells: Mapping[tuple[str, str], str]) -> str:
    """The page with these cells, by label and column, in its table. labels: of all rows, in their
    order."""
    kept = rows_of(page)
    rows = []
    for label in labels:
        before = kept.get(label, [NOT_TRIED] * len(COLUMNS))
        found = [
            cells.get((label, column), old) for column, old in zip(COLUMNS, before, strict=True)
        ]
        rows.append((label, *found))
    return with_figures(page, markdown_table(HEAD, rows))
