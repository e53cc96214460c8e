"""The hand-over directory: one owner, nothing left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.handover import handover_directory

ELSEWHERE = """
import sys, time
from pathlib import Path
from artifacts.handover import handover_directory
with handover_directory(Path(sys.argv[1]), sys.argv[2]) as own:
    (own / "00001.safetensors").write_bytes(b"weights")
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with the run `other`."""
    with subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path), "other"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_run_has_a_directory_as_long_as_it_runs(tmp_path: Path) -> None:
    with handover_directory(tmp_path / "deep", "run") as own:
        (own / "00001.safetensors").write_bytes(b"weights")
        assert own.parent == tmp_path / "deep"
    assert not own.exists()
    with pytest.raises(OSError, match="boom"), handover_directory(tmp_path / "deep", "run"):
        raise OSError("boom")
    assert not own.exists()


def test_runs_of_one_name_below_two_roots_have_directories_of_their_own(tmp_path: Path) -> None:
    with (
        handover_directory(tmp_path, "mine", "/first/mine") as first,
        handover_directory(tmp_path, "mine", "/second/mine") as second,
    ):
        assert first.name == "rollflow-mine"
        assert second != first
        with (
            pytest.raises(ValueError, match="in one process at a time"),
            handover_directory(tmp_path, "mine", "/second/mine"),
        ):
            pass
    with handover_directory(tmp_path, "mine", "/second/mine") as again:
        assert again == first, "which nobody has any more"


def test_what_a_killed_run_left_is_removed_and_what_is_in_use_is_not(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    weights, foreign = (
        tmp_path / "rollflow-other" / "00001.safetensors",
        tmp_path / "rollflow-notes",
    )
    foreign.mkdir()
    with handover_directory(tmp_path, "mine"):
        assert weights.exists()
        with (
            pytest.raises(ValueError, match="one process at a time"),
            handover_directory(tmp_path, "other"),
        ):
            pass
        assert weights.exists()
    elsewhere.send_signal(signal.SIGKILL)
    elsewhere.wait()
    assert weights.exists()
    with handover_directory(tmp_path, "mine"):
        assert not weights.parent.exists()
    assert foreign.exists()


def test_what_a_run_on_another_host_has_is_left_to_that_host(tmp_path: Path) -> None:
    for name, host in (("far", "another"), ("near", socket.gethostname())):
        left = tmp_path / f"rollflow-{name}"
        left.mkdir()
        (left / "owner.lock").touch()  # whose lock this host may not see
        (left / "host").write_text(host)
    with handover_directory(tmp_path, "mine"):
        assert {path.name for path in tmp_path.glob("rollflow-*")} == {
            "rollflow-far",
            "rollflow-mine",
        }
    with handover_directory(tmp_path, "far") as own:  # and is this run's when it goes on here
        assert (own / "host").read_text() == socket.gethostname()
