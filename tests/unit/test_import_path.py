"""Files that are imported by their path: whole for every thread, once a process, again after a
failure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts.import_path import absolute, find

THREADS = 8


def test_threads_that_import_a_slow_file_at_once_all_get_its_one_class(tmp_path: Path) -> None:
    path = tmp_path / "slow_game.py"
    path.write_text("import time\ntime.sleep(0.2)\n\n\nclass Game:\n    pass\n")
    with ThreadPoolExecutor(THREADS) as threads:
        found = set(threads.map(find, [f"{path}:Game"] * THREADS))
    assert len(found) == 1


def test_a_file_that_failed_is_imported_again_when_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "mended_game.py"
    path.write_text("raise RuntimeError('not yet')\n")
    with pytest.raises(RuntimeError, match="not yet"):
        find(f"{path}:Game")
    path.write_text("class Game:\n    pass  # longer than before: its bytecode is another\n")
    assert find(f"{path}:Game").__name__ == "Game"


def test_a_file_may_import_another_by_its_path(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner_game.py", tmp_path / "outer_game.py"
    inner.write_text("class Game:\n    pass\n")
    outer.write_text(
        f"from artifacts.import_path import find\n\nGame = find({str(inner) + ':Game'!r})\n"
    )
    assert find(f"{outer}:Game").__name__ == "Game"


def test_a_file_s_path_holds_anywhere_and_may_begin_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    mine = f"{tmp_path}/mine.py:reward"
    assert absolute("~/mine.py:reward") == absolute("mine.py:reward") == mine
    assert absolute("package.mine:reward") == "package.mine:reward"
