"""A run goes on where its data, models and code lie now, if they are the same; one that is finished
says so."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_factories import make_commit, make_evaluation, make_run

from artifacts.commit import commit_step, read_manifest, write_manifest
from artifacts.models.registry import files_digest
from artifacts.reports.figures import progress_text
from artifacts.reports.summary import headline
from artifacts.reports.tracking import RunTracker
from artifacts.status import pulse
from artifacts.store import Store
from flows import reporter
from flows.config.run_config import RunConfig
from flows.reporter import RunReporter
from flows.results import RunResults
from flows.resume import beside_resume, effective_config, nothing_left
from flows.run_record import record_beginning
from tasks.elastic.worker_history import WorkerHistory
from tasks.run import prompts

Json = dict[str, Any]  # Any: parsed JSON
ROWS = '{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2=", "answer": 3}\n'
MINE = "/somewhere/mine.py"


def make_model(folder: Path, weights: bytes = b"weights" * 1000) -> Path:
    folder.mkdir(parents=True)
    for name, data in (("model.safetensors", weights), ("config.json", b"{}"), ("README", b"r")):
        (folder / name).write_bytes(data)
    return folder


def begin(root: Path, **values: object) -> Store:
    """A run that was begun with these values, and its folder."""
    store = Store.open(str(root)).child("run")
    record_beginning(configured(root, values), "run", store, step=0).end("FINISHED")
    return store


def configured(root: Path, values: Json) -> RunConfig:
    keep = {"artifact_root": str(root), "tracking_uri": f"sqlite:///{root}/m.db"}
    return RunConfig.model_validate(beside_resume({"preset": "tiny", "keep": keep} | values))


def resume(root: Path, **values: object) -> None:
    """Resume the run with these values beside, as far as what it finds is compared."""
    prompts._dataset.cache_clear()  # as in another process
    config = effective_config(configured(root, {"resume": "run"} | values))
    record_beginning(config, "run", Store.open(str(root)).child("run"), step=1).end("FINISHED")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.mark.parametrize("field", ["path", "heldout_path"])
def test_rows_are_found_where_they_lie_now_and_must_be_the_same(
    root: Path, tmp_path: Path, field: str
) -> None:
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_text(ROWS)
    task = {"kind": "files", "path": str(tmp_path / "old.jsonl")}
    task |= {"heldout_path": str(tmp_path / "held.jsonl")}
    (tmp_path / "held.jsonl").write_text(ROWS.replace("+", "-"))
    (tmp_path / "other.jsonl").write_text(ROWS.replace("+", "*"))
    store = begin(root, task=task)
    now = Path(task[field])
    now = now.rename(tmp_path / "elsewhere.jsonl")
    resume(root, task={field: str(now)})
    assert [change["field"] for change in read_manifest(store).changes] == [f"task.{field}"]
    with pytest.raises(ValueError, match="must have the rows that run run was begun with") as error:
        resume(root, task={field: str(tmp_path / "other.jsonl")})
    assert "\n" not in str(error.value)


def test_a_part_of_a_mixture_lies_elsewhere_too(root: Path, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_text(ROWS)

    def mixture(name: str, weight: float) -> Json:
        part = {"kind": "files", "path": str(tmp_path / name), "heldout_fraction": 0.5}
        return {"kind": "mixture", "parts": [{"task": part, "weight": weight}]}

    begin(root, task=mixture("old.jsonl", 1))
    resume(root, task=mixture("new.jsonl", 1))
    with pytest.raises(ValueError, match=r"task\.parts must stay"):
        resume(root, task=mixture("new.jsonl", 2))


@pytest.mark.parametrize("of_judge", [False, True])
def test_a_model_is_found_where_it_lies_now_and_must_be_the_same(
    root: Path, tmp_path: Path, of_judge: bool
) -> None:
    def named(folder: Path, kind: str = "path") -> Json:
        model = {"kind": kind, "path": str(folder)}
        return {"rewards": {"*": {"engine": {"model": model}}}} if of_judge else {"model": model}

    old, new = make_model(tmp_path / "old"), make_model(tmp_path / "new")
    (new / "README").write_text("another one, which nobody reads")
    other = make_model(tmp_path / "other", b"weights" * 999 + b"weighed")
    preset = {"preset": "tiny-judged"} if of_judge else {}
    begin(root, **preset, **named(old))
    resume(root, **named(new))
    with pytest.raises(ValueError, match=r"model.path.* must hold the model that run run was"):
        resume(root, **named(other))
    (new / "config.json").write_text('{"changed": 1}')
    with pytest.raises(ValueError, match="holds another; put"):
        resume(root)  # nor where it lay


def test_a_model_of_which_no_digest_is_kept_stays_where_it_is(root: Path, tmp_path: Path) -> None:
    """As in manifests of earlier versions."""
    store = begin(root, model={"kind": "path", "path": str(make_model(tmp_path / "old"))})
    write_manifest(store, replace(read_manifest(store), model_digests={}))
    moved = {"path": str(make_model(tmp_path / "new"))}
    with pytest.raises(ValueError, match="holds another, as far as is known"):
        resume(root, model=moved)
    resume(root)


def test_a_models_digest_is_of_all_that_is_read(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    seen = {files_digest(folder)}
    (folder / "chat_template.jinja").write_text("x")
    seen.add(files_digest(folder))
    (folder / "chat_template.jinja").rename(folder / "other.jinja")
    seen.add(files_digest(folder))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("begun", "given"),
    [
        (
            {"rewards": {"*": {"kind": "custom", "path": f"{MINE}:reward"}}},
            {"rewards": {"*": {"path": "/new/mine.py:reward"}}},
        ),
        (
            {
                "preset": "tiny-agent",
                "environments": {"guess": {"kind": "custom", "path": f"{MINE}:Game"}},
            },
            {"environments": {"guess": {"path": "/new/mine.py:Game"}}},
        ),
        ({}, {"episodes": {"hosts": {"readable": ["/new"]}}}),
        ({}, {"keep": {"model_cache": "/new", "weights_dir": "/new"}}),
        ({}, {"planner": {"profile": "/new.json"}}),
    ],
)
def test_code_and_folders_may_lie_elsewhere(root: Path, begun: Json, given: Json) -> None:
    begin(root, **begun)
    keep = {"artifact_root": str(root)} | given.get("keep", {})
    values = beside_resume({"preset": "tiny", "resume": "run"} | given | {"keep": keep})
    effective_config(RunConfig.model_validate(values))


def test_what_is_learned_from_stays_and_the_sentence_names_the_places(root: Path) -> None:
    begin(root)
    with pytest.raises(ValueError, match=r"seed must stay .* task\.\.\.path, .* model\.\.\.path"):
        resume(root, seed=9)


def ended(root: Path, how: str, num_steps: int = 2) -> None:
    """The run of two steps, which ended like that."""
    store = begin(root, num_steps=num_steps)
    for step in range(1, num_steps + 1):
        commit_step(store, make_commit(step))
    try:
        with pulse(store):
            if how == "failed":
                raise RuntimeError("it broke")
            if how == "interrupted":
                raise KeyboardInterrupt
    except (RuntimeError, KeyboardInterrupt):
        return


@pytest.mark.parametrize(
    ("how", "beside", "has_nothing_left"),
    [
        ("finished", {}, True),
        ("finished", {"num_steps": 2}, True),
        ("finished", {"num_steps": 1}, True),
        ("finished", {"cluster": {"dashboard_port": 0}}, True),
        ("finished", {"num_steps": 3}, False),
        ("finished", {"keep": {"log_model": True}}, False),
        ("failed", {}, False),
        ("interrupted", {}, False),
    ],
)
def test_a_finished_run_that_is_asked_for_nothing_new_says_so(
    root: Path, how: str, beside: Json, has_nothing_left: bool
) -> None:
    ended(root, how)
    keep = {"artifact_root": str(root)} | beside.get("keep", {})
    values = {"preset": "tiny", "resume": "run"} | beside | {"keep": keep}
    told = nothing_left(RunConfig.model_validate(values))
    assert bool(told) == has_nothing_left
    if told:
        assert told.startswith("run is finished: 2/2 steps; ")
        assert "'--set num_steps=N' with N above 2 adds some" in told


def test_a_damaged_status_keeps_no_run_from_being_resumed(root: Path) -> None:
    ended(root, "finished")
    Store.open(str(root)).child("run").write("status.json", b"{")
    keep = {"artifact_root": str(root)}
    config = RunConfig.model_validate({"preset": "tiny", "resume": "run", "keep": keep})
    assert not nothing_left(config)


def test_a_new_run_has_everything_left() -> None:
    assert not nothing_left(RunConfig.model_validate({"preset": "tiny"}))


def later(step: int, pause_s: float) -> Any:  # Any: a StepCommit
    """A step of ten seconds after such a pause."""
    made = make_commit(step)
    moved = {name: made.timings[name] + pause_s for name in ("started_s", "finished_s")}
    return replace(made, timings={**made.timings, **moved})


@pytest.mark.parametrize("pause_s", [0.0, 5.0, 86_400.0])
def test_a_pause_between_two_attempts_is_no_time_of_the_run(pause_s: float) -> None:
    commits = [make_commit(1), make_commit(2), later(3, pause_s), later(4, pause_s)]
    run = make_run(Store.open(f"memory://paused-{pause_s}"), *commits)
    summary = RunResults(run).summary(commits, {0: make_evaluation({"heldout/0": 0.0})}, {})
    assert headline(summary).endswith(" 4 steps in 40 s.")
    assert headline(replace(summary, num_steps=1, run_s=9.0)).endswith(" 1 step in 9 s.")


def test_steps_that_drain_the_queue_count_apart() -> None:
    assert [progress_text(steps, 2) for steps in (0, 1, 2, 3)] == ["0/2", "1/2", "2/2", "2/2 +1"]
    assert progress_text(65, 64, " of ") == "64 of 64 +1"


class NoMlflow(RunTracker):
    """Takes everything, and keeps nothing."""

    def log_metrics(self, step: int, metrics: object) -> bool:
        return True


async def test_an_evaluation_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one of an earlier attempt is met again at the end of a run with nothing to do."""
    monkeypatch.setattr(reporter, "get_client", lambda: None)
    monkeypatch.setattr(reporter, "get_run_logger", lambda: logging.getLogger("a-flow-run"))
    run = replace(make_run(Store.open("memory://told-once")), tracker=NoMlflow(""))
    teller = RunReporter(run, WorkerHistory(run.store, tuple))
    for _ in range(2):
        await teller.report_evaluation(2, make_evaluation({"heldout/0": 1.0}))
    assert capsys.readouterr().out.count("held-out reward after step 2") == 1


def test_a_chat_template_is_found_where_it_lies_now_and_must_be_the_same(
    root: Path, tmp_path: Path
) -> None:
    for name, text in (("old", "a"), ("new", "a"), ("other", "b")):
        (tmp_path / name).write_text(text)
    model = {"kind": "path", "path": str(make_model(tmp_path / "model"))}
    store = begin(root, model=model | {"chat_template": str(tmp_path / "old")})
    assert set(read_manifest(store).model_digests) == {"model.path", "model.chat_template"}
    resume(root, model={"chat_template": str(tmp_path / "new")})
    with pytest.raises(ValueError, match=r"model.chat_template must hold the template .* another;"):
        resume(root, model={"chat_template": str(tmp_path / "other")})
    with pytest.raises(ValueError, match=r"must hold the template .* none is named; put"):
        resume(root, model={"chat_template": ""})
