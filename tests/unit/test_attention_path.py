"""The attention path as this machine's processor gives it, and what a refused permission says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.commands import doctor
from tasks.engines.vllm.worker_patches import allow_tiles, attention_path


@pytest.mark.parametrize(
    ("machine", "flags", "path"),
    [
        ("x86_64", "fpu avx512f amx_bf16 amx_tile amx_int8", "amx"),
        ("x86_64", "fpu avx512f amx_tile", "vec"),
        ("x86_64", "fpu avx2", "vec"),
        ("aarch64", "asimd bf16", "neon"),
        ("sparc", "", ""),
    ],
)
def test_the_path_follows_from_the_processor(
    tmp_path: Path,
    machine: str,
    flags: str,
    path: str,
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    assert attention_path(machine, tmp_path / "cpuinfo") == path


class Ranks:
    """As much of vLLM as asking its ranks takes."""

    def __init__(self, *granted: bool) -> None:
        self._granted = granted

    def collective_rpc(self, method: Callable[[Any], bool]) -> list[bool]:
        return list(self._granted)


def test_one_refused_rank_is_an_error_with_a_cure() -> None:
    allow_tiles(Ranks(True, True), "bfloat16")
    with pytest.raises(ValueError, match=r"refuses them; allow arch_prctl.* or set dtype float32"):
        allow_tiles(Ranks(True, False), "bfloat16")


def test_float32_needs_no_tiles() -> None:
    allow_tiles(Ranks(False), "float32")


def test_doctor_names_the_attention_path() -> None:
    (finding,) = doctor.check_attention()
    path = attention_path() or "unknown"
    assert (finding.what, finding.found.split(",")[0]) == ("attention on cores", path)
