"""The store: atomic, exclusive, and clear about disks that take no more."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from artifacts.store import Store, StoreError

NOBODY = 65534  # user and group


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return (
        Store.open(str(tmp_path / "root"))
        if request.param == "local"
        else Store.open(f"memory://{uuid.uuid4().hex}")
    )


def test_what_is_written_is_read_and_listed(store: Store) -> None:
    store.write("a/b.bin", b"one")
    store.write("a/b.bin", b"two")
    store.write("a/c/d.bin", b"three")
    assert store.read("a/b.bin") == b"two"
    assert store.list("a") == ["b.bin", "c"]
    assert store.list("nothing") == []
    assert store.exists("a/c/d.bin")
    assert not store.exists("a/x")
    assert store.child("a").read("c/d.bin") == b"three"


def test_create_succeeds_once(store: Store) -> None:
    store.create("commit", b"first")
    with pytest.raises(FileExistsError):
        store.create("commit", b"second")
    assert store.read("commit") == b"first"


def test_delete_removes_trees_and_forgives_absence(store: Store) -> None:
    store.write("t/1", b"1")
    store.write("t/u/2", b"2")
    store.delete("t")
    store.delete("t")
    assert store.list("t") == []
    assert store.list("") == []


def test_directories_travel_to_the_store_and_back(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "x").write_bytes(b"x")
    (source / "deep/y").write_bytes(b"y")
    store.upload(source, "tree")
    store.download("tree", tmp_path / "back")
    assert (tmp_path / "back/deep/y").read_bytes() == b"y"
    assert (tmp_path / "back/x").read_bytes() == b"x"


class Unanswered:
    """A remote filesystem whose every call fails as its protocol's packages do."""

    protocol = "s3"

    def invalidate_cache(self) -> None: ...

    def __init__(self, error: Exception) -> None:
        self._error = error

    def ls(self, *_: object, **__: object) -> list[str]:
        raise self._error

    cat_file = exists = find = pipe_file = ls


UNANSWERED = [
    (LookupError("Unable to locate credentials"), "Unable to locate credentials"),
    (TimeoutError(), "TimeoutError"),  # as fsspec's own is
]


@pytest.mark.parametrize(("error", "said"), UNANSWERED)
@pytest.mark.parametrize(
    "call",
    [Store.read, Store.exists, Store.list, lambda store, path: store.download(path, Path("to"))],
)
def test_a_remote_root_that_does_not_answer_is_one_sentence(
    call: Callable[[Store, str], object], error: Exception, said: str
) -> None:
    store = Store(Unanswered(error), "bucket/runs", "s3://bucket/runs")
    with pytest.raises(StoreError, match=rf"s3://bucket/runs is not \({said}"):
        call(store, "run")


@pytest.mark.parametrize(("error", "said"), UNANSWERED)
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.write("steps/1", b"data"),
        lambda store: store.create("steps/1", b"data"),
        lambda store: store.delete("steps/1"),
    ],
)
def test_a_remote_root_that_takes_no_write_any_more_is_one_sentence(
    call: Callable[[Store], object], error: Exception, said: str
) -> None:
    store = Store(Unanswered(error), "bucket/runs", "s3://bucket/runs")
    with pytest.raises(
        StoreError, match=rf"cannot write s3://bucket/runs/steps/1: {said}; .* resume the run"
    ):
        call(store)


def test_of_many_creators_exactly_one_wins(tmp_path: Path) -> None:
    store, wins = Store.open(str(tmp_path)), []

    def create(index: int) -> None:
        try:
            store.create("lock", str(index).encode())
        except FileExistsError:
            return
        wins.append(index)

    threads = [threading.Thread(target=create, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("lock") == str(wins[0]).encode()
    assert len(wins) == 1


def test_a_killed_write_leaves_the_old_file_and_can_be_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(str(tmp_path))
    store.write("file", b"old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.write("file", b"new")
    monkeypatch.undo()
    assert store.read("file") == b"old"
    (tmp_path / ".tmp-left").write_bytes(b"by a process that vanished")
    assert store.list("") == ["file"]


def test_a_killed_upload_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = Store.open(str(tmp_path / "root")), tmp_path / "made"
    made.mkdir()
    (made / "weights").write_bytes(b"old")
    store.upload(made, "model")
    (made / "weights").write_bytes(b"new and longer")

    def killed(source: BinaryIO, target: BinaryIO, length: int = 0) -> None:
        target.write(source.read(3))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", killed)
    with pytest.raises(KeyboardInterrupt):
        store.upload(made, "model")
    assert store.read("model/weights") == b"old"
    assert store.list("model") == ["weights"]


def test_what_killed_writers_left_is_swept_at_every_depth(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.write("steps/00001.json", b"kept")
    (tmp_path / "steps" / ".tmp-file").write_bytes(b"half a commit")
    (tmp_path / "checkpoints" / ".tmp-tree").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".tmp-tree" / "rank-0").write_bytes(b"half a checkpoint")
    assert store.sweep("") == 2
    assert [
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    ] == ["steps/00001.json"]


def test_a_full_disk_is_one_sentence_with_path_size_and_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StoreError, match=r"disk full: .*steps/1 needs 5 bytes; free space or set artifact_root"
    ):
        Store.open(str(tmp_path)).write("steps/1", b"hello")
    assert os.listdir(tmp_path / "steps") == []


def test_a_disk_that_fails_is_named_with_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's own words for a failed write or sync have none."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="steps/1: Input/output error; check the disk"):
        Store.open(str(tmp_path)).write("steps/1", b"hello")


@pytest.fixture
def own_directory() -> Iterator[Path]:
    """A directory of a user who may not write everywhere, which root becomes for the test."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        if os.geteuid():
            yield directory
            return
        os.chown(directory, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield directory
        finally:
            os.seteuid(0)


def test_a_read_only_root_is_found_before_the_run(own_directory: Path) -> None:
    own_directory.chmod(0o500)
    with pytest.raises(
        StoreError,
        match=r"cannot write .* make the directory writable or set artifact_root elsewhere",
    ):
        Store.open(str(own_directory)).check_writable()
    own_directory.chmod(0o700)
    Store.open(str(own_directory)).check_writable()


def test_a_read_only_file_system_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(StoreError, match="Read-only file system; make the directory writable"):
        Store.open(str(tmp_path / "new")).check_writable()


def test_a_root_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(StoreError, match="set artifact_root to a directory"):
        Store.open(str(tmp_path / "root/run")).check_writable()
    with pytest.raises(StoreError, match="set artifact_root to a directory"):
        Store.open(str(tmp_path / "root")).check_writable()


def test_check_writable_leaves_nothing(store: Store) -> None:
    store.check_writable()
    assert store.list("") == []


def test_unknown_protocols_name_the_url_and_the_cure() -> None:
    with pytest.raises(ValueError, match=r"artifact_root must be a URL .* got 'gopher://x'"):
        Store.open("gopher://x")


def test_remote_stores_have_no_local_path() -> None:
    with pytest.raises(ValueError, match="use a local artifact_root"):
        Store.open("memory://run").local_path("weights/1")


def test_the_folder_of_a_run_that_has_begun_is_not_made_again(tmp_path: Path) -> None:
    """Neither by who writes into it, nor below it, nor by who reads on."""
    store = Store.open(str(tmp_path)).child("run")
    store.write("manifest.json", b"{}")
    run = store.of_begun_run()
    run.child("evaluation").write("rounds/1", b"1")
    (tmp_path / "run").rename(tmp_path / "away")
    calls: list[Callable[[], object]] = [
        lambda: run.write("steps/1", b"1"),
        lambda: run.create("steps/1", b"1"),
        lambda: run.child("evaluation").write("rounds/2", b"2"),
        lambda: run.read("steps/1"),
        lambda: run.upload(tmp_path / "away", "model"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=r"/run has no manifest.json any more: .* put it back"):
            call()
    assert not (tmp_path / "run").exists()
    (tmp_path / "away").rename(tmp_path / "run")
    run.write("steps/1", b"1")
