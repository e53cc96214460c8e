"""Bad input ends with one clear sentence (rule, value, cure) and a non-zero exit, and leaves
nothing half-written."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.conftest import Launcher

pytestmark = pytest.mark.flow


def complaint(err: str) -> str:
    """The one line that a user is meant to read."""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("learner.lr=1e-5", ("learner.lr", "known field", "--fields")),
        (
            (
                'scheduling={"kind": "tail_batching", "prompt_overprovision": 1,'
                ' "response_overprovision": 1}'
            ),
            ("over-provision", "1.0", "sync"),
        ),
        ("batch.responses_per_prompt=1", ("batch.responses_per_prompt", "2", "1")),
        ("sampling.max_response_tokens=9999", ("max_response_tokens", "9999", "max_model_len")),
        ('cluster.roles="rollout: 0-7, learner: 0"', ("devices 0 to 1", "2", "num_devices")),
        ("cluster.coordinator_slots=2", ("coordinator_slots", "four", "leave it out")),
        ('model={"kind": "path", "path": "/nowhere/model"}', ("/nowhere/model",)),
        ('rewards={"*": {"kind": "custom", "path": "no.such.module:f"}}', ("no.such.module",)),
        ('preset="nonsense"', ("nonsense", "tiny", "smollm2")),
        ("evaluation.num_prompts=100000", ("100000", "--set evaluation.num_prompts=")),
        ("task.num_prompts=3", ("rows", "(4)", "got 3", "--set batch.prompts_per_step=3 fits")),
    ],
)
def test_a_wrong_value_is_named_with_its_cure(
    launcher: Launcher, tmp_path: Path, assignment: str, words: tuple[str, ...]
) -> None:
    finished = launcher.run(tmp_path / "runs", assignment)
    sentence = complaint(finished.err)
    assert finished.code != 0
    assert all(word in sentence for word in words), sentence
    assert not list(tmp_path.glob("runs/*/steps/*"))


def test_a_malformed_row_is_named_with_its_line(launcher: Launcher, tmp_path: Path) -> None:
    data = tmp_path / "questions.jsonl"
    rows = [json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(40)]
    data.write_text("\n".join([*rows, '{"prompt": "no answer"}']) + "\n")
    finished = launcher.run(
        tmp_path / "runs", f"task={json.dumps({'kind': 'files', 'path': str(data)})}"
    )
    sentence = complaint(finished.err)
    assert finished.code != 0
    assert "41" in sentence
    assert "answer" in sentence


def test_an_artifact_root_that_cannot_be_written_is_refused(
    launcher: Launcher, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    finished = launcher.run(in_the_way / "runs")
    assert finished.code != 0
    assert str(in_the_way) in complaint(finished.err)


def test_a_read_only_artifact_root_is_refused(launcher: Launcher) -> None:
    finished = launcher.run(Path("/proc/rollflow-runs"))
    assert finished.code != 0
    assert "/proc" in complaint(finished.err)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs privileges that are not there")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_named(launcher: Launcher, small_disk: Path) -> None:
    finished = launcher.run(small_disk / "runs")
    assert finished.code != 0
    assert "full" in complaint(finished.err)
    assert not list(small_disk.glob("runs/*/steps/*"))


def test_a_port_in_use_is_named(launcher: Launcher, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finished = launcher.run(tmp_path / "runs", f"cluster.dashboard_port={port}")
    assert finished.code != 0
    assert str(port) in complaint(finished.err)


def test_a_scheduler_that_does_not_answer_is_named(launcher: Launcher, tmp_path: Path) -> None:
    finished = launcher.run(
        tmp_path / "runs",
        "cluster.device_kind=cpu",
        "cluster.scheduler_address=tcp://127.0.0.1:9",
        "deadlines.start_s=5",
    )
    assert finished.code != 0
    assert "127.0.0.1:9" in complaint(finished.err)
