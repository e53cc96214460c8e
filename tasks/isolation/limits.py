"""What one candidate program may use, beside time."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Bounds that the kernel enforces on the process of one program; it can start no other."""

    memory_bytes: int = DEFAULT_MEMORY_BYTES  # address space
    # its private /tmp, and the longest file; no file can be written without namespaces
    tmp_bytes: int = 16 << 20
    output_bytes: int = 1 << 20  # of standard output that are kept; more ends the program
    niceness: int = 0  # what it yields of its processor time to others, 19 all
