"""Which attention kernel vLLM's CPU backend takes on this machine, and the permission one of them
needs.

On a processor with AMX (Intel since Sapphire Rapids) bfloat16 attention multiplies in tile
registers. Linux gives them to a process that has asked for them, by
arch_prctl(ARCH_REQ_XCOMP_PERM), and ends every other one with SIGILL at its first tile instruction.
vLLM's attention does not ask. A larger matrix product of oneDNN asks on the side, so that a process
lives when its first batch is long or its model large, and dies when both are small: `allow_tiles`
asks before the first batch, whatever that is.

The permission is the process's: all its threads have it, those that were there before too, and a
forked child inherits it; a program started anew does not. So every rank of a tensor-parallel
replica asks for itself. The contents of the tiles are the thread's, and each call of the kernel
sets up its own.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from tasks.engines.vllm.workers import VllmWorkers

CPUINFO = Path("/proc/cpuinfo")


def attention_path(machine: str = "", cpuinfo: Path = CPUINFO) -> str:
    """vLLM's name for the kernel of bfloat16 attention on these cores; empty for an unknown
    processor.

    Reads what the operating system says and imports neither torch nor vLLM: a report costs nothing.
    """
    machine = machine or platform.machine()
    if machine in ("x86_64", "AMD64"):
        flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
        return "amx" if {"amx_tile", "amx_bf16"} <= set(flags) else "vec"
    return "neon" if machine in ("aarch64", "arm64") else ""


def may_use_tiles() -> bool:
    """Ask for this process; True as well where the processor has no tiles."""
    import torch

    return not torch.cpu._is_amx_tile_supported() or torch.cpu._init_amx()


def allow_tiles(workers: VllmWorkers, dtype: str) -> None:
    """Ask in every process of a CPU engine. Raises ValueError where the tiles are needed and
    refused."""
    granted = workers.collective_rpc(_in_worker)
    if dtype == "bfloat16" and not all(granted):
        raise ValueError(
            "bfloat16 attention on a processor with AMX needs its tile registers, "
            "and the operating system refuses them; "
            "allow arch_prctl(ARCH_REQ_XCOMP_PERM) in the container, or set dtype float32"
        )


def _in_worker(worker: Any) -> bool:  # Any: vLLM's worker
    return may_use_tiles()
