"""How often a run was interrupted is told on its page, and nothing where it was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from report_factories import make_commit, make_evaluation, make_run

from artifacts.commit import StepCommit, read_manifest, write_manifest
from artifacts.reports.summary import interruptions
from artifacts.store import Store
from flows.evaluate import read_answers
from flows.results import RunResults


def commit_with(step: int, **figures: float) -> StepCommit:
    made = make_commit(step)
    named = {name.replace("__", "/"): value for name, value in figures.items()}
    return replace(made, metrics={**made.metrics, **named})


COMMITS = (
    commit_with(1, round__attempts=3.0, episode__ended_crashed=2.0),
    commit_with(2, round__attempts=1.0, episode__ended_unanswered=5.0),
    commit_with(3),  # of a version without these figures
)


def test_attempts_and_failures_of_environments_are_counted(tmp_path: Path) -> None:
    run = make_run(Store.open(str(tmp_path)), *COMMITS)
    manifest = replace(read_manifest(run.store), prefect_flow_run_ids=("a", "b", "c", "d"))
    assert interruptions(manifest, COMMITS) == (
        "resumed: 3, steps begun again: 2, episodes whose environment failed: 7"
    )
    assert interruptions(manifest, COMMITS[2:]) == "resumed: 3"


def test_the_page_says_it_of_a_run_that_was_interrupted_alone(tmp_path: Path) -> None:
    evaluations = {0: make_evaluation({"h/0": 0.0})}
    run = make_run(Store.open(str(tmp_path)), COMMITS[2])

    def page() -> str:
        results = RunResults(run)
        summary = results.summary(run.commits, evaluations, run.links)
        answers = read_answers(run.store, evaluations)
        pictures = results.pictures(run.commits, evaluations)
        return results.page(
            run.commits, evaluations, answers, summary, pictures, is_over=False
        ).decode()

    assert "interrupted" not in page()
    write_manifest(run.store, replace(read_manifest(run.store), prefect_flow_run_ids=("a", "b")))
    assert "resumed: 1" in page()
