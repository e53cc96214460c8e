"""Rows in the order of their longest answers: the same answers, and steps of groups that are about
as long."""

from __future__ import annotations

import pytest
from simulated_run_factories import make_run

from research.paper.known_lengths import ShortestFirst
from research.paper.lower_bound import needed_groups
from tasks.simulation.reward_queue import RuleTimes
from tasks.simulation.steps import play
from tasks.simulation.workloads import workload

NUM_ROWS, SEED = 24, 5
WORK = workload("mixed", 2048)
ROWS = ShortestFirst(work=WORK, num_rows=NUM_ROWS, num_responses=4, seed=SEED)


def test_a_later_step_trains_longer_groups_and_all_train_what_is_needed() -> None:
    plain = make_run(work=WORK, num_rows=NUM_ROWS, seed=SEED)
    known = make_run(work=ROWS, num_rows=NUM_ROWS, seed=SEED)
    steps = play(known).steps
    trained = [group for step in steps for group in step.groups]
    assert sorted(trained, key=str) == sorted(needed_groups(plain, NUM_ROWS), key=str)
    longest = [max(group.response_tokens) for group in trained]
    by_step = [sorted(longest[at : at + 8]) for at in range(0, NUM_ROWS, 8)]
    assert [length for lengths in by_step for length in lengths] == sorted(longest)


def test_a_row_keeps_its_domain_and_its_verdicts() -> None:
    domains = ROWS.domains(NUM_ROWS)
    assert sorted(domains) == sorted(WORK.domains(NUM_ROWS))
    assert list(domains) != list(WORK.domains(NUM_ROWS))
    for row, domain in enumerate(domains):
        assert isinstance(ROWS.reward_of(f"0/{row}"), RuleTimes) == (domain == "math")
    right = sum(ROWS.is_right(0, f"0/{row}", 0) for row in range(NUM_ROWS))
    assert right == sum(WORK.is_right(0, f"0/{row}", 0) for row in range(NUM_ROWS))


def test_a_run_that_asks_for_other_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must ask for the 24 rows .* asks for 30; set num_rows"):
        ROWS.domains(30)
