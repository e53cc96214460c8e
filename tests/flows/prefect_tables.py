"""Prefect's data base with its tables: its migrations take some twenty seconds of a core for every
new one, so they are made once and copied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import prefect
from filelock import FileLock

from artifacts.reports.mlflow_client import sqlite_uri
from flows.commands.local_stack import DATABASE, prefect_environment

CACHE = Path(__file__).parents[2] / ".cache"


def make_tables() -> Path:
    """The data base of this version of Prefect; made by one process where it is not there yet."""
    made = CACHE / f"prefect-{prefect.__version__}.db"
    CACHE.mkdir(exist_ok=True)
    with FileLock(f"{made}.lock"):
        if not made.exists():
            home = made.with_suffix(".home")
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
            tables = home / "prefect.db"
            own = {DATABASE: sqlite_uri(tables, "sqlite+aiosqlite")}
            environment = os.environ | prefect_environment(home, port=1) | own  # no server listens
            subprocess.run(command, env=environment, check=True, capture_output=True)
            tables.rename(made)
            shutil.rmtree(home)
    return made


def copy_tables(root: Path) -> None:
    """For a server that begins below this artifact root."""
    home = root / ".prefect"
    home.mkdir()
    shutil.copy(make_tables(), home / "prefect.db")
