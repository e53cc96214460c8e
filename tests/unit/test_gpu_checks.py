"""What the doctor says of GPUs, by facts as readers would find them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.commands import gpu_checks
from flows.commands.findings import GIB, Finding
from flows.commands.gpu_checks import GpuFacts
from tasks.cluster.cards import Card, cards

CARD = Card(index=0, name="A card", total_bytes=80 * GIB, free_bytes=80 * GIB, holders=())
WHOLE = GpuFacts(
    has_devices=True,
    cards=(CARD, replace(CARD, index=1)),
    driver="580.65",
    driver_cuda=13000,
    has_libcuda=True,
    torch_cuda="13.0",
    has_nccl=True,
    linked=True,
    compiler="/usr/bin/cc",
    has_python_h=True,
    modules=frozenset({"triton", "flashinfer", "torchvision", "dask_cuda"}),
)
ALL: tuple[Callable[[GpuFacts], Iterator[Finding]], ...] = (
    gpu_checks.check_cards,
    gpu_checks.check_driver,
    gpu_checks.check_packages,
    gpu_checks.check_peers,
)


def findings(facts: GpuFacts) -> list[Finding]:
    return [finding for check in ALL for finding in check(facts)]


def test_a_whole_machine_needs_no_cure() -> None:
    assert {finding.level for finding in findings(WHOLE)} == {"ok"}


@pytest.mark.parametrize(
    ("lacks", "what", "level", "cure"),
    [
        ({"torch_cuda": ""}, "CUDA", "bad", "requirements/cuda.txt"),
        ({"driver_cuda": 12080}, "CUDA", "bad", "driver to one of CUDA 13 or later"),
        ({"has_libcuda": False}, "libcuda.so.1", "bad", "NVIDIA_DRIVER_CAPABILITIES"),
        ({"compiler": ""}, "C compiler", "bad", "apt-get install gcc"),
        ({"has_python_h": False}, "Python.h", "bad", "python3-dev"),
        ({"modules": WHOLE.modules - {"triton"}}, "triton", "bad", "attention"),
        ({"modules": WHOLE.modules - {"flashinfer"}}, "flashinfer", "bad", "SAMPLER=0"),
        ({"modules": WHOLE.modules - {"torchvision"}}, "torchvision", "bad", "warms up"),
        ({"has_nccl": False}, "NCCL", "bad", "meet over it"),
        ({"apart": ((0, 1),), "linked": False}, "between cards", "note", "nvidia-smi topo -m"),
    ],
)
def test_what_is_missing_has_a_cure(
    lacks: dict[str, Any], what: str, level: str, cure: str
) -> None:  # Any: values of fields
    (found,) = [each for each in findings(replace(WHOLE, **lacks)) if each.level != "ok"]
    assert (found.what, found.level) == (what, level)
    assert cure in found.cure


def test_the_sampler_of_flashinfer_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "0")
    facts = replace(WHOLE, modules=WHOLE.modules - {"flashinfer"})
    assert {finding.level for finding in findings(facts)} == {"ok"}


def test_who_holds_a_card_is_told() -> None:
    held = replace(CARD, free_bytes=50 * GIB, holders=((os.getpid(), 30 * GIB),))
    (found,) = gpu_checks.check_cards(replace(WHOLE, cards=(held,)))
    assert found.level == "note"
    assert f"50 of 80 GiB free, held by {os.getpid()} (" in found.found
    assert "30.0 GiB" in found.found


def test_devices_without_a_driver_that_answers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "gpu_facts", lambda: GpuFacts(has_devices=True, cards=()))
    found = next(gpu_checks.check_gpus())
    assert (found.level, "docker run --gpus all" in found.cure) == ("bad", True)


def management_of(num_cards: int) -> Any:  # Any: stands for pynvml
    """As pynvml answers on a machine whose cards 0 and 2 cannot reach each other."""
    running = [SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=5)]
    return SimpleNamespace(
        NVML_P2P_STATUS_OK=0,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        nvmlDeviceGetCount=lambda: num_cards,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}abc",
        nvmlDeviceGetName=lambda index: f"card {index}",
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=100, free=60 + index),
        nvmlDeviceGetComputeRunningProcesses=lambda index: running,
        nvmlDeviceGetP2PStatus=lambda first, second, how: int({first, second} == {0, 2}),
    )


def test_cards_are_read_as_they_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = cards(management_of(3))
    assert [(card.index, card.free_bytes) for card in found] == [(0, 60), (1, 61), (2, 62)]
    assert found[0].holders == ((7, 0), (8, 5))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-0")
    assert [card.index for card in cards(management_of(3))] == [0, 2]
    assert cards(None) == ()


def test_pairs_without_peer_access_are_found() -> None:
    assert gpu_checks._links(management_of(3), [0, 1, 2]) == (((0, 2),), False)
    assert gpu_checks._links(management_of(3), [0, 1]) == ((), True)


def test_leftovers_of_dead_runs_are_found(tmp_path: Path) -> None:
    assert [found.level for found in gpu_checks.check_leftovers(tmp_path)] == ["ok"]
    dead = tmp_path / "rollflow-killed"
    dead.mkdir()
    (dead / "owner.lock").touch()
    (dead / "00001.safetensors").write_bytes(b"0" * 1000)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (tmp_path / f"torch_{process.pid}_1_2").touch()
    (tmp_path / f"torch_{os.getpid()}_1_2").touch()
    (found,) = gpu_checks.check_leftovers(tmp_path)
    assert found.level == "note"
    assert found.cure == f"remove {dead} {tmp_path / f'torch_{process.pid}_1_2'}"


def test_few_open_files_have_a_cure() -> None:
    assert gpu_checks.check_open_files((1024, 1 << 20)).cure.startswith("'ulimit -n 16384'")
    assert gpu_checks.check_open_files((1024, 4096)).cure.startswith("raise the hard limit")
    assert gpu_checks.check_open_files((1 << 20, 1 << 20)).level == "ok"
    assert gpu_checks.check_open_files((resource.RLIM_INFINITY,) * 2).level == "ok"


def test_published_weights_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10 * GIB))
    assert gpu_checks.check_room_for_weights(10**9, tmp_path).level == "ok"
    found = gpu_checks.check_room_for_weights(7 * 10**9, tmp_path)
    assert (found.level, "--shm-size=40g" in found.cure) == ("bad", True)
