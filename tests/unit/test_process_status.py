"""The states of environment hosts on their way from a pool to page, table and terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from report_factories import keep_answers, make_commit, make_evaluation, make_row, make_run

from artifacts.reports.environment_processes import (
    PoolState,
    ProcessStatus,
    from_json,
    keep_pools,
    pools_summary,
    process_rows,
    read_pools,
    to_json,
)
from artifacts.store import Store
from flows.evaluate import read_answers
from flows.results import RunResults

LIVING = ProcessStatus(
    number=1,
    state="thinking",
    for_s=0.4,
    age_s=312.0,
    episode="0/27:4",
    kind="tasks.environments.games.guess.GuessConfig",
    num_steps=812,
    mean_s=0.0041,
    p95_s=0.0087,
    num_restarts=0,
    last_failure="",
)
DEAD = replace(
    LIVING,
    number=2,
    state="dead",
    for_s=3.0,
    age_s=None,
    episode="",
    num_steps=40,
    mean_s=0.5,
    p95_s=1.25,
    num_restarts=2,
    last_failure="LookupError: <b>no</b> such move",
)
POOL = PoolState(
    name="environment-0",
    machine="north",
    reported_s=100.0,
    num_places=64,
    num_waiting=3,
    num_episodes=120,
    num_steps=852,
    num_crashed=2,
    num_unanswered=1,
    num_restarts=2,
    num_late=0,
    reset_p95_s=0.046,
    step_p95_s=0.0087,
    processes=(LIVING, DEAD),
)


def test_states_go_through_files_and_processes_unchanged(tmp_path: Path) -> None:
    assert from_json(to_json(POOL)) == POOL
    store = Store.open(str(tmp_path))
    assert read_pools(store) == ()
    keep_pools(store, [POOL])
    assert read_pools(store) == (POOL,)


def test_a_table_has_a_row_for_each_host() -> None:
    living, dead = process_rows([POOL], now_s=107.0)
    assert (living["worker"], living["state"], living["p95 ms"]) == (
        "environment-0",
        "thinking",
        8.7,
    )
    assert (dead["age s"], dead["restarts"], dead["reported s ago"]) == ("", 2, 7)


def test_a_line_says_all_of_them() -> None:
    assert pools_summary([]) == ""
    assert pools_summary([POOL]) == (
        "environment processes: 1 thinking, 1 dead, 3 episodes wait for one, 3 failures, 2"
        " restarts, 95 % of steps within 8.7 ms"
    )


def page_of(store: Store) -> str:
    made = make_run(store, make_commit(1))
    keep_answers(made, 0, make_row("heldout/0", "4", 0.0))
    keep_answers(made, 1, make_row("heldout/0", "5", 1.0))
    results = RunResults(made)
    scores = {"heldout/0": 1.0}
    evaluations = {0: make_evaluation(scores), 1: make_evaluation(scores, version=1)}
    commits = [make_commit(1)]
    summary = results.summary(commits, evaluations, {})
    answers = read_answers(made.store, evaluations)
    pictures = results.pictures(commits, evaluations)
    return results.page(commits, evaluations, answers, summary, pictures, is_over=True).decode()


def test_the_page_of_a_run_has_them(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    assert "Environment hosts" not in page_of(store)
    keep_pools(make_run(store, make_commit(1)).store, [POOL])
    page = page_of(store)
    assert "environment-0 on north: 2 of 64 places used, 1 thinking, 1 dead" in page
    assert "LookupError: &lt;b&gt;no&lt;/b&gt; such move" in page
    assert "8.7 ms" in page
