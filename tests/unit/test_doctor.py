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
