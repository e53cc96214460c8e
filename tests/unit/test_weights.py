"""Weight files and fingerprints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from artifacts.store import StoreError
from artifacts.weights import (
    digest,
    fingerprint,
    fingerprints,
    read_weights,
    reuse,
    stream_weights,
    weighted_sum,
    write_weights,
)


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_written_weights_come_back_as_bf16_with_their_names(tmp_path: Path) -> None:
    reference = write_weights(
        [("b", tensor(3, 4)), ("a", tensor(5))], tmp_path / "w.safetensors", 7
    )
    read = dict(read_weights(reference.path))
    assert reference.version == 7
    assert list(read) == ["a", "b"]
    assert torch.equal(read["b"], tensor(3, 4).bfloat16())
    assert reference.digest == digest(read.items())
    assert os.listdir(tmp_path) == ["w.safetensors"]


def test_tied_weights_are_kept_once(tmp_path: Path) -> None:
    shared = tensor(4, 4)
    reference = write_weights([("embed", shared), ("head", shared)], tmp_path / "w.safetensors", 1)
    assert [name for name, _ in read_weights(reference.path)] == ["embed"]


def test_a_full_memory_for_weights_is_named(tmp_path: Path) -> None:
    """The system's own words have no path, and the disk of the artifacts is another."""
    os.symlink("/dev/full", tmp_path / ".w.safetensors.aside")
    with pytest.raises(
        StoreError, match=r"disk full: .*/w.safetensors needs 6 bytes; .* set keep.weights_dir"
    ):
        write_weights([("a", tensor(3))], tmp_path / "w.safetensors", 1)


@pytest.mark.parametrize("rows", [2, 4, 9])
def test_a_version_is_written_over_one_that_nobody_reads(tmp_path: Path, rows: int) -> None:
    """Into the same file, whether that was shorter, as long or longer."""
    old = write_weights([("a", tensor(4, 8))], tmp_path / "1.safetensors", 1)
    pages = os.stat(old.path).st_ino
    reuse(old.path, tmp_path / "3.safetensors")
    new = write_weights([("a", tensor(rows, 8, seed=1))], tmp_path / "3.safetensors", 3)
    alone = write_weights([("a", tensor(rows, 8, seed=1))], tmp_path / "alone.safetensors", 3)
    assert os.stat(new.path).st_ino == pages
    assert Path(new.path).read_bytes() == Path(alone.path).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["3.safetensors", "alone.safetensors"]


def test_a_version_is_written_anew_where_there_is_none_to_write_over(tmp_path: Path) -> None:
    reuse(tmp_path / "none.safetensors", tmp_path / "2.safetensors")
    new = write_weights([("a", tensor(3))], tmp_path / "2.safetensors", 2)
    assert torch.equal(dict(read_weights(new.path))["a"], tensor(3).bfloat16())


def test_a_file_is_what_the_library_writes(tmp_path: Path) -> None:
    """But for the blanks at the end of its header."""
    tensors = {"b": tensor(3, 4).bfloat16(), "a": tensor(7).bfloat16(), "empty": tensor(0, 2)}
    held = {name: value.bfloat16() for name, value in tensors.items()}
    write_weights(held.items(), tmp_path / "ours.safetensors", 7)
    save_file(held, tmp_path / "theirs.safetensors")
    ours = dict(read_weights(tmp_path / "ours.safetensors"))
    theirs = dict(read_weights(tmp_path / "theirs.safetensors"))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(ours[name].data_ptr() % 8 == 0 for name in theirs)
    with safe_open(tmp_path / "ours.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "version": "7"}


def test_the_digest_changes_with_a_name_a_value_and_a_shape(tmp_path: Path) -> None:
    digests = {
        digest([("a", tensor(2, 6))]),
        digest([("b", tensor(2, 6))]),
        digest([("a", tensor(3, 4))]),
        digest([("a", tensor(2, 6, seed=1))]),
    }
    assert len(digests) == 4


def test_an_absent_weight_file_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.safetensors"):
        list(read_weights(tmp_path / "none.safetensors"))


def test_a_repeated_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        write_weights([("a", tensor(2)), ("a", tensor(3))], tmp_path / "w.safetensors", 1)


@pytest.mark.parametrize("shape", [(8, 8), (300, 300), (1, 7)])
def test_fingerprints_notice_a_transposition(shape: tuple[int, int]) -> None:
    original = tensor(*shape)
    assert fingerprint(original) != fingerprint(original.t())
    assert fingerprint(original) != fingerprint(
        original.t().reshape(shape) if shape[0] > 1 else original.t()
    )


def test_fingerprints_notice_one_bit_anywhere() -> None:
    original = tensor(70, 1000).bfloat16()
    expected = fingerprint(original)
    for index in (0, 1, 65_535, 65_536, 69_999):
        changed = original.clone()
        changed.view(-1).view(torch.int16)[index] ^= 1
        assert fingerprint(changed) != expected


def test_fingerprints_ignore_memory_layout_and_extra_precision() -> None:
    original = tensor(33, 65)
    offset = torch.zeros(33 * 65 + 1)[1:].view(33, 65).copy_(original)
    strided = original.t().contiguous().t()
    rounded = original.bfloat16()
    assert (
        len({fingerprint(x) for x in (original, offset, strided, rounded, offset.bfloat16())}) == 1
    )


def test_fingerprints_tell_zeros_of_different_shapes_apart() -> None:
    assert (
        len({fingerprint(torch.zeros(shape)) for shape in [(), (1,), (4,), (2, 2), (4, 1), (0,)]})
        == 6
    )


def test_a_files_fingerprints_equal_those_of_its_tensors(tmp_path: Path) -> None:
    reference = write_weights([("a", tensor(5, 9))], tmp_path / "w.safetensors", 1)
    assert fingerprints(reference.path) == {"a": fingerprint(tensor(5, 9))}


@pytest.mark.parametrize("num_words", [0, 1, 5, 1 << 14, (1 << 14) + 3, 5 << 14, (5 << 14) + 1])
def test_a_sum_of_words_does_not_depend_on_how_many_rows_are_added_together(num_words: int) -> None:
    words = torch.randint(-(2**63), 2**63 - 1, (num_words,))
    sums = {weighted_sum(words, rows) % 2**64 for rows in (1, 2, 3, 1024)}
    assert len(sums) == 1


@pytest.mark.parametrize("cuts", [(), (1,), (3, 4), tuple(range(1, 700, 37))])
def test_parts_of_tensors_have_the_file_and_the_fingerprints_of_whole_ones(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    """In any order of the tensors, cut within words and within rows of words."""
    held = {"a": tensor(700, 211), "b": tensor(3, 5, seed=1), "empty": tensor(0, 4)}
    shapes = {name: each.shape for name, each in held.items()}
    whole = write_weights(held.items(), tmp_path / "whole.safetensors", 3)

    def parts() -> Iterator[tuple[str, torch.Tensor]]:
        for name in reversed(held):
            inside = [cut for cut in cuts if cut < len(held[name])]
            for part in held[name].tensor_split(inside):
                yield name, part

    cut = stream_weights(parts(), shapes, tmp_path / "cut.safetensors", 3)
    assert cut.digest == whole.digest == digest(read_weights(whole.path))
    assert Path(cut.path).read_bytes() == Path(whole.path).read_bytes()


def test_a_file_that_lacks_a_part_is_not_put_in_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="8 bytes of"):
        stream_weights([("a", tensor(1, 4))], {"a": (2, 4)}, tmp_path / "w.safetensors", 1)
    assert not (tmp_path / "w.safetensors").exists()


def test_transient_tensors_that_lie_in_the_same_memory_are_all_written(tmp_path: Path) -> None:
    """A sharded learner gathers one parameter after the other in the same place."""
    place = torch.empty(4)

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for index in range(3):
            yield f"layer.{index}", place.fill_(index)

    shapes = {f"layer.{index}": (4,) for index in range(3)}
    told = stream_weights(gathered(), shapes, tmp_path / "w.safetensors", 1)
    read = dict(read_weights(told.path))
    assert {name: value[0].item() for name, value in read.items()} == {
        "layer.0": 0.0, "layer.1": 1.0, "layer.2": 2.0,
    }  # fmt: skip
    assert told.digest == digest(read.items())
