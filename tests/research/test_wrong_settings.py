"""The command whose time is measured tells every wrong setting, and starts nothing."""

from __future__ import annotations

from research.benchmarks.wrong_settings import WRONG, refusal, unnamed


def test_each_of_the_twenty_settings_is_named_in_one_list() -> None:
    done = refusal(WRONG)
    assert len(WRONG) == 20
    assert len({each.partition("=")[0].partition(".")[0] for each in WRONG}) >= 10
    assert not unnamed(WRONG, done.lines)
    assert "things must be mended before anything starts" in done.lines[0]


def test_a_setting_that_no_line_names_is_found() -> None:
    lines = ["seed is wrong, got 'often'"]
    assert unnamed(["seed=often", "num_steps=no"], lines) == ["num_steps=no"]
