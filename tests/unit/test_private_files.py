"""Files are private from the moment that a process says so, whatever umask it was given."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts import private_files
from artifacts.handover import handover_directory
from artifacts.private_files import keep_private, users_own_files, users_umask
from artifacts.store import Store
from tasks.isolation.child_process import start_child


@pytest.fixture(params=[0o022, 0o000])
def umask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process with this umask, put back afterwards."""
    given = int(request.param)
    monkeypatch.setattr(private_files, "_given", -1)
    before = os.umask(given)
    yield given
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_the_users_alone(tmp_path: Path, umask: int) -> None:
    keep_private()
    Store.open(str(tmp_path / "runs")).child("a").write("steps/1.json", b"{}")
    subprocess.run(["touch", str(tmp_path / "child")], check=True)
    assert {mode(path) & 0o077 for path in tmp_path.rglob("*")} == {0}
    assert users_umask() == umask


def test_a_shared_cache_stays_shared(tmp_path: Path, umask: int) -> None:
    keep_private()
    with users_own_files():
        (tmp_path / "cached").touch()
    (tmp_path / "kept").touch()
    assert mode(tmp_path / "cached") == 0o666 & ~umask
    assert mode(tmp_path / "kept") == 0o600


def test_a_block_leaves_the_umask_as_it_was(umask: int) -> None:
    with private_files.private_files():
        assert os.umask(0o077) == 0o077
    assert os.umask(umask) == umask
    assert users_umask() == -1


def test_a_handover_folder_that_somebody_made_is_closed(tmp_path: Path, umask: int) -> None:
    (tmp_path / "rollflow-a").mkdir()
    with handover_directory(tmp_path, "a") as own:
        assert mode(own) == 0o700


def test_a_child_has_the_umask_that_it_is_to_have(umask: int) -> None:
    keep_private()
    words = "import os, socket, sys; us = socket.socket(fileno=int(sys.argv[1]))"
    words += "; us.send(bytes([os.umask(0)]))"
    for wanted, found in ((-1, 0o077), (0o022, 0o022)):
        child = start_child(
            lambda number: [sys.executable, "-c", words, str(number)], env={}, umask=wanted
        )
        assert child.stream.recv(1)[0] == found
        child.kill()
