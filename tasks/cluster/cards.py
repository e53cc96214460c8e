"""The GPUs of this machine as NVIDIA's management library (NVML) sees them, and the account of a
process that ran out of the memory of one. No CUDA context is made here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

GB = 10**9


class DeviceMemoryExhausted(RuntimeError):
    """A process ran out of GPU memory. Ends the run: made anew it would run out again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU that this process may use."""

    index: int  # NVML's, in the order of the bus
    name: str
    total_bytes: int
    free_bytes: int
    holders: tuple[tuple[int, int], ...]  # process id and bytes of each process that holds some


@contextmanager
def management() -> Iterator[Any]:  # Any: pynvml carries no types
    """Provide pynvml, initialised; None on a machine without it or without a driver."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # ImportError, or any of NVML's own
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def cards(nvml: Any) -> tuple[Card, ...]:  # Any: as above
    """The GPUs among those that CUDA_VISIBLE_DEVICES names, all without it. nvml: as `management`
    provides it."""
    if nvml is None:
        return ()
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    found = []
    visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    for index, handle in enumerate(handles):
        own = (str(index), nvml.nvmlDeviceGetUUID(handle))
        if visible and not any(own[0] == each or own[1].startswith(each) for each in visible):
            continue
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        found.append(
            Card(
                index=index,
                name=nvml.nvmlDeviceGetName(handle),
                total_bytes=memory.total,
                free_bytes=memory.free,
                holders=tuple(
                    (process.pid, process.usedGpuMemory or 0)
                    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                ),
            )
        )
    return tuple(found)


def smallest_card_bytes() -> int | None:
    """Memory of the smallest GPU here; None without a GPU."""
    with management() as nvml:
        return min((card.total_bytes for card in cards(nvml)), default=None)


def is_out_of_memory(error: BaseException) -> bool:
    """True for torch's OutOfMemoryError, also as the text of an engine's own processes."""
    return type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in str(error)


def exhausted(
    name: str, doing: str, error: BaseException, parts: Mapping[str, int], cure: str
) -> DeviceMemoryExhausted:
    """The error that ends the run. name: of the process; parts: bytes by what was predicted."""
    asked = str(error).partition("\n")[0]
    predicted = ", ".join(f"{part} {size / GB:.3g} GB" for part, size in parts.items())
    told = [f"{name} ran out of GPU memory in {doing} ({asked})"]
    told += [f"predicted for it: {predicted}"] if predicted else []
    told += [counted] if (counted := _counters()) else []
    return DeviceMemoryExhausted(f"{'; '.join(told)}; {cure}")


def _counters() -> str:
    """What torch has of the GPU in this process; empty where it has not touched one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    with suppress(RuntimeError):  # a broken context still has an error to tell
        free, total = torch.cuda.mem_get_info()
        used, kept = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        return (
            f"torch has {used / GB:.3g} GB in tensors of {kept / GB:.3g} GB that it keeps, and"
            f" {free / GB:.3g} of the GPU's {total / GB:.3g} GB are free"
        )
    return ""
