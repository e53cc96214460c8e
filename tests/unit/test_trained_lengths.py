"""The share of trained over sampled lengths: 1 without bias, less where long responses are given
up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learner_factories import make_group
from plan_factories import make_report

from artifacts.records import Generated
from tasks.metrics.step_metrics import lengths_so_far, running_totals, step_metrics
from tasks.rounds.figures import lengths_of_decided
from tasks.rounds.records import RoundResult
from tasks.scheduling.queue_state import QueueState


def generated(prompt_id: str, *lengths: int) -> tuple[Generated, ...]:
    tokens = [tuple(range(length)) for length in lengths]
    group = make_group((1,), tokens, [1.0] * len(lengths), prompt_id=prompt_id)
    return tuple(response.generated for response in group.responses)


def test_a_response_counts_in_the_round_that_decides_its_prompt() -> None:
    partial = replace(generated("dropped", 30)[0], finish_reason="aborted")
    trained = make_group((1,), [(1, 2), (1, 2, 3)], [1.0, 0.0], prompt_id="trained")
    result = RoundResult(
        accepted=("trained",),
        groups=(trained,),
        deferred=("deferred",),
        dropped=("dropped",),
        filtered=("filtered",),
        generated=(
            *generated("trained", 2, 3, 9),
            *generated("deferred", 50),
            partial,
            *generated("filtered", 4, 4),
            *generated("carried", 60),
        ),
        migrated=(),
        scores=(),
    )
    assert sorted(lengths_of_decided(result)) == [2, 3, 4, 4, 9, 30]


def test_the_share_of_a_step_and_of_the_run_so_far() -> None:
    group = make_group((1,), [(1, 2), (1, 2, 3, 4)], [1.0, 0.0])
    made = make_report(())
    totals: dict[str, int] = {}
    for tokens in (24, 12):
        rollout = replace(made.rollout, num_decided_responses=4, num_decided_tokens=tokens)
        metrics = step_metrics(replace(made, rollout=rollout), QueueState(), (group,))
        totals = running_totals(totals, metrics, QueueState())
        assert metrics["length/trained_share"] == pytest.approx(3 / (tokens / 4))
    assert lengths_so_far(totals) == {"length/trained_share_so_far": pytest.approx(3 / 4.5)}


def test_a_step_that_trains_nothing_has_no_share() -> None:
    metrics = step_metrics(make_report(()), QueueState(), ())
    assert "length/trained_share" not in metrics
    assert lengths_so_far({}) == {}
