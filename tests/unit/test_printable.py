"""Nothing that a model or an environment writes acts on a terminal, a page or a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transcript_factories import HOSTILE

from artifacts.episodes import Ending
from artifacts.printable import (
    LINE_CHARACTERS,
    MAX_CHARACTERS,
    MAX_LINES,
    printable,
    printable_line,
)
from tasks.environments.base import EnvironmentFailed


def test_nothing_invisible_is_printed() -> None:
    shown = printable(HOSTILE)
    assert shown.isprintable()
    assert shown.startswith("\\x1b[31mred\\x1b[0m \\u202e:smile:")
    assert shown.endswith("\\ud800")
    assert printable("a\r\n\tb\u2028") == "a\\r\n\\tb\\u2028"
    assert printable("grün 猫 😀") == "grün 猫 😀"


@pytest.mark.parametrize(
    ("text", "left"), [("x" * (MAX_CHARACTERS + 1234), 1234), ("x\n" * (MAX_LINES + 5), 11)]
)
def test_a_long_text_is_cut_and_says_by_how_much(text: str, left: int) -> None:
    shown = printable(text)
    assert shown.endswith(f" … {left:,} more characters")
    assert len(shown) < MAX_CHARACTERS + 40
    assert shown.count("\n") < MAX_LINES
    assert printable(text[: len(text) - left]) == shown.rpartition(" … ")[0]


@given(st.text(alphabet=st.characters()), st.integers(3, LINE_CHARACTERS))
def test_a_line_is_printable_ascii_within_its_bound(text: str, max_chars: int) -> None:
    line = printable_line(text, max_chars)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= max_chars
    assert printable_line(line, max_chars) == line


def test_a_line_keeps_what_can_be_read_and_says_that_it_was_cut() -> None:
    assert printable_line('it\'s\n"C:\\x"\x07 grün\ud800') == 'it\'s "C:\\x"\\x07 gr\\xfcn\\ud800'
    assert printable_line("x" * 11, 10) == "x" * 7 + "..."


def test_the_reason_of_a_failed_environment_is_such_a_line() -> None:
    failed = EnvironmentFailed(Ending.CRASHED, "no\nsuch \x1bgame")
    assert (failed.detail, str(failed)) == ("no such \\x1bgame", "no such \\x1bgame")
