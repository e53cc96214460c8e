"""The measurement of what the turn log costs: both kinds of a round are played to their ends."""

from __future__ import annotations

import pytest

from benchmarks import turn_log

SMALL = ["--pairs", "2", "--episodes", "3", "--turns", "2", "--tokens", "24", "--turn-ms", "8"]


def test_rounds_are_compared_in_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    turn_log.main(SMALL)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines[:3]] == ["pair=0", "pair=1", "median"]
    for line in lines[:3]:
        wall = line.partition("wall_s: ")[2].partition(",")[0]
        without_s, with_s = (float(part.partition("=")[2]) for part in wall.split()[:2])
        assert min(without_s, with_s) >= 2 * 0.008, "two turns of 8 ms"
    assert "all 6 lines read back" in lines[-2]


def test_tokens_that_are_all_given_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        turn_log.main(["--tokens", "20"])
    assert "--tokens must be > 20" in capsys.readouterr().err
