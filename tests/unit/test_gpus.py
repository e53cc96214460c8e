"""GPUs are found by the driver's own word, and those that CUDA would hide are left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.cluster import gpus
from tasks.cluster.gpus import FoundGpus, Gpu, has_cuda_torch, visible

FOUR = [Gpu(name=f"card {index}", uuid=f"GPU-{index}abc") for index in range(4)]


@pytest.mark.parametrize(
    ("allotted", "numbers"),
    [
        (None, [0, 1, 2, 3]), ("", []), ("2", [2]), ("3,1", [3, 1]), (" 0 , 2 ", [0, 2]),
        ("1,9,2", [1]), ("-1", []), ("0,-1,1", [0]), ("GPU-3a,GPU-0abc", [3, 0]),
        ("GPU-7,0", []), ("NoDevFiles", []), ("0,,1", [0]),
    ],
)  # fmt: skip
def test_cuda_shows_what_is_allotted(allotted: str | None, numbers: list[int]) -> None:
    assert visible(FOUR, allotted) == [f"card {number}" for number in numbers]


def test_an_instance_of_a_divided_gpu_counts_as_one() -> None:
    assert visible(FOUR, "MIG-1234") == ["MIG-1234"]


def found(
    monkeypatch: pytest.MonkeyPatch, there: list[Gpu] | Exception, allotted: str | None = None
) -> FoundGpus:
    def answer() -> list[Gpu]:
        if isinstance(there, Exception):
            raise there
        return there

    monkeypatch.setattr(gpus, "DRIVER", Path("/"))
    monkeypatch.setattr(gpus, "has_cuda_torch", lambda: True)
    monkeypatch.setattr(gpus, "_gpus_of_driver", answer)
    return gpus._found.__wrapped__(allotted)


def test_what_is_found_has_names_and_nothing_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, FOUR[:1]) == FoundGpus(names=("card 0",))
    hidden = found(monkeypatch, FOUR, allotted="")
    assert hidden == FoundGpus(reason="CUDA_VISIBLE_DEVICES is '', which names none")
    assert found(monkeypatch, []).reason == "the NVIDIA driver has no GPU"
    lost = found(monkeypatch, RuntimeError("Driver/library version mismatch"))
    assert lost.reason == "the NVIDIA driver does not answer (Driver/library version mismatch)"
    monkeypatch.setattr(gpus, "has_cuda_torch", lambda: False)
    assert gpus._found.__wrapped__(None).reason == "the installed torch is a build for CPUs"
    monkeypatch.setattr(gpus, "DRIVER", Path("/nowhere"))
    monkeypatch.setenv("PATH", "")
    assert gpus._found.__wrapped__(None).reason == "no NVIDIA driver is here"


def test_nvml_answers_first_and_nvidia_smi_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: FOUR[index].name,
        nvmlDeviceGetUUID=lambda index: FOUR[index].uuid,
        NVMLError=OSError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpus._gpus_of_driver() == FOUR
    monkeypatch.setitem(sys.modules, "pynvml", None)
    rows = "\n".join(f"{gpu.uuid}, {gpu.name}" for gpu in FOUR)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<END\n{rows}\nEND\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpus._gpus_of_driver() == FOUR
    smi.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(subprocess.CalledProcessError):
        gpus._gpus_of_driver()


def test_the_build_of_torch_is_read_without_importing_it() -> None:
    import torch

    assert has_cuda_torch() == bool(torch.version.cuda)
    code = (
        "import sys; from tasks.cluster.gpus import found_gpus, has_cuda_torch;"
        " has_cuda_torch(); found_gpus(); assert not {'torch', 'vllm'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
