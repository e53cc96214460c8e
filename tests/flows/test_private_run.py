"""What a run makes is its user's alone, and the token of a service that it asks is nowhere in it:
`rollflow demo` as others would start it, with a umask that gives all away."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from guarded_service import guarded

from tests.flows.conftest import DRAWN, ENDS_WITHIN_S, SIMULATED, train_words

pytestmark = pytest.mark.flow

TOKEN, VARIABLE = "t0ken-of-the-verdict-service", "VERDICTS_TOKEN"
LOOK_S = 0.2  # between two looks at folders that are gone when the run is


def open_to_others(root: Path) -> set[str]:
    """Files and folders below a folder, itself included, that group or others may use."""
    found = set()
    for path in (root, *root.rglob("*")):
        with suppress(FileNotFoundError):  # gone meanwhile
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found.add(f"{path} {stat.filemode(mode)}")
    return found


def holding(root: Path, words: bytes) -> list[str]:
    """Files below a folder in which these bytes are."""
    files = (path for path in root.rglob("*") if path.is_file())
    return [str(path) for path in files if words in path.read_bytes()]


def test_nobody_else_reads_what_a_run_makes_and_no_token_is_in_it(tmp_path: Path) -> None:
    root, shared = tmp_path / "runs", Path(f"/dev/shm/rollflow-private-{os.getpid()}")
    # in a short path, for sockets lie below it
    with guarded(f"Bearer {TOKEN}") as url, TemporaryDirectory(dir="/tmp") as short:
        scratch = Path(short)
        words = train_words(root, *SIMULATED, DRAWN, f"keep.weights_dir={shared}")[4:]
        command = [sys.executable, "-m", "flows.commands.demo", "--preset", "tiny-sync"]
        command += ["--root", str(root), "--prefect-port", "0", *words]
        for setting in ("kind=service", f"url={url}", f"token_variable={VARIABLE}"):
            command += ["--set", f"rewards.*.{setting}"]
        run = subprocess.Popen(
            command,
            env=os.environ | {VARIABLE: TOKEN, "TMPDIR": str(scratch)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            umask=0,
        )
        passing, weights = set(), set()
        for _ in range(int(ENDS_WITHIN_S / LOOK_S)):
            with suppress(subprocess.TimeoutExpired):
                run.wait(LOOK_S)
                break
            if shared.exists():
                passing |= open_to_others(shared)
                weights |= {*shared.rglob("*.safetensors")}
            for folder in scratch.iterdir():
                passing |= open_to_others(folder)
        said, _ = run.communicate(timeout=ENDS_WITHIN_S)
    assert run.returncode == 0, said
    assert TOKEN not in said
    assert open_to_others(root) == set()
    assert weights
    assert passing == set()
    assert (root / "mlflow.db").is_file()
    assert holding(tmp_path, TOKEN.encode()) == []
