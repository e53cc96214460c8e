"""`rollflow episodes`: which episodes it shows of which step, and what it says where there is
none."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from report_factories import make_commit, make_run
from transcript_factories import HOSTILE, LOST, WON, make_episode_row

from artifacts.episodes import Ending
from artifacts.journal import Journal
from artifacts.records import Outcome
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.commands import episodes
from flows.run import OpenRun
from tasks.run.run_context import EVALUATION

ROWS = [
    make_episode_row("0/1", LOST, Outcome.WRONG, step=2),
    make_episode_row("0/2", WON, step=2),
    make_episode_row("0/3", (("Guess.", "15", 1.5),), step=2),
    make_episode_row("0/4", (*LOST, *LOST), Outcome.TRUNCATED, Ending.TURNS, step=2),
    make_episode_row("0/5", LOST[:1], None, None, step=2),
    make_episode_row("0/6", (), Outcome.INFRA, Ending.CRASHED, step=2, detail="died"),
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenRun:
    """A run whose step 1 has an answer of one turn, and step 2 six episodes."""
    monkeypatch.chdir(tmp_path)
    made = make_run(Store.open(str(tmp_path / "runs")), make_commit(1))
    Journal(made.store).finalise(2, ROWS, (), ())
    asked = Journal(made.store.child(EVALUATION))
    asked.finalise(0, [make_episode_row("heldout/0", LOST, Outcome.WRONG, step=0)], (), ())
    asked.finalise(4, [make_episode_row("heldout/0", WON, step=4)], (), ())
    return made


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert episodes.main(["run", *arguments]) == 0
    return capsys.readouterr().out


def names(told: str) -> list[str]:
    """The responses that are shown, by their headings."""
    return [line.split(":")[0] for line in told.splitlines() if "seed 17" in line]


def test_the_first_episodes_of_the_last_step_are_shown(
    run: OpenRun, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(capsys)
    assert names(told) == ["0/1", "0/2", "0/3"]
    assert "  2  environment  Higher." in told
    assert told.splitlines()[-1] == "3 of 6 that match, of 6 episodes in step 2"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--outcome", "wrong"], ["0/1"]),
        (["--outcome", "aborted"], ["0/5"]),
        (["--ending", "turns"], ["0/4"]),
        (["--ending", "stopped"], ["0/5"]),
        (["--least-reward", "1"], ["0/2", "0/3"]),
        (["--longest", "--count", "2"], ["0/4", "0/1"]),
        (["--shortest", "--count", "2"], ["0/6", "0/3"]),
        (["--best", "--count", "2"], ["0/3", "0/2"]),
        (["--worst", "--count", "4"], ["0/1", "0/4", "0/2", "0/3"]),
        (["--worst", "--least-reward", "0.5"], ["0/2", "0/3"]),
    ],
)
def test_episodes_are_chosen_and_ordered(
    run: OpenRun,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: list[str],
) -> None:
    assert names(shown(capsys, *arguments)) == expected


@pytest.mark.parametrize(
    ("arguments", "after"), [(["--heldout"], 4), (["--heldout", "--step", "0"], 0)]
)
def test_heldout_episodes_are_those_of_an_evaluation(
    run: OpenRun, capsys: pytest.CaptureFixture[str], arguments: list[str], after: int
) -> None:
    told = shown(capsys, *arguments)
    assert names(told) == ["heldout/0"]
    assert told.splitlines()[-1].endswith(f"the evaluation after step {after}")


def test_a_step_that_still_runs_is_read_from_its_journal(
    run: OpenRun, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(run.store).append(3, [make_episode_row("0/9", step=3, outcome=None)])
    told = shown(capsys)
    assert names(told) == ["0/9"]
    assert "no reward, unscored, terminated" in told
    assert names(shown(capsys, "--outcome", "unscored")) == ["0/9"]


def test_a_step_that_is_closed_while_it_is_read_is_read_from_its_table(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, read = Journal(run.store), Journal.read
    journal.append(3, [make_episode_row("0/9", step=3)])
    parts = Journal._parts

    def closes(self: Journal, step: int) -> list[str]:
        found = parts(self, step)
        monkeypatch.setattr(Journal, "_parts", parts)
        journal.finalise(step, read(self, step), (), ())
        journal.drop_parts(step)
        return found

    monkeypatch.setattr(Journal, "_parts", closes)
    (row,) = episodes.recorded(journal, 3)
    assert row.prompt.prompt_id == "0/9"


def test_nothing_that_was_said_acts_on_the_terminal(
    run: OpenRun, capsys: pytest.CaptureFixture[str]
) -> None:
    row = make_episode_row("0/9", ((HOSTILE, "x" * 5000, 0.0),), step=3)
    # a lone surrogate is no UTF-8: no table has one
    clean = HOSTILE.replace(" \ud800", "")
    Journal(run.store).append(3, [with_observation(row, clean)])
    told = shown(capsys)
    assert told.replace("\n", "").isprintable()
    assert "\\x1b[31mred\\x1b[0m \\u202e:smile: [bold]x[/bold]" in told
    assert "4,400 more characters" in told


def with_observation(row: ResponseRow, said: str) -> ResponseRow:
    episode = row.response.generated.episode
    assert episode is not None
    (turn,) = episode.turns
    spoken = replace(episode, turns=(replace(turn, observation=said),))
    generated = replace(row.response.generated, episode=spoken)
    return replace(row, response=replace(row.response, generated=generated))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nobody"], "RUN must be a run under"),
        (["./nobody"], "must hold a run, but has no manifest.json"),
        (["run", "--step", "9"], "run has 2 of them (1 to 2), got 9"),
        (["run", "--step", "1"], "those in step 1 of run are not (1 of one turn)"),
        (["run", "--heldout", "--step", "2"], "run has 2 of them (0 to 4), got 2"),
        (["run", "--count", "0"], "--count must be >= 1, got 0"),
        (
            ["run", "--outcome", "violation"],
            "2 ok, 1 wrong, 1 truncated, 1 aborted, 1 infra; ended 3 terminated, 1 turns",
        ),
    ],
)
def test_what_cannot_be_shown_is_told_in_a_sentence(
    run: OpenRun, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert episodes.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert told in said


def test_a_run_without_an_evaluation_has_no_heldout_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Store.open(str(tmp_path / "runs")))
    assert episodes.main(["run", "--heldout"]) == 2
    assert "must have a recorded evaluation" in capsys.readouterr().err
    assert episodes.main(["run"]) == 2
    assert "must have a recorded step" in capsys.readouterr().err


def test_the_queries_of_the_documentation_work(run: OpenRun) -> None:
    page = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
    endings, turns = (
        duckdb.sql(query.replace("RUN", "run")).fetchall()
        for query in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    )
    assert ("00002", "crashed", 1, 0.0, None) in endings
    assert ("00002", "turns", 1, 6.0, 0.0) in endings
    assert len(turns) == 10
    assert turns[0][2:] == ("Guess.", "10", 0.25)


def test_no_model_library_is_imported_to_show_episodes() -> None:
    program = (
        "import sys, flows.commands.episodes\n"
        "print([name for name in ('torch', 'vllm', 'prefect', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_the_commands_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        episodes.main(["--help"])
    assert "example: rollflow episodes RUN" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        episodes.main(["run", "--outcome", "best"])
    assert "choose from 'ok', 'wrong'" in capsys.readouterr().err
