"""What the doctor advises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.commands import doctor
from tasks.environments.processes import walls as origin_walls
from tasks.isolation.interpreter import own


def test_a_clone_below_tmp_has_one_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_walls, "ROOT", Path("/tmp/somebody/clone"))
    (finding,) = doctor.check_environment_hosts()
    assert finding.level == "note"
    assert "none (/tmp/somebody/clone is below /tmp" in finding.found
    assert finding.cure == "for episodes move the clone and its virtual environment out of /tmp"


def test_packages_below_tmp_have_the_same_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydantic.__file__", "/tmp/venv/lib/site-packages/pydantic/__init__.py")
    (finding,) = doctor.check_environment_hosts()
    assert finding.found.startswith("none (/tmp/venv/lib/site-packages/pydantic")
    assert finding.cure == "for episodes move the clone and its virtual environment out of /tmp"


def test_a_python_below_tmp_is_no_matter_of_the_kernels_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = replace(own(), library="/tmp/python/lib/python3.11")
    monkeypatch.setattr(doctor, "own", lambda: moved)
    (finding,) = doctor.check_sandbox()
    assert finding.found.startswith("none (Python lies in /tmp/python/lib/python3.11, and programs")
    assert finding.cure == "for code rewards move Python out of /tmp"


def test_too_few_open_files_are_no_matter_of_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    (finding,) = doctor.check_environment_hosts()
    assert finding.found.count("must be allowed to open 257 files, its limit is 64; lower") == 1
    assert finding.cure == ""
