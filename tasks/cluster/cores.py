"""What the cores of this machine multiply fast."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# those with which torch has products of bf16 matrices on x86; without them each is a plain loop
_BF16 = frozenset({"avx512bw", "avx512vl", "avx512dq"})


def multiply_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """True unless torch's products of bf16 matrices are known to be slow here: a backward pass on
    an x86 core with AVX2 alone takes fifty times that of fp32. Imports no torch."""
    try:
        flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):  # no Linux, or no x86
        return True
    return set(flags.split()) >= _BF16
