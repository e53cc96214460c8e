"""When responses are scored: each as it finishes, or all once nothing generates any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from round_factories import make_engines, make_plan, plan_round, play

from artifacts.records import Generated, Response, Score
from flows.commands.algebra_rows import algebra_rows
from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState

PER_RESPONSE = make_plan(domains=("a",) * 4, accept_per_prompt=4)
LAST = replace(PER_RESPONSE, scores_last=True)
BATCH = BatchConfig(prompts_per_step=2, responses_per_prompt=2)


class WatchingFeed(SimulatedFeed):
    """Remembers what still ran on the engines whenever something was handed to it."""

    def __init__(self, engines: Sequence[SimulatedEngine], reward: SimulatedRewardConfig) -> None:
        super().__init__(reward)
        self._engines = engines
        self.running: list[int] = []
        self.handed: list[int] = []

    async def publish(self, generated: Sequence[Generated]) -> None:
        self.running.append(sum([len((await engine.stats()).progress) for engine in self._engines]))
        self.handed.append(len(generated))
        await super().publish(generated)


def watched(
    plan: RoundPlan, reward: SimulatedRewardConfig | None = None, recorded: Sequence[Response] = ()
) -> tuple[RoundResult, WatchingFeed]:
    async def work() -> tuple[RoundResult, WatchingFeed]:
        engines = make_engines(2)
        feed = WatchingFeed(engines, reward or SimulatedRewardConfig())
        return await play(plan, engines, feed, recorded=recorded), feed

    return run_virtual(work())


def last_token_s(result: RoundResult) -> float:
    return max(one.finished_s for one in result.generated)


def num_beside(result: RoundResult) -> int:
    """Verdicts that were under way while something was generated."""
    return sum(
        one.submitted_s < score.finished_s and score.started_s < one.finished_s
        for one in result.generated
        for score in result.scores
    )


def test_scoring_last_begins_when_nothing_generates_any_more() -> None:
    result, feed = watched(LAST)
    assert (feed.running, feed.handed) == ([0], [16])
    assert min(score.started_s for score in result.scores) >= last_token_s(result)
    assert len(result.groups) == 4


def test_scoring_per_response_overlaps_the_rollout() -> None:
    result, feed = watched(PER_RESPONSE)
    assert feed.running[0] > 0
    assert min(score.started_s for score in result.scores) < last_token_s(result)


def test_when_responses_are_scored_changes_no_response_and_no_verdict() -> None:
    def told(
        plan: RoundPlan,
    ) -> tuple[set[tuple[str, tuple[int, ...]]], set[tuple[str, int, float | None]]]:
        result, _ = watched(plan)
        tokens = {(one.response_id, one.token_ids) for one in result.generated}
        return tokens, {(score.prompt_id, score.index, score.reward) for score in result.scores}

    assert told(LAST) == told(PER_RESPONSE)


def test_responses_in_place_of_those_without_a_verdict_are_scored_last_again() -> None:
    result, feed = watched(LAST, SimulatedRewardConfig(infra_share=0.3, seed=3))
    assert set(feed.running) == {0}
    assert len(feed.handed) > 1
    assert num_beside(result) == 0
    assert len(result.groups) + len(result.dropped) == 4


def test_prompts_in_place_of_filtered_groups_are_scored_last_again() -> None:
    plan = replace(
        make_plan(domains=("a",) * 4, accept_per_prompt=2, reserve=("a",) * 8), scores_last=True
    )
    result, feed = watched(plan)
    assert result.filtered
    assert set(feed.running) == {0}
    assert num_beside(result) == 0
    assert len(result.groups) == 4


def test_recorded_responses_without_a_verdict_are_scored() -> None:
    first, _ = watched(LAST)
    scores: dict[tuple[str, int], Score] = {
        (score.prompt_id, score.index): score for score in first.scores
    }
    recorded = [
        Response(generated=one, score=scores[one.prompt_id, one.index] if place < 5 else None)
        for place, one in enumerate(first.generated)
    ]
    result, feed = watched(LAST, recorded=recorded)
    assert sum(feed.handed) == 11
    assert len(result.groups) == 4


@pytest.mark.parametrize("timing", ["per_response", "after_rollout"])
def test_a_synchronous_round_is_planned_as_configured(timing: str) -> None:
    scheduling = SyncConfig.model_validate({"reward_timing": timing})
    plan = plan_round(
        QueueState(), BATCH, scheduling, domains=("a",) * 4, seed=0, step=1, num_steps=1
    )
    assert plan is not None
    assert plan.scores_last == (timing == "after_rollout")


def refusal(*assignments: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the callers look at the sentence
        RunConfig.model_validate(assemble("tiny", "", assignments))
    return sentence(caught.value)


SHORT_LAST = replace(
    make_plan(
        "short", domains=("a",) * 6, accept_prompts=4, launch_per_prompt=4, accept_per_prompt=3
    ),
    scores_last=True,
)


def test_a_short_round_that_scores_last_scores_what_it_has_chosen_and_nothing_else() -> None:
    result, feed = watched(SHORT_LAST)
    assert (feed.running, feed.handed) == ([0], [12])
    assert len(result.groups) == 4
    assert len(result.deferred) == 2
    assert {len(group.responses) for group in result.groups} == {3}


def test_it_keeps_the_groups_and_responses_that_are_generated_first() -> None:
    result, _ = watched(SHORT_LAST)
    kept = [one.generated for group in result.groups for one in group.responses]
    last_s = max(one.finished_s for one in kept)
    late = [one for one in result.generated if one.prompt_id in result.deferred]
    for prompt in result.deferred:
        ended = [one for one in late if one.prompt_id == prompt and one.finish_reason != "aborted"]
        assert sum(one.finished_s < last_s for one in ended) < 3
    for group in result.groups:
        names = {one.generated.response_id for one in group.responses}
        of_prompt = [one for one in result.generated if one.prompt_id == group.prompt.prompt_id]
        others = [one for one in of_prompt if one.response_id not in names]
        assert all(one.finish_reason == "aborted" for one in others)


@pytest.mark.parametrize("infra_share", [0.3, 0.8])
def test_what_it_has_chosen_is_generated_anew_where_a_verdict_fails(infra_share: float) -> None:
    result, feed = watched(SHORT_LAST, SimulatedRewardConfig(infra_share=infra_share, seed=3))
    assert set(feed.running) == {0}
    assert len(feed.handed) > 1
    assert num_beside(result) == 0
    assert len(result.groups) + len(result.dropped) == 4
    assert len(result.deferred) == 2
    generated = [one.response_id for one in result.generated]
    assert len(set(generated)) == len(generated)


def test_it_goes_on_from_the_responses_and_verdicts_of_an_earlier_attempt() -> None:
    first, _ = watched(SHORT_LAST)
    scores = {(score.prompt_id, score.index): score for score in first.scores}
    whole = [one for one in first.generated if one.finish_reason != "aborted"]
    recorded = [
        Response(generated=one, score=scores.get((one.prompt_id, one.index)) if place % 2 else None)
        for place, one in enumerate(whole)
    ]
    result, feed = watched(SHORT_LAST, recorded=recorded)
    assert set(result.accepted) == set(first.accepted)
    known = sum(one.score is not None for one in recorded)
    assert sum(feed.handed) == 12 - known


def test_tail_batching_is_planned_as_configured_in_every_round() -> None:
    policy = TailBatchingConfig(reward_timing="after_rollout", prompt_overprovision=2)
    assert policy.algebra(BATCH).scores_last
    queue = tuple(make_plan(domains=("a",) * 3).prompts)
    for state, step in (
        (QueueState(), 1),
        (QueueState(queue=queue), 1),
        (QueueState(queue=queue), 9),
    ):
        plan = plan_round(state, BATCH, policy, domains=("a",) * 8, seed=0, step=step, num_steps=8)
        assert plan is not None
        assert plan.scores_last
    assert not TailBatchingConfig().algebra(BATCH).scores_last


def test_groups_are_not_filtered_where_their_rewards_come_last() -> None:
    told = refusal("scheduling.reward_timing=after_rollout", "scheduling.dynamic_sampling=1")
    assert "dynamic_sampling must be 0 where tail batching scores after the rollout" in told


def test_the_stream_trainer_needs_verdicts_while_the_rollout_runs() -> None:
    told = refusal(
        "scheduling.kind=sync",
        "scheduling.reward_timing=after_rollout",
        "stream_trainer.enabled=true",
    )
    assert told.startswith(
        "stream_trainer needs scheduling.reward_timing 'per_response', got 'after_rollout'"
    )


def test_explain_says_when_responses_are_scored() -> None:
    values = assemble("tiny-sync", "", ["scheduling.reward_timing=after_rollout"])
    assert (
        dict(algebra_rows(RunConfig.model_validate(values)))["rewards"]
        == "when nothing generates any more"
    )
    assert (
        "as each response finishes"
        in dict(algebra_rows(RunConfig.model_validate({"preset": "tiny"})))["rewards"]
    )
