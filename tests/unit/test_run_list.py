"""Which runs there are and how they are: running only while a process shows signs of life."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from report_factories import make_commit, make_run

from artifacts import layout
from artifacts.reports.figures import RunFigures, figures_of, read_figures, write_figures
from artifacts.status import STALE_S, RunStatus, await_end, judged, pulse, read_status
from artifacts.store import Store
from flows.commands import runs

NOW = datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)
TOLD = RunStatus(
    state="running", why="", host="far", machine="m", pid=1, process_started_s=1.0, beat_s=1000.0
)
HOLD = """
import sys
from artifacts.status import pulse
from artifacts.store import Store
with pulse(Store.open(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.read()
"""


def told_state(store: Store) -> tuple[str, str]:
    status = read_status(store)
    assert status is not None
    return status.state, status.why


def test_a_run_is_running_inside_its_block_and_finished_after_it(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    with pulse(store):
        assert told_state(store) == ("running", "")
    assert told_state(store) == ("finished", "")


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (RuntimeError("the reward\n failed"), "failed", "the reward failed"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
    ],
)
def test_how_a_run_ended_is_told_in_a_line(
    tmp_path: Path, error: BaseException, state: str, why: str
) -> None:
    store = Store.open(str(tmp_path))
    with pytest.raises(type(error)), pulse(store):
        raise error
    assert told_state(store) == (state, why)


def test_a_killed_process_is_missed_at_once(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert told_state(store) == ("running", "")
        process.kill()
        process.wait()
        state, why = told_state(store)
    assert state == "interrupted"
    assert why.endswith("is gone")


def test_a_run_goes_on_though_the_clock_was_set(tmp_path: Path) -> None:
    """Which moves the beginning of its process, as the system tells it."""
    store = Store.open(str(tmp_path))
    with pulse(store):
        told = json.loads(store.checked(layout.STATUS))
        moved = told | {"process_started_s": told["process_started_s"] - 3600}
        store.write(layout.STATUS, json.dumps(moved).encode())
        assert told_state(store) == ("running", "")
        silent = moved | {"beat_s": told["beat_s"] - STALE_S - 1}
        store.write(layout.STATUS, json.dumps(silent).encode())
        assert told_state(store)[0] == "interrupted", "another process has its pid"


def keep_status(store: Store, status: RunStatus) -> None:
    store.write(layout.STATUS, json.dumps(asdict(status)).encode())


def test_a_run_that_goes_on_is_not_resumed_beside_it(tmp_path: Path) -> None:
    """Wherever the two hand their weights over."""
    store = Store.open(str(tmp_path))
    await_end(store, pytest.fail)
    with pulse(store), pytest.raises(ValueError, match=r"goes on in process \d+ on .*; end it"):
        await_end(store, pytest.fail)
    await_end(store, pytest.fail)


def test_a_run_elsewhere_is_watched_before_it_is_resumed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    now_s = time.time()
    looks: list[int] = []
    told: list[str] = []

    def lives(_: float) -> None:
        looks.append(1)
        keep_status(store, replace(TOLD, beat_s=now_s + len(looks)))

    keep_status(store, replace(TOLD, beat_s=now_s))
    with pytest.raises(ValueError, match="goes on in process 1 on far"):
        await_end(store, told.append, lives)
    keep_status(store, replace(TOLD, beat_s=now_s))
    await_end(store, told.append, lambda _: keep_status(store, replace(TOLD, state="failed")))
    assert told == ["waiting for up to 120 s: the run may go on on far"] * 2
    keep_status(store, replace(TOLD, beat_s=now_s - STALE_S - 1))
    await_end(store, pytest.fail)
    store.write(layout.STATUS, b"")
    await_end(store, pytest.fail)


def test_elsewhere_a_run_is_believed_until_it_has_been_silent_for_long() -> None:
    fresh = judged(TOLD, None, 1000.0 + STALE_S)
    silent = judged(TOLD, None, 1001.0 + STALE_S)
    assert (fresh.state, silent.state) == ("running", "interrupted")
    assert silent.why == f"no sign of life from far for {STALE_S + 1:.0f} s"


def test_what_a_process_said_last_stands_when_it_is_gone() -> None:
    over = replace(TOLD, state="finished")
    assert judged(over, False, 1e9) == over


def test_a_store_that_takes_no_status_stops_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pulse(Store.open(str(tmp_path / "file"))):
        pass
    assert "status=running not written" in caplog.text


def test_figures_are_means_over_what_there_is(tmp_path: Path) -> None:
    commits = [make_commit(step, reward=step / 10) for step in range(1, 7)]
    figures = figures_of(9, commits, {0: 0.25, 6: 0.5})
    assert figures == RunFigures(
        num_steps=9,
        steps=6,
        reward_before=0.25,
        reward_after=0.5,
        reward_training=pytest.approx(0.4),  # of the last five
        step_s=10.0,
        trained_tokens_per_s=10.0,
    )
    overlapping = [*commits[:5], replace(commits[5], timings={"started_s": 145, "finished_s": 164})]
    assert figures_of(9, overlapping, {}).step_s == 9.0, "four of its seconds are the fifth's, too"
    assert figures_of(9, [], {0: 0.25}).columns == {"reward_before": 0.25}
    store = Store.open(str(tmp_path))
    assert read_figures(store) is None
    write_figures(store, figures)
    assert read_figures(store) == figures


def test_the_list_reads_any_store_and_leaves_out_what_is_no_run() -> None:
    root = Store.open(f"memory://{uuid.uuid4().hex}")
    run = make_run(root, make_commit(1), make_commit(2), num_steps=5)
    write_figures(run.store, figures_of(5, run.commits, {0: 0.25}))
    run.store.write(layout.STATUS, json.dumps(asdict(TOLD)).encode())
    root.write("notes/readme.txt", b"no run")
    root.write("broken/manifest.json", b"{")
    told = json.loads(run.store.read(layout.MANIFEST))
    root.write("other/manifest.json", json.dumps(told | {"config": None}).encode())
    (line,) = runs.list_runs(root, NOW)
    assert (line.run_id, line.preset, line.steps, line.num_steps) == ("run", "tiny", 2, 5)
    assert line.state == "interrupted"
    assert "no sign of life" in line.why
    assert (line.reward_before, line.reward_after, line.step_s) == (0.25, None, 10.0)
    assert line.age_s == 3600.0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (layout.STATUS, {"state": "sleeping"}),
        (layout.STATUS, {"beat_s": None}),
        (layout.report_file(layout.FIGURES), {"reward_before": "a quarter"}),
    ],
)
def test_a_file_that_somebody_changed_hides_no_other_run(
    name: str, values: dict[str, object], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = Store.open(str(tmp_path))
    store = make_run(root).store
    write_figures(store, figures_of(5, [], {0: 0.25}))
    keep_status(store, TOLD)
    shutil.copytree(tmp_path / "run", tmp_path / "changed")
    changed = root.child("changed")
    changed.write(name, json.dumps(json.loads(changed.read(name)) | values).encode())
    assert runs.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "run" in out
    assert "changed" not in out


def test_a_run_that_may_not_be_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(store: Store) -> None:
        raise PermissionError("of another user")

    monkeypatch.setattr(runs, "read_manifest", refuse)
    root = Store.open(f"memory://{uuid.uuid4().hex}")
    make_run(root)
    assert runs.list_runs(root, NOW) == []


@pytest.mark.parametrize(("has_model", "state"), [(True, "finished"), (False, "interrupted")])
def test_a_run_that_left_no_status_is_judged_by_its_model(
    tmp_path: Path, has_model: bool, state: str
) -> None:
    run = make_run(Store.open(str(tmp_path)))
    if has_model:
        run.store.write(f"{layout.MODEL}/config.json", b"{}")
    assert runs.state_of(run.store)[0] == state


def test_the_command_prints_a_table_with_reasons_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(Store.open(str(tmp_path)), make_commit(1))
    write_figures(run.store, figures_of(20, run.commits, {0: 0.25, 1: 0.75}))
    with pytest.raises(RuntimeError), pulse(run.store):
        raise RuntimeError("no memory [left]")
    assert runs.main([str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert "1/36" in table
    assert "0.250 -> 0.750" in table
    assert "run failed: no memory [left]" in table
    assert runs.main([str(tmp_path), "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["state"], line["why"]) == ("failed", "no memory [left]")
    assert line["reward_after"] == 0.75


def test_names_and_figures_are_whole_on_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run = make_run(Store.open(str(tmp_path)), make_commit(1))
    write_figures(run.store, figures_of(20, run.commits, {0: 0.25, 1: 0.75}))
    name = "smollm2-mixed [copy of 20260101-120000]"
    (tmp_path / "run").rename(tmp_path / name)
    assert runs.main([str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.startswith(f"{name}  interrupted  ")
    assert "0.250 -> 0.750" in row


def test_an_empty_root_and_an_unknown_protocol_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs.main(["--root", str(tmp_path / "[old]")]) == 0
    assert f"no run under {tmp_path}/[old]; " in capsys.readouterr().out
    assert runs.main(["nowhere://x"]) == 2
    assert "artifact_root must be a URL" in capsys.readouterr().err
