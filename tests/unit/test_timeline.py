"""Where a round's time went: engines without a response are idle, and rewards may be waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_factories import make_group
from plan_factories import make_report, make_step_plan, span
from round_factories import ENGINE, make_plan, play

from artifacts.records import Generated, Response, Score
from artifacts.reports.timeline import device_times, difference, length, union
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.metrics.report import reward_exposed_s, stage_times
from tasks.rounds.figures import reward_waits, rollout_spans
from tasks.rounds.records import RoundResult
from tasks.rounds.report import close_round, read_round
from tasks.run.run_context import store_of
from tasks.scheduling.events import RoundPlan

GROUP = make_group((1, 2), [(3,), (4, 5)], [1.0, 0.0])
intervals = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6)


@given(intervals, intervals)
def test_a_difference_has_the_points_of_the_first_that_are_not_of_the_second(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    left = difference(first, second)
    assert left == union(left)
    assert length([*left, *second]) == length([*first, *second])
    assert length(left) == length([*first, *second]) - length(second)


def ran(index: int, start_s: float, end_s: float, prompt_id: str = "0/0") -> Generated:
    generated = replace(GROUP.responses[0].generated, prompt_id=prompt_id, index=index)
    return replace(generated, submitted_s=start_s, finished_s=end_s)


def verdict(generated: Generated, at_s: float) -> Score:
    score = GROUP.responses[0].score
    assert score is not None
    return replace(score, prompt_id=generated.prompt_id, index=generated.index, finished_s=at_s)


def brought_home(
    accepted: Sequence[Generated],
    scores: Sequence[Score],
    others: Sequence[Generated] = (),
    filtered: Sequence[str] = (),
) -> RoundResult:
    by_index = {score.index: score for score in scores}
    scored = ((generated, by_index[generated.index]) for generated in accepted)
    responses = tuple(Response(generated=generated, score=score) for generated, score in scored)
    prompt = replace(GROUP.prompt, prompt_id="0/0")
    return RoundResult(
        accepted=("0/0",),
        groups=(replace(GROUP, prompt=prompt, responses=responses),),
        deferred=(),
        dropped=(),
        filtered=tuple(filtered),
        generated=(*accepted, *others),
        migrated=(),
        scores=tuple(scores),
    )


def test_a_verdict_after_the_last_trained_token_is_waited_for_whatever_is_aborted_then() -> None:
    first, second = ran(0, 0, 4), ran(1, 0, 6)
    aborted = replace(ran(0, 0, 9, "0/1"), finish_reason="aborted")
    deferred = ran(1, 0, 8, "0/1")
    scores = [verdict(first, 5), verdict(second, 9)]
    result = brought_home([first, second], scores, [aborted, deferred])
    assert reward_waits(result) == ((6, 9),)


def test_a_verdict_that_comes_while_others_are_generated_is_not_waited_for() -> None:
    first, second = ran(0, 0, 4), ran(1, 0, 6)
    scores = [verdict(first, 5.5), verdict(second, 6)]
    assert reward_waits(brought_home([first, second], scores)) == ()


def test_verdicts_between_two_waves_are_waited_for() -> None:
    flat, further = ran(0, 0, 4, "0/1"), ran(0, 20, 24)
    scores = [verdict(further, 25), verdict(flat, 20)]
    result = brought_home([further], scores, [flat], filtered=["0/1"])
    assert reward_waits(result) == ((4, 20), (24, 25))


def test_only_the_step_s_own_seconds_count_as_exposed() -> None:
    report = make_report(())
    waits = ((-50.0, -40.0), (-1.0, 2.0), (7.0, 8.5))
    assert reward_exposed_s(report) == 0
    waited = replace(report, rollout=replace(report.rollout, reward_waits=waits))
    assert reward_exposed_s(waited) == pytest.approx(3.5)


ALIKE = ENGINE.model_copy(update={"lengths": LengthModel(median_tokens=100, sigma=0)})
SLOW = SimulatedRewardConfig(median_s=16, sigma=0, ok_share=0.5)


def played(plan: RoundPlan) -> RoundResult:
    return run_virtual(play(plan, [SimulatedEngine("engine-0", ALIKE)], SimulatedFeed(SLOW)))


def test_seconds_between_two_waves_of_dynamic_sampling_are_no_rollout() -> None:
    result = played(make_plan(domains=("a",) * 4, accept_per_prompt=2, reserve=("a",) * 8))
    assert result.filtered
    spans = rollout_spans(result, {"engine-0": ("cpu:0",)})
    waves = len({response.submitted_s for response in result.generated})
    assert len(spans) == waves > 1
    (times,) = device_times(spans, ["cpu:0"], 0, max(score.finished_s for score in result.scores))
    assert times.bubble_s["idle"] == pytest.approx(16 * waves)
    assert length(reward_waits(result)) == pytest.approx(16 * waves)
    step_s = max(score.finished_s for score in result.scores)
    stages = stage_times(make_report(spans, finished_s=step_s))
    assert stages["rollout"] == pytest.approx(step_s - 16 * waves)


def test_the_exposed_reward_of_a_short_round_is_not_nothing() -> None:
    plan = make_plan("short", domains=("a",) * 6, accept_prompts=4, accept_per_prompt=2)
    lengths = LengthModel(median_tokens=2000, sigma=1.5, prompt_share=1.0)
    engine = SimulatedEngine("engine-0", ENGINE.model_copy(update={"lengths": lengths}))
    result = run_virtual(play(plan, [engine], SimulatedFeed(SLOW), max_response_tokens=20_000))
    assert {response.finish_reason for response in result.generated} == {"stop", "aborted"}
    accepted = [response.generated for group in result.groups for response in group.responses]
    last_s = max(response.finished_s for response in accepted)
    assert reward_waits(result)[-1] == (last_s, last_s + 16)


def test_a_closed_round_is_read_back_as_it_was() -> None:
    plan = make_step_plan()
    plan = replace(plan, run=replace(plan.run, artifact_root="memory://closed"))
    waits = ((1.0, 2.5), (4.0, 4.5))
    report = replace(make_report((span("rollout", 0, 1),)).rollout, reward_waits=waits)
    close_round(store_of(plan), plan.step, report)
    assert read_round(store_of(plan), plan.step) == report
