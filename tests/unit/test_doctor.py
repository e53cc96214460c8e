"""What the doctor advises."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.commands import doctor


def test_a_clone_below_tmp_has_one_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROOT", Path("/tmp/somebody/clone"))
    (finding,) = doctor.check_environment_hosts()
    assert finding.level == "note"
    assert "lies in /tmp/somebody/clone" in finding.found
    assert finding.cure == "for episodes move the clone out of /tmp"


def test_too_few_open_files_are_no_matter_of_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    (finding,) = doctor.check_environment_hosts()
    assert finding.found.count("must be allowed to open 257 files, its limit is 64; lower") == 1
    assert finding.cure == ""
