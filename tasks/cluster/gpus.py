"""The NVIDIA GPUs of this machine that a process may use, by the driver's own word (NVML): no CUDA
context is made, and torch is not imported.

    driver there? ─▶ torch a build for CUDA? ─▶ the driver's GPUs ─▶ those in CUDA_VISIBLE_DEVICES

Leaves out the GPUs of other machines, whose workers a run joins.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/version")
SMI = "nvidia-smi"
SMI_S = 20.0  # a driver that is loaded for the first time takes seconds
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpus:
    """The GPUs that a run may use, in the order of their device numbers."""

    names: tuple[str, ...] = ()  # such as "NVIDIA H200"
    reason: str = ""  # why there are none; empty if there are some


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of the machine."""

    name: str
    uuid: str  # such as "GPU-8f6d..."


def found_gpus() -> FoundGpus:
    """Find the GPUs that this process and its children may use. Asks the driver once."""
    return _found(os.environ.get(VISIBLE))


@cache
def _found(allotted: str | None) -> FoundGpus:
    if not DRIVER.exists() and not shutil.which(SMI):
        return FoundGpus(reason="no NVIDIA driver is here")
    if not has_cuda_torch():
        return FoundGpus(reason="the installed torch is a build for CPUs")
    try:
        gpus = _gpus_of_driver()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return FoundGpus(reason=f"the NVIDIA driver does not answer ({error})")
    usable = visible(gpus, allotted)
    if gpus and not usable:
        return FoundGpus(reason=f"{VISIBLE} is {allotted!r}, which names none")
    return FoundGpus(names=tuple(usable), reason="" if usable else "the NVIDIA driver has no GPU")


def has_cuda_torch() -> bool:
    """True if the installed torch is a build for CUDA, by its version file alone."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    version = Path(spec.submodule_search_locations[0]) / "version.py"
    return bool(version.exists() and runpy.run_path(str(version)).get("cuda"))


def visible(gpus: Sequence[Gpu], allotted: str | None) -> list[str]:
    """Names of the GPUs that CUDA shows under this value of CUDA_VISIBLE_DEVICES: numbers or
    beginnings of UUIDs up to the first that names no GPU; None shows all. A MIG instance counts as
    a GPU."""
    if allotted is None:
        return [gpu.name for gpu in gpus]
    names: list[str] = []
    for word in map(str.strip, allotted.split(",")):
        if word.isdecimal():
            found = [gpus[int(word)].name] if int(word) < len(gpus) else []
        elif word.startswith("MIG-"):
            found = [word]
        else:
            found = [gpu.name for gpu in gpus if word and gpu.uuid.startswith(word)][:1]
        if not found:
            break
        names += found
    return names


def _gpus_of_driver() -> list[Gpu]:
    """All GPUs of the machine. RuntimeError or OSError if neither NVML nor nvidia-smi answers."""
    try:
        import pynvml
    except ImportError:
        return _gpus_of_smi()
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        gpus = [
            Gpu(name=pynvml.nvmlDeviceGetName(handle), uuid=pynvml.nvmlDeviceGetUUID(handle))
            for handle in handles
        ]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise RuntimeError(str(error)) from None
    return gpus


def _gpus_of_smi() -> list[Gpu]:
    command = [SMI, "--query-gpu=uuid,name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=True)
    rows = (line.partition(",") for line in done.stdout.splitlines() if line.strip())
    return [Gpu(name=name.strip(), uuid=uuid.strip()) for uuid, _, name in rows]
