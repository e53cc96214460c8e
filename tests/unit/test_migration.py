"""Scale-down in mid-round over simulated engines: responses change engines, keep what they have,
and are counted once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_factories import make_generated, make_request
from round_factories import ENGINE, make_engines, make_plan, play
from turn_factories import as_episode

from artifacts.records import Generated, Group, Request
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.migration import Migration
from tasks.rounds.records import RoundResult
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.ledger import account_tokens
from tasks.scheduling.prompt_stream import derive_seed
from tasks.scheduling.stream_training import (
    DeviceGroup,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)

SYNC = make_plan(domains=("a",) * 8, accept_per_prompt=4)
SHORT = make_plan(
    "short", domains=("a",) * 10, accept_prompts=8, accept_per_prompt=4, launch_per_prompt=5
)
BOUND = 2000


def make_trainer(plan: RoundPlan, num_engines: int = 2, **changes: float | str) -> StreamTrainer:
    config = StreamTrainerConfig(enabled=True, max_freed_share=1, **changes)
    pairs = [
        DeviceGroup(engines=(f"engine-{place}",), learners=(f"learner-{place}",))
        for place in range(num_engines)
    ]
    return StreamTrainer(config, pairs, plan.accept_prompts)


def streamed(
    plan: RoundPlan, num_engines: int = 2, **changes: float | str
) -> tuple[RoundResult, list[ScaleDown]]:
    freed: list[ScaleDown] = []

    async def work() -> RoundResult:
        return await play(
            plan,
            make_engines(num_engines),
            trainer=make_trainer(plan, num_engines, **changes),
            freed=freed,
        )

    return run_virtual(work()), freed


def assert_whole(result: RoundResult) -> None:
    """Every response is home once, complete, with a log-probability and a version for each of its
    tokens."""
    assert len({one.response_id for one in result.generated}) == len(result.generated)
    for one in result.generated:
        assert (
            len(one.logprobs) == sum(span.num_tokens for span in one.versions) == len(one.token_ids)
        )
        assert len(one.versions) <= 1
        if one.finish_reason != "aborted":
            assert len(one.token_ids) == min(
                BOUND,
                ENGINE.lengths.tokens(
                    one.prompt_id, one.index, derive_seed(0, one.prompt_id, one.index)
                ),
            )


@pytest.mark.parametrize("plan", [SYNC, SHORT], ids=["sync", "short"])
def test_a_freed_engine_s_responses_go_on_elsewhere_with_what_they_have(plan: RoundPlan) -> None:
    result, freed = streamed(plan)
    assert [decision.learners for decision in freed] in ([("learner-0",)], [("learner-1",)])
    assert result.freed == freed[0].learners
    assert len(result.groups) == plan.accept_prompts
    assert_whole(result)
    (emptied,) = freed[0].engines
    assert result.migrated
    assert {one.engine for one in result.migrated} == {emptied}
    whole = {one.response_id: one for one in result.generated}
    for part in result.migrated:
        joined = whole[part.response_id]
        assert joined.engine != emptied
        assert joined.token_ids[: len(part.token_ids)] == part.token_ids
        assert joined.logprobs[: len(part.logprobs)] == part.logprobs


def test_a_round_goes_on_while_devices_go_over_to_training() -> None:
    """Each takes 5 s for it, all at the same time: nothing that the round hears waits for them."""
    num_engines, free_s = 6, 5.0
    freed: list[ScaleDown] = []

    async def work(seconds: float) -> RoundResult:
        return await play(
            SYNC,
            make_engines(num_engines),
            trainer=make_trainer(SYNC, num_engines),
            freed=freed,
            free_s=seconds,
        )

    at_once = run_virtual(work(0.0))
    assert len(at_once.freed) == num_engines - 1
    freed.clear()
    slow = run_virtual(work(free_s))
    assert slow.took_s == pytest.approx(at_once.took_s + free_s, abs=free_s)
    assert {name for decision in freed for name in decision.learners} == set(slow.freed)
    assert set(slow.freed) == set(at_once.freed)
    assert [(s.finished_s, s.prompt_id, s.index) for s in slow.scores] == [
        (s.finished_s, s.prompt_id, s.index) for s in at_once.scores
    ]


def test_a_device_that_cannot_be_freed_fails_the_round() -> None:
    class Broken(list[ScaleDown]):
        def append(self, decision: ScaleDown) -> None:
            raise RuntimeError(f"{decision.engines[0]} does not rest")

    async def work() -> RoundResult:
        engines = make_engines(3)
        try:
            return await play(
                SYNC, engines, trainer=make_trainer(SYNC, 3), freed=Broken(), free_s=0.1
            )
        finally:
            for engine in engines:
                assert (await engine.stats()).progress == {}

    with pytest.raises(RuntimeError, match="does not rest"):
        run_virtual(work())


def test_no_token_is_computed_twice_or_lost() -> None:
    async def work() -> tuple[int, float]:
        engines = make_engines(3)
        result = await play(SHORT, engines, trainer=make_trainer(SHORT, 3))
        assert result.migrated
        computed = [(await engine.stats()).tokens_generated for engine in engines]
        handed_over = [one for one in result.generated if one.finish_reason == "aborted"]
        trained = frozenset(
            one.generated.response_id for group in result.groups for one in group.responses
        )
        return sum(account_tokens(result.generated, trained=trained).values()), sum(computed) - len(
            handed_over
        ) - len(result.migrated)

    booked, least = run_virtual(work())
    # the simulated decoding of a fraction of a token ends with each interruption
    assert least <= booked <= least + 200


def test_devices_are_freed_before_the_round_ends_and_nothing_is_launched_there_afterwards() -> None:
    submitted: list[tuple[str, int]] = []
    freed: list[ScaleDown] = []
    accepted: list[Group] = []

    class Watched(SimulatedEngine):
        async def submit(self, requests: Sequence[Request]) -> None:
            submitted.append((self.name, len(freed)))
            await super().submit(requests)

    async def work() -> RoundResult:
        engines = [Watched(f"engine-{place}", ENGINE) for place in range(3)]
        return await play(
            SYNC, engines, trainer=make_trainer(SYNC, 3), freed=freed, accepted=accepted
        )

    run_virtual(work())
    emptied = {engine for decision in freed for engine in decision.engines}
    assert len(emptied) == 2
    assert not {name for name, after in submitted if after} & emptied


def test_the_decision_waits_for_the_milestone() -> None:
    """Nothing is freed when the last milestone is never reached with few enough responses left."""
    result, freed = streamed(SYNC, max_running_per_engine=1)
    assert freed == []
    assert result.migrated == ()
    assert_whole(result)


def test_without_room_nothing_moves() -> None:
    result, freed = streamed(SYNC, kv_share=0.001)
    assert freed == []
    assert result.migrated == ()


def test_the_same_round_migrates_the_same_way() -> None:
    assert streamed(SHORT) == streamed(SHORT)


@pytest.mark.parametrize("victim", [0, 1])
def test_an_engine_lost_after_the_scale_down_takes_only_its_own_news_with_it(victim: int) -> None:
    """Whichever dies, the emptied or the full one: the other goes on, and what had migrated keeps
    the tokens it had then."""

    async def work() -> RoundResult:
        engines = make_engines(2)
        freed: list[ScaleDown] = []

        async def lose() -> None:
            while not freed:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            engines[victim].fail()

        killer = asyncio.create_task(lose())
        result = await play(SYNC, engines, trainer=make_trainer(SYNC), freed=freed)
        await killer
        return result

    result = run_virtual(work())
    assert len(result.groups) == SYNC.accept_prompts
    assert_whole(result)


def test_a_resumed_response_keeps_its_seed() -> None:
    requests: list[Request] = []

    class Watched(SimulatedEngine):
        async def submit(self, batch: Sequence[Request]) -> None:
            requests.extend(batch)
            await super().submit(batch)

    run_virtual(
        play(
            SYNC,
            [Watched(f"engine-{place}", ENGINE) for place in range(2)],
            trainer=make_trainer(SYNC),
        )
    )
    again = {
        name for name, times in Counter(one.response_id for one in requests).items() if times > 1
    }
    assert again
    for name in again:
        first, second = (one for one in requests if one.response_id == name)
        assert second.kept_tokens
        assert first.seed == second.seed


class AbortingEngine(SimulatedEngine):
    """Gives up on its first request of its own accord after a while, once."""

    has_given_up = False

    async def submit(self, requests: Sequence[Request]) -> None:
        await super().submit(requests)
        if not self.has_given_up:
            self.has_given_up = True
            asyncio.get_running_loop().call_later(
                0.4, lambda: asyncio.ensure_future(self.abort([requests[-1].response_id]))
            )


@pytest.mark.parametrize(("is_episode", "least"), [(False, 7), (True, 6)])
def test_what_a_lower_bound_leaves_no_room_for_begins_anew(is_episode: bool, least: int) -> None:
    kept = make_generated(token_ids=range(6), finish_reason="aborted")
    if is_episode:
        kept = as_episode(make_generated(token_ids=range(4)), [((8, 9), 4)], ending=None)
    migration = Migration()
    migration.find(kept)
    enough = make_request(max_new_tokens=least)
    assert migration.resume(enough).kept_tokens == kept.token_ids
    too_low = make_request(max_new_tokens=least - 1)
    assert migration.resume(too_low) == too_low


def test_what_an_engine_gave_up_keeps_its_tokens_when_it_is_launched_again() -> None:
    result = run_virtual(play(SYNC, [AbortingEngine("engine-0", ENGINE)]))
    assert_whole(result)
    assert result.migrated == ()


def test_a_round_called_off_in_the_middle_of_a_migration_leaves_its_engines_idle() -> None:
    async def work() -> list[int]:
        engines = make_engines(2)

        class CalledOff(RuntimeError):
            pass

        class Refusing(SimulatedEngine):
            async def submit(self, requests: Sequence[Request]) -> None:
                if any(one.kept_tokens for one in requests):
                    raise CalledOff
                await super().submit(requests)

        engines = [Refusing(engine.name, ENGINE) for engine in engines]
        with pytest.raises(CalledOff):
            await play(SYNC, engines, trainer=make_trainer(SYNC))
        return [len((await engine.stats()).progress) for engine in engines]

    assert run_virtual(work()) == [0, 0]


def test_by_devices_an_engine_is_freed_while_the_last_verdicts_are_awaited() -> None:
    result, freed = streamed(SYNC, rule="devices", max_running_per_engine=1)
    assert len(freed) == 1
    assert result.migrated == ()
    assert result.freed_s[0] < result.took_s
    assert_whole(result)


@settings(max_examples=30)
@given(
    st.sampled_from([SYNC, SHORT]),
    st.integers(1, 4),
    st.floats(0, 0.6),
    st.integers(1, 64),
    st.sampled_from(["milestones", "devices"]),
)
def test_every_round_comes_home_whatever_is_freed(
    plan: RoundPlan, num_engines: int, first: float, max_running: int, rule: str
) -> None:
    result, freed = streamed(
        plan,
        num_engines,
        rule=rule,
        first_milestone=first,
        last_milestone=0.9,
        max_running_per_engine=max_running,
    )
    assert len(result.groups) == plan.accept_prompts
    assert len(freed) < num_engines
    assert_whole(result)
    reasons: dict[str, Generated] = {one.response_id: one for one in result.generated}
    assert all(part.response_id in reasons for part in result.migrated)
