"""The driver over simulated engines, on a virtual clock."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence

import pytest
from round_factories import ENGINE, make_engines, make_plan, make_prompts, play

from artifacts.records import Generated, Group, Request, Response, Score
from tasks.engines.base import EngineLost, EngineStats, SamplingConfig
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.rounds.records import RoundResult
from tasks.scheduling.events import RoundPlan

SYNC = make_plan(domains=("a",) * 6, accept_per_prompt=4)
SHORT = make_plan(
    "short", domains=("a",) * 8, accept_prompts=6, accept_per_prompt=4, launch_per_prompt=5
)


class CountingEngine(SimulatedEngine):
    """Remembers what it was asked."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ENGINE)
        self.submitted: list[tuple[Request, ...]] = []
        self.aborted: list[str] = []

    async def submit(self, requests: Sequence[Request]) -> None:
        self.submitted.append(tuple(requests))
        await super().submit(requests)

    async def abort(self, response_ids: Sequence[str]) -> None:
        self.aborted += response_ids
        await super().abort(response_ids)


class CountingFeed(SimulatedFeed):
    """Remembers what it scored."""

    def __init__(self) -> None:
        super().__init__(SimulatedRewardConfig())
        self.published: list[str] = []

    async def publish(self, generated: Sequence[Generated]) -> None:
        self.published += [one.response_id for one in generated]
        await super().publish(generated)


class CalledOff(RuntimeError):
    """What a feed raises when another stage has failed."""


class BreakingFeed(SimulatedFeed):
    """Is called off when asked for its first verdict."""

    async def scored(self, wait_s: float) -> list[Score]:
        raise CalledOff("the learner failed")


def drive(plan: RoundPlan, num_engines: int = 2, **options: object) -> RoundResult:
    async def work() -> RoundResult:
        return await play(plan, make_engines(num_engines), **options)  # type: ignore[arg-type]

    return run_virtual(work())


def whole_groups(groups: Sequence[Group], plan: RoundPlan) -> bool:
    return all(
        len({one.generated.response_id for one in group.responses}) == plan.accept_per_prompt
        and all(one.score is not None and one.score.reward is not None for one in group.responses)
        for group in groups
    )


def test_a_synchronous_round_brings_home_every_group_whole() -> None:
    result = drive(SYNC)
    assert sorted(group.prompt.prompt_id for group in result.groups) == sorted(make_prompts(SYNC))
    assert whole_groups(result.groups, SYNC)
    assert (result.deferred, result.dropped, len(result.generated), len(result.scores)) == (
        (),
        (),
        24,
        24,
    )


def test_the_opening_of_a_round_is_one_submission_per_engine_in_launch_order() -> None:
    async def opening() -> list[list[list[str]]]:
        engines = [CountingEngine("engine-0"), CountingEngine("engine-1")]
        await play(SYNC, engines)
        return [
            [[request.response_id for request in batch] for batch in engine.submitted]
            for engine in engines
        ]

    submitted = run_virtual(opening())
    assert [len(batches) for batches in submitted] == [1, 1]
    for batch, *_ in submitted:
        assert batch == sorted(batch)
    assert submitted == run_virtual(opening())


def test_a_short_round_keeps_the_first_groups_and_hands_back_partial_responses() -> None:
    result = drive(SHORT)
    assert len(result.groups) == 6
    assert whole_groups(result.groups, SHORT)
    assert len(result.deferred) == 2
    reasons = Counter(one.finish_reason for one in result.generated)
    assert reasons["aborted"] > 0
    assert sum(reasons.values()) == 40


def test_groups_are_handed_over_as_they_are_accepted() -> None:
    accepted: list[Group] = []
    result = drive(SHORT, accepted=accepted)
    assert tuple(accepted) == result.groups


def test_the_same_round_gives_the_same_result() -> None:
    assert drive(SHORT) == drive(SHORT)


def test_every_request_has_a_seed_of_its_own() -> None:
    async def seeds() -> list[int]:
        engine = CountingEngine("engine-0")
        await play(SYNC, [engine])
        return [request.seed for batch in engine.submitted for request in batch]

    assert len(set(run_virtual(seeds()))) == 24


def test_recorded_responses_are_not_generated_again() -> None:
    first = drive(SYNC)
    scores = {(score.prompt_id, score.index): score for score in first.scores}
    recorded = [
        Response(generated=one, score=scores[one.prompt_id, one.index])
        for one in first.generated[:10]
    ]
    recorded += [Response(generated=one, score=None) for one in first.generated[10:15]]

    async def resume() -> None:
        engine, feed = CountingEngine("engine-0"), CountingFeed()
        result = await play(SYNC, [engine], feed, recorded=recorded)
        again = {request.response_id for batch in engine.submitted for request in batch}
        known = {one.generated.response_id for one in recorded}
        assert len(again) == 9
        assert not again & known
        assert not set(feed.published) & {one.generated.response_id for one in recorded[:10]}
        assert set(feed.published) >= {one.generated.response_id for one in recorded[10:]}
        assert len(result.groups) == 6
        assert len(result.generated) == 24

    run_virtual(resume())


def test_a_fully_recorded_round_asks_no_engine() -> None:
    first = drive(SHORT)
    scores = {(score.prompt_id, score.index): score for score in first.scores}
    recorded = [
        Response(generated=one, score=scores.get((one.prompt_id, one.index)))
        for one in first.generated
    ]
    whole = [one for one in recorded if one.score is not None]

    async def resume() -> RoundResult:
        engine = CountingEngine("engine-0")
        result = await play(SHORT, [engine], recorded=recorded)
        launched = {request.response_id for batch in engine.submitted for request in batch}
        assert not launched & {one.generated.response_id for one in whole}
        return result

    result = run_virtual(resume())
    assert len(result.groups) == 6
    assert whole_groups(result.groups, SHORT)
    assert len({one.response_id for one in result.generated}) == len(result.generated)


def recorded_round(plan: RoundPlan) -> list[Response]:
    """The records of a round in which every verdict is the same."""
    feed = SimulatedFeed(SimulatedRewardConfig(ok_share=1.0))
    result = run_virtual(play(plan, make_engines(2), feed))
    scores = {(score.prompt_id, score.index): score for score in result.scores}
    told = [(response, (response.prompt_id, response.index)) for response in result.generated]
    return [Response(generated=response, score=scores.get(name)) for response, name in told]


def test_a_long_reserve_of_recorded_groups_that_agree_is_replayed() -> None:
    plan = make_plan(domains=("a",), reserve=("a",) * 250)
    result = drive(plan, recorded=recorded_round(plan))
    assert [len(result.filtered), len(result.groups)] == [250, 1]


def test_recorded_groups_of_a_short_round_are_decided_one_after_the_other() -> None:
    domains = ("a", "b") * 4
    plan = make_plan("short", domains, 4, launch_per_prompt=3, reserve=domains)
    result = drive(plan, recorded=recorded_round(plan))
    assert len(result.groups) == 4
    assert whole_groups(result.groups, plan)


def test_losses_that_are_found_out_while_an_answer_is_carried_out_wait_for_their_turn() -> None:
    """Every submission finds another engine dead, hundreds of times."""

    class Fragile(SimulatedEngine):
        async def submit(self, requests: Sequence[Request]) -> None:
            self.fail()
            await super().submit(requests)

    async def lose_all_but_one() -> RoundResult:
        fragile = [Fragile(f"engine-{place}", ENGINE) for place in range(300)]
        plan = make_plan(domains=("a",), accept_per_prompt=301)
        return await play(plan, [*fragile, SimulatedEngine("engine-300", ENGINE)])

    result = run_virtual(lose_all_but_one())
    assert {response.engine for response in result.generated} == {"engine-300"}


def test_a_lost_engine_s_responses_are_generated_by_the_others() -> None:
    async def lose_one() -> RoundResult:
        engines = make_engines(3)
        asyncio.get_running_loop().call_later(0.5, engines[1].fail)
        return await play(SYNC, engines)

    result = run_virtual(lose_one())
    assert len(result.groups) == 6
    assert whole_groups(result.groups, SYNC)
    assert len({one.response_id for one in result.generated}) == len(result.generated)


def test_an_engine_lost_before_the_round_is_found_out_at_the_first_submission() -> None:
    async def lose_one() -> RoundResult:
        engines = make_engines(2)
        engines[0].fail()
        return await play(SYNC, engines)

    result = run_virtual(lose_one())
    assert len(result.groups) == 6
    assert {one.engine for one in result.generated} == {"engine-1"}


def test_the_loss_of_the_last_engine_ends_the_round() -> None:
    async def lose_all() -> None:
        engines = make_engines(2)
        for place, engine in enumerate(engines):
            asyncio.get_running_loop().call_later(0.2 + place, engine.fail)
        await play(SYNC, engines)

    with pytest.raises(EngineLost, match="no engine is left"):
        run_virtual(lose_all())


class AbortingEngine(SimulatedEngine):
    """Gives up on its first request of its own accord, once."""

    has_given_up = False

    async def submit(self, requests: Sequence[Request]) -> None:
        await super().submit(requests)
        if requests[0].index == 0 and requests[0].prompt_id == "p0" and not self.has_given_up:
            self.has_given_up = True
            await self.abort([requests[0].response_id])


def test_a_response_that_its_engine_gave_up_is_launched_again() -> None:
    result = run_virtual(play(SYNC, [AbortingEngine("engine-0", ENGINE)]))
    assert len(result.groups) == 6
    assert whole_groups(result.groups, SYNC)


def test_a_round_without_progress_says_what_it_waited_for() -> None:
    slow = ENGINE.model_copy(update={"step_s": 1e6})

    async def wait() -> None:
        await play(SYNC, make_engines(2, slow), deadline_s=60)

    with pytest.raises(TimeoutError) as caught:
        run_virtual(wait())
    message = str(caught.value)
    assert "60 s" in message
    assert "6 groups are missing; undecided: p0 (0 of 4 scored, 4 running, 0 unscored)" in message
    assert "engine-0" in message


TWENTY_THOUSAND = ENGINE.model_copy(
    update={
        "step_s": 0.03,  # 33 tokens a second
        "lengths": LengthModel(median_tokens=20_000, sigma=0),
    }
)
TWO_RESPONSES = make_plan(domains=("a",), accept_per_prompt=2)


def test_a_round_that_generates_goes_on_for_longer_than_its_deadline() -> None:
    async def generate() -> float:
        engines = make_engines(1, TWENTY_THOUSAND)
        await play(TWO_RESPONSES, engines, max_response_tokens=20_000, deadline_s=300)
        return asyncio.get_running_loop().time()

    assert run_virtual(generate()) > 600


def test_a_round_whose_engine_stalls_in_the_middle_says_how_far_it_came() -> None:
    class Stalling(SimulatedEngine):
        """Generates nothing more after 500 s, but answers."""

        def _now(self) -> float:
            return min(500.0, super()._now())

        def _schedule(self) -> None:
            if self._now() < 500:
                super()._schedule()

    async def wait() -> float:
        stalling = Stalling("engine-0", TWENTY_THOUSAND)
        with pytest.raises(TimeoutError) as caught:
            await play(TWO_RESPONSES, [stalling], max_response_tokens=20_000, deadline_s=300)
        message = str(caught.value)
        assert "waited 300 s without a token, a response or a verdict for 1 groups are" in message
        assert re.search(r"alive: engine-0 \(2 running, 33\d\d\d tokens\)", message)
        assert "0 responses with 0 tokens have come" in message
        return asyncio.get_running_loop().time()

    assert 800 <= run_virtual(wait()) <= 500 + 300 + 300 / 4 + 40


def test_a_busy_round_asks_no_engine_how_far_it_is() -> None:
    class Unread(SimulatedEngine):
        async def stats(self) -> EngineStats:
            raise AssertionError("a reading costs a call")

    assert len(run_virtual(play(SYNC, [Unread("engine-0", ENGINE)])).groups) == 6


def test_an_engine_that_is_found_lost_by_a_look_at_it_is_replaced_by_the_others() -> None:
    class Hung(SimulatedEngine):
        """Takes requests and says nothing; only a reading finds that out."""

        async def collect(self, wait_s: float) -> list[Generated]:
            await asyncio.sleep(wait_s)
            return []

        async def stats(self) -> EngineStats:
            raise EngineLost(f"{self.name} did not answer stats")

    engines = [Hung("engine-0", ENGINE), SimulatedEngine("engine-1", ENGINE)]
    result = run_virtual(play(SYNC, engines, deadline_s=300))
    assert {response.engine for response in result.generated} == {"engine-1"}


@pytest.mark.parametrize("plan", [SYNC, SHORT], ids=["sync", "short"])
def test_a_round_that_is_called_off_leaves_its_engines_idle(plan: RoundPlan) -> None:
    async def call_off() -> None:
        engines = make_engines(2)
        with pytest.raises(CalledOff, match="the learner failed"):
            await play(plan, engines, BreakingFeed(SimulatedRewardConfig()))
        for engine in engines:
            stats = await engine.stats()
            assert stats.progress == {}
            assert await engine.collect(0.1) == []
        again = await play(plan, engines)
        assert len(again.groups) == plan.accept_prompts

    run_virtual(call_off())


def test_a_cancelled_round_leaves_its_engines_idle() -> None:
    async def cancel() -> None:
        engines = make_engines(2)
        round_ = asyncio.create_task(play(SYNC, engines))
        await asyncio.sleep(0.3)
        round_.cancel()
        with pytest.raises(asyncio.CancelledError):
            await round_
        assert [(await engine.stats()).progress for engine in engines] == [{}, {}]

    run_virtual(cancel())


def test_a_finished_round_leaves_its_engines_idle() -> None:
    async def finish() -> None:
        engines = make_engines(2)
        await play(SHORT, engines)
        for engine in engines:
            stats = await engine.stats()
            assert stats.progress == {}

    run_virtual(finish())


def test_prompts_that_cannot_be_scored_are_dropped_and_the_round_ends() -> None:
    feed = SimulatedFeed(SimulatedRewardConfig(infra_share=1.0))
    result = run_virtual(play(SYNC, make_engines(2), feed))
    assert result.groups == ()
    assert sorted(result.dropped) == sorted(make_prompts(SYNC))


def test_sampling_bounds_are_checked() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        SamplingConfig(top_p=0.0)
