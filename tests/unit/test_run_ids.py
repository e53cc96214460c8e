"""Which run a word means."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifacts.commit import RunManifest, write_manifest
from artifacts.run_ids import find_run, run_ids
from artifacts.store import Store
from flows.commands.options import run_store
from flows.config.run_config import RunConfig
from flows.resume import beside_resume, meant_run

CREATED = {  # run id -> when it was begun
    "tiny-20260101-000000-aaaaaa": "2026-01-01T00:00:00+00:00",
    "tiny-20260102-000000-bbbbbb": "2026-01-02T00:00:00+00:00",
    "tiny": "2025-01-01T00:00:00+00:00",
    "mine": "2026-03-01T00:00:00+00:00",
}


@pytest.fixture
def root(tmp_path: Path) -> Store:
    opened = Store.open(str(tmp_path))
    config = RunConfig.model_validate({"preset": "tiny"}).model_dump(
        mode="json", exclude={"resume"}
    )
    for run_id, created in CREATED.items():
        manifest = RunManifest(
            run_id=run_id,
            created=created,
            config=config,
            packages={},
            git_sha=None,
            mlflow_run_id=None,
        )
        write_manifest(opened.child(run_id), manifest)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "empty").mkdir()
    return opened


def test_runs_are_the_folders_with_a_manifest(root: Store) -> None:
    assert run_ids(root) == sorted(CREATED)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("last", "mine"),
        ("mi", "mine"),
        ("tiny", "tiny"),
        ("tiny-20260102", "tiny-20260102-000000-bbbbbb"),
    ],
)
def test_a_beginning_of_one_run_and_last_are_names(root: Store, asked: str, meant: str) -> None:
    assert find_run(root, asked) == meant
    assert run_store(asked, root.url).url.endswith(f"/{meant}")
    given = {"resume": asked, "keep": {"artifact_root": root.url}}
    assert beside_resume(given)["resume"] == meant
    config = RunConfig.model_validate({"preset": "tiny"} | given)
    assert meant_run(config).resume == meant


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("tiny-", "2 begin so, the last of them: tiny-20260101-000000-aaaaaa, tiny-20260102"),
        ("tiny-20260102-000000-bbbbbc", "did you mean tiny-20260102-000000-bbbbbb?"),
        ("zzz", "some of those there: mine, tiny, tiny-2026"),
        ("", "or write last"),
    ],
)
def test_an_unknown_run_is_told_with_those_that_may_be_meant(
    root: Store, asked: str, said: str
) -> None:
    with pytest.raises(ValueError, match="RUN must be a run under") as caught:
        find_run(root, asked)
    assert said in str(caught.value)


def test_a_root_without_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is none"):
        find_run(Store.open(str(tmp_path)), "last")
