"""The commit point of a step and the manifest of a run.

A step is committed when its file (`steps/00007.json`) exists, and not before: the file is created
once, by one atomic write, after everything that it names is on disk.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from blake3 import blake3

from artifacts import layout
from artifacts.digests import with_digest
from artifacts.records import WeightsRef
from artifacts.store import Store, StoreError

COMMIT_SCHEMA_VERSION = 1
Json = Mapping[str, Any]  # Any: JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommit:
    """The record of a finished step: all that a resumed run needs."""

    step: int  # from 1
    kind: str  # the round's kind, as its policy names it
    weights: WeightsRef  # what the step published; its digest is what a replay must reproduce
    queue: Json  # state of the scheduler, the long-prompt queue above all
    seeds: Json  # random state, enough to draw the same next prompts
    counters: Mapping[str, int]  # the run's totals: prompts, responses, updates, ledger tokens
    # what MLflow gets; not-a-number and infinities come back as not-a-number
    metrics: Mapping[str, float]
    # seconds per stage, and `started_s` and `finished_s` in Unix seconds
    timings: Mapping[str, float]
    checkpoint: str | None  # store path of the checkpoint of this step, if one was made
    # state of the parallelism planner; empty when it is off
    planner: Json = field(default_factory=dict)
    seeding: Json = field(default_factory=dict)  # state of seeding; empty when it is off
    # execution times of the step's programs, see `adaptive_timeout`
    timeouts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    schema_version: int = COMMIT_SCHEMA_VERSION  # of this record


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """The identity of a run; written when the run starts and by each attempt to resume it."""

    run_id: str  # directory name under the artifact root
    created: str  # ISO 8601, UTC
    config: Json  # the effective config
    packages: Mapping[str, str]  # versions that ran
    # commit of the working tree, "-dirty" appended when it had changes; None outside git
    git_sha: str | None
    mlflow_run_id: str | None  # None when tracking is off
    prefect_flow_run_ids: tuple[str, ...] = ()  # one per attempt, the latest last
    links: Mapping[str, str] = field(default_factory=dict)  # name -> URL
    # what resumed attempts changed in the config: after_step, field, before, after
    changes: tuple[Json, ...] = ()
    data_digest: str = ""  # of the task's rows; empty in manifests of earlier versions
    # rows of the task that are neither trained nor evaluated, by reason
    left_out: Mapping[str, int] = field(default_factory=dict)
    # True if every record of the run has its own digest; False in manifests of earlier versions
    has_digests: bool = False
    # of the files of models that lie at a path, by field; none in manifests of earlier versions
    model_digests: Mapping[str, str] = field(default_factory=dict)
    # of the files of parts of the user's own, by field; none in manifests of earlier versions
    source_digests: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = COMMIT_SCHEMA_VERSION  # of this record


def commit_step(store: Store, commit: StepCommit) -> None:
    """Write the commit of a step. Repeating an equal commit changes nothing. Raises ValueError if
    the step has a different commit already."""
    name = layout.step_file(layout.STEPS, commit.step)
    data = with_digest(name, _encode(asdict(commit)))
    try:
        store.create(name, data)
    except FileExistsError:
        if store.read(name) != data:
            raise ValueError(
                f"step {commit.step} must be committed once, but {store.url}/{name} holds another"
                " commit; resume the run instead of repeating the step, or choose a new run_id"
            ) from None


def check_place(store: Store, manifest_digest: str, before: StepCommit | None) -> None:
    """Raise StoreError unless the run's folder still has the manifest of this digest and the commit
    `before`: a step that is committed elsewhere cannot be resumed. An empty digest means that there
    is no manifest yet; then nothing is compared."""
    if not manifest_digest:
        return
    try:
        if digest_of_manifest(store) != manifest_digest:
            found = f"{layout.MANIFEST} is of another attempt or run"
        elif before and _read_commit(store, before.step).weights != before.weights:
            found = f"{layout.step_file(layout.STEPS, before.step)} is of another run"
        else:
            return
    except FileNotFoundError as error:
        found = f"there is no {error.filename or error} any more"
    raise StoreError(
        f"a run must commit its steps into its own folder, {store.url} is that no more: {found};"
        " put the folder back, or end the other attempt, then resume the run from its last commit"
    )


def digest_of_manifest(store: Store) -> str:
    """BLAKE3 of the stored manifest, which every attempt writes again. Raises FileNotFoundError."""
    return blake3(store.read(layout.MANIFEST)).hexdigest()


def figures_by_step(commits: Iterable[StepCommit]) -> list[tuple[int, Mapping[str, float]]]:
    """Each commit's step number and metrics."""
    return [(commit.step, commit.metrics) for commit in commits]


def seconds_added(steps: Sequence[StepCommit]) -> list[float]:
    """Seconds that each step added to its run: from the step's start, or from the end of the step
    before if that is later, to its own end. `steps` begins with the run's first step. Time between
    two steps that do not overlap counts for neither."""
    ends_s = [0.0, *(step.timings["finished_s"] for step in steps)]
    return [
        end_s - max(before_s, step.timings["started_s"])
        for step, (before_s, end_s) in zip(steps, pairwise(ends_s), strict=True)
    ]


def read_commits(store: Store) -> list[StepCommit]:
    """Every commit, from step 1 on without a gap. Raises ValueError for a missing commit and for a
    commit that another version of the code wrote."""
    steps = layout.steps_of(store.list(layout.STEPS))
    missing = sorted(set(range(1, len(steps) + 1)) - set(steps))
    if missing:
        raise ValueError(
            f"the commits under {store.url}/{layout.STEPS} must be contiguous, missing step"
            f" {missing[0]}; restore its file"
        )
    return [_read_commit(store, step) for step in steps]


def _read_commit(store: Store, step: int) -> StepCommit:
    where = f"{store.url}/{layout.step_file(layout.STEPS, step)}"
    raw = _decode(store.checked(layout.step_file(layout.STEPS, step)), where)
    raw.pop("mlflow_logged", None)  # commits of the first version had it
    try:
        kept = raw.pop("metrics").items()
        metrics = {name: math.nan if value is None else value for name, value in kept}
        return StepCommit(weights=WeightsRef(**raw.pop("weights")), metrics=metrics, **raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{where} must be the commit of a step with the fields of this version, it has others"
            f" ({error}); restore the file, or resume the run with the version that wrote it"
        ) from None


def write_manifest(store: Store, manifest: RunManifest) -> None:
    store.keep(layout.MANIFEST, _encode(asdict(manifest)))


def read_manifest(store: Store) -> RunManifest:
    """Read the manifest of the run in `store`. Raises ValueError if `store` holds no run, or a
    damaged manifest."""
    where = f"{store.url}/{layout.MANIFEST}"
    try:
        raw = _decode(store.checked(layout.MANIFEST), where)
    except FileNotFoundError:
        raise ValueError(
            f"{store.url} must hold a run, but has no {layout.MANIFEST}; check artifact_root and"
            " run_id"
        ) from None
    if raw.get("has_digests"):
        store.requiring_digests().checked(layout.MANIFEST)
    try:
        flow_runs = tuple(raw.pop("prefect_flow_run_ids"))
        changes = tuple(raw.pop("changes", ()))
        return RunManifest(prefect_flow_run_ids=flow_runs, changes=changes, **raw)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{where} must be the manifest of a run with the fields of this version, it has others"
            f" ({error}); restore the file, or use the version that wrote it"
        ) from None


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of these packages, without those that are not installed."""
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def git_sha(directory: Path) -> str | None:
    """The commit checked out at `directory`, "-dirty" appended when tracked files differ from it;
    None outside git."""
    sha = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return f"{sha}-dirty" if sha and changes else sha


def _git(directory: Path, *args: str) -> str | None:
    try:
        return subprocess.check_output(
            ["git", *args], cwd=directory, stderr=subprocess.DEVNULL, text=True, timeout=20
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _encode(record: Json) -> bytes:
    return json.dumps(_finite(record), indent=1, sort_keys=True, allow_nan=False).encode()


def _finite(value: Any) -> Any:  # Any: a JSON value in, a JSON value out
    """Replace not-a-number and infinities by None: JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_finite(item) for item in value]
    return value


def _decode(data: bytes, where: str) -> dict[str, Any]:  # Any: JSON values
    try:
        raw: dict[str, Any] = dict(json.loads(data))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} must hold a JSON object ({error}); restore the file") from None
    if raw.get("schema_version") != COMMIT_SCHEMA_VERSION:
        got = raw.get("schema_version")
        raise ValueError(
            f"{where} must have schema version {COMMIT_SCHEMA_VERSION}, got {got}; resume it with"
            " the code that wrote it"
        )
    return raw
