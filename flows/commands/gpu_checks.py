"""What `rollflow doctor` checks of GPUs and of what lies in shared memory.

NVML, libcuda, torch, PATH ─▶ gpu_facts ─▶ GpuFacts ─▶ checks ─▶ findings, each with its cure
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from artifacts.handover import orphans
from flows.commands.findings import GIB, Finding, finding_of
from tasks.cluster.cards import Card, cards, management

DEVICES = Path("/dev")
SHARED = Path("/dev/shm")
COMPILERS = ("cc", "gcc", "clang")
WANTED_FILES = 16384  # open files: sockets of workers, engines and environments, and shared memory
VERSIONS_HELD = 3  # weight files that exist at once: two published ones and one being written
HELD_BY_OTHERS = GIB  # bytes on a card, above which they are told


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What this machine has, as far as GPUs need it."""

    has_devices: bool  # /dev/nvidia0 is there
    cards: tuple[Card, ...]
    driver: str = ""  # its version; empty without one
    driver_cuda: int = 0  # newest CUDA of the driver, 13010 for 13.1
    has_libcuda: bool = False
    torch_cuda: str = ""  # CUDA that torch was built for; empty for a CPU build
    has_nccl: bool = False
    apart: tuple[tuple[int, int], ...] = ()  # pairs of cards that cannot read each other's memory
    linked: bool = False  # True if all cards are joined by NVLink
    compiler: str = ""  # path of the C compiler; empty without one
    has_python_h: bool = False
    modules: frozenset[str] = frozenset()  # of those that vLLM and the learner import


def gpu_facts() -> GpuFacts:
    """Read the facts of this machine; makes no CUDA context."""
    wanted = ("triton", "flashinfer", "torchvision", "dask_cuda")
    modules = frozenset(name for name in wanted if find_spec(name))
    compilers = (os.environ.get("CC", ""), *COMPILERS)
    torch_cuda, has_nccl = "", False
    with suppress(ImportError):
        import torch

        torch_cuda, has_nccl = torch.version.cuda or "", torch.distributed.is_nccl_available()
    with management() as nvml:
        found = cards(nvml)
        apart, linked = _links(nvml, [card.index for card in found])
        return GpuFacts(
            has_devices=(DEVICES / "nvidia0").exists(),
            cards=found,
            driver="" if nvml is None else nvml.nvmlSystemGetDriverVersion(),
            driver_cuda=0 if nvml is None else nvml.nvmlSystemGetCudaDriverVersion(),
            has_libcuda=_loads("libcuda.so.1"),
            torch_cuda=torch_cuda,
            has_nccl=has_nccl,
            apart=apart,
            linked=linked,
            compiler=next(filter(None, map(shutil.which, filter(None, compilers))), ""),
            has_python_h=Path(sysconfig.get_paths()["include"], "Python.h").is_file(),
            modules=modules,
        )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _links(
    nvml: Any, indices: list[int]
) -> tuple[tuple[tuple[int, int], ...], bool]:  # Any: pynvml carries no types
    """The pairs of cards without peer access, and whether NVLink joins all."""
    pairs = [(first, second) for first in indices for second in indices if first < second]

    def is_able(pair: tuple[int, int], how: int) -> bool:
        first, second = map(nvml.nvmlDeviceGetHandleByIndex, pair)
        return bool(nvml.nvmlDeviceGetP2PStatus(first, second, how) == nvml.NVML_P2P_STATUS_OK)

    apart = tuple(pair for pair in pairs if not is_able(pair, 0))  # 0: reading
    linked = bool(pairs) and all(is_able(pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK) for pair in pairs)
    return apart, linked


def check_gpus() -> Iterator[Finding]:
    """Check the GPUs of this machine, and its shared memory and open files."""
    facts = gpu_facts()
    if facts.cards:
        yield from check_cards(facts)
        yield from check_driver(facts)
        yield from check_packages(facts)
        yield from check_peers(facts)
    else:
        cure = "install the driver, or give the container its libraries (docker run --gpus all)"
        found = "its devices are there, without a driver that answers"
        none = "none; device_kind cpu"
        is_ok = not facts.has_devices
        yield finding_of(is_ok, "GPU", none if is_ok else found, cure, "bad")
    yield from check_leftovers(SHARED)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE))


def check_cards(facts: GpuFacts) -> Iterator[Finding]:
    """The memory of every card, and the processes that hold some."""
    for card in facts.cards:
        free = f"{card.free_bytes / GIB:.0f} of {card.total_bytes / GIB:.0f} GiB free"
        held = [f"{_process(pid)} {size / GIB:.1f} GiB" for pid, size in card.holders]
        used = card.total_bytes - card.free_bytes
        found = f"{card.name}, {free}" + (f", held by {', '.join(held)}" if held else "")
        cure = "end what holds it, or leave the card out with CUDA_VISIBLE_DEVICES"
        yield finding_of(used < HELD_BY_OTHERS, f"GPU {card.index}", found, cure, "note")


def _process(pid: int) -> str:
    with suppress(psutil.Error):
        return f"{pid} ({psutil.Process(pid).name()})"
    return f"{pid} (of another container)"


def check_driver(facts: GpuFacts) -> Iterator[Finding]:
    """The driver, beside the CUDA that torch was built for."""
    has = f"{facts.driver_cuda // 1000}.{facts.driver_cuda % 1000 // 10}"
    found = f"driver {facts.driver}, of CUDA {has}; torch of CUDA {facts.torch_cuda or 'none'}"
    if not facts.torch_cuda:
        cure = "install requirements/cuda.txt, or set cluster.device_kind=cpu"
        yield Finding("bad", "CUDA", found, cure)
        return
    built = int(facts.torch_cuda.partition(".")[0])
    cure = f"update the driver to one of CUDA {built} or later"
    yield finding_of(facts.driver_cuda // 1000 >= built, "CUDA", found, cure, "bad")
    cure = "give the container the driver's libraries (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
    has_it = "loads" if facts.has_libcuda else "does not load"
    yield finding_of(facts.has_libcuda, "libcuda.so.1", has_it, cure, "bad")


def check_packages(facts: GpuFacts) -> Iterator[Finding]:
    """What compiles and imports in engine and learner."""
    cure = "install one (apt-get install gcc), or name it in CC: engine and learner compile kernels"
    found = facts.compiler or "none"
    yield finding_of(bool(facts.compiler), "C compiler", found, cure, "bad")
    found = "there" if facts.has_python_h else "missing"
    cure = "install Python's headers (apt-get install python3-dev), or take uv's Python"
    yield finding_of(facts.has_python_h, "Python.h", found, cure, "bad")
    whose = {
        "triton": "the learner's attention is compiled by it",
        "torchvision": "vLLM imports it while it warms up",
        "dask_cuda": "workers are placed near their GPU by it",
    }
    if os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") != "0":
        whose["flashinfer"] = "vLLM samples with it; or set VLLM_USE_FLASHINFER_SAMPLER=0"
    for name, what in whose.items():
        is_there = name in facts.modules
        cure = f"install requirements/cuda.txt: {what}"
        yield finding_of(is_there, name, "there" if is_there else "missing", cure, "bad")


def check_peers(facts: GpuFacts) -> Iterator[Finding]:
    """How cards reach each other, where there are several."""
    if len(facts.cards) < 2:
        return
    found = "there" if facts.has_nccl else "missing"
    cure = "install requirements/cuda.txt: ranks of several cards meet over it"
    yield finding_of(facts.has_nccl, "NCCL", found, cure, "bad")
    how = "NVLink" if facts.linked else "PCIe"
    pairs = ", ".join(f"{first}-{second}" for first, second in facts.apart)
    found = f"no peer access between {pairs}" if pairs else f"all reach each other over {how}"
    cure = (
        "ranks then meet over host memory, slowly: look at 'nvidia-smi topo -m' and turn ACS or the"
        " IOMMU off, or give roles cards that reach each other"
    )
    yield finding_of(not pairs, "between cards", found, cure, "note")


def check_leftovers(folder: Path) -> Iterator[Finding]:
    """What dead runs have left in shared memory."""
    left = list(orphans(folder))
    for path in folder.glob("torch_*_*"):
        pid = path.name.split("_")[1]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            left.append(path)
    size = sum(map(_size, left))
    found = f"{size / GIB:.1f} GiB of dead runs at {folder}" if left else f"none at {folder}"
    cure = f"remove {' '.join(map(str, left[:3]))}{' ...' if len(left) > 3 else ''}"
    yield finding_of(not left, "leftovers", found, cure, "note")


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    with suppress(OSError):  # one may go meanwhile
        return sum(file.stat().st_size for file in files if file.is_file())
    return 0


def check_open_files(limits: tuple[int, int]) -> Finding:
    """limits: soft and hard."""
    soft, hard = limits
    is_ok = soft == resource.RLIM_INFINITY or soft >= WANTED_FILES
    can = hard == resource.RLIM_INFINITY or hard >= WANTED_FILES
    cure = f"'ulimit -n {WANTED_FILES}'" if can else "raise the hard limit of nofile"
    cure += " for a run of many workers or environments"
    return finding_of(is_ok, "open files", f"at most {soft}", cure, "note")


def check_room_for_weights(num_parameters: int, folder: Path) -> Finding:
    """The room for published weights, bf16, in the folder that hands them over."""
    needed = 2 * num_parameters * VERSIONS_HELD / GIB
    free = shutil.disk_usage(folder).free / GIB
    found = f"{free:.1f} GiB free at {folder}, {VERSIONS_HELD} versions of the model {needed:.1f}"
    cure = f"docker run --shm-size={needed + 1:.0f}g, or set keep.weights_dir to another folder"
    return finding_of(free >= needed, "room for weights", found, cure, "bad")
