"""Running responses that move to an elastic worker in mid-round, over simulated engines on a
virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter

from elastic_worker_factories import Door, HangingEngine, WatchedEngine, joined, undisturbed_tokens
from round_factories import ENGINE, make_plan, play

from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.elastic_engines import EngineGone
from tasks.rounds.records import RoundResult
from tasks.scheduling.balancing import BalancingConfig

PLAN = make_plan(domains=("a",) * 6, accept_per_prompt=4)
# a step takes as long as it has sequences, as on a machine that computes at its limit
BUSY = ENGINE.model_copy(update={"step_s_per_sequence": 0.008})
OFF = BalancingConfig(enabled=False)


def assert_undisturbed(result: RoundResult) -> None:
    assert len({response.response_id for response in result.generated}) == 24
    for response in result.generated:
        assert response.token_ids == undisturbed_tokens(response.prompt_id, response.index)


async def with_late_elastic_worker(
    balancing: BalancingConfig, max_running: int | None = None
) -> tuple[RoundResult, WatchedEngine, float]:
    """One engine has all responses when an elastic worker joins."""
    own, elastic_worker, door = (
        WatchedEngine("engine-0", BUSY),
        WatchedEngine("late.g1", BUSY),
        Door(),
    )
    door.tell_at(3.0, joined(elastic_worker, max_running=max_running))
    result = await play(PLAN, [own], elastic_workers=door, balancing=balancing)
    assert_undisturbed(result)
    return result, elastic_worker, asyncio.get_running_loop().time()


def test_an_elastic_worker_that_joins_late_takes_running_responses_and_the_round_ends_earlier() -> (
    None
):
    result, elastic_worker, ended_s = run_virtual(with_late_elastic_worker(BalancingConfig()))
    assert len(elastic_worker.submitted) == len(result.migrated) > 5
    assert all(request.kept_tokens for request in elastic_worker.submitted)
    _, idle, alone_s = run_virtual(with_late_elastic_worker(OFF))
    assert idle.submitted == []
    assert ended_s - 3.0 < 0.75 * (alone_s - 3.0)


def test_an_elastic_worker_takes_no_more_running_responses_than_it_has_room_for() -> None:
    _, elastic_worker, _ = run_virtual(with_late_elastic_worker(BalancingConfig(), max_running=2))
    assert elastic_worker.max_running == 2


def test_the_same_late_elastic_worker_takes_the_same_responses() -> None:
    first, second = (run_virtual(with_late_elastic_worker(BalancingConfig())) for _ in range(2))
    assert first[0] == second[0]


def test_no_response_is_on_an_engine_twice() -> None:
    """Elastic workers of every speed join one after the other, and looks are frequent."""

    async def work() -> None:
        door = Door()
        paces = (0.1, 3.0, 1.0, 0.3)
        elastic_workers = [
            WatchedEngine(
                f"elastic-worker-{place}.g1", BUSY.model_copy(update={"step_s": 0.008 * pace})
            )
            for place, pace in enumerate(paces)
        ]
        for place, elastic_worker in enumerate(elastic_workers):
            door.tell_at(1.0 + place, joined(elastic_worker))
        own = WatchedEngine("engine-0", BUSY)
        restless = BalancingConfig(interval_s=0.1, threshold=0.0, keep_running=0)
        result = await play(PLAN, [own], elastic_workers=door, balancing=restless)
        assert_undisturbed(result)
        assert len(result.migrated) > 10
        for engine in (own, *elastic_workers):
            asked = Counter(request.response_id for request in engine.submitted)
            assert set(asked.values()) <= {1}

    run_virtual(work())


def test_an_elastic_worker_that_does_not_answer_a_look_holds_nothing_up() -> None:
    async def work() -> None:
        door = Door()
        silent, quick = HangingEngine("silent.g1", BUSY), WatchedEngine("quick.g1", BUSY)
        silent.hangs = True
        door.tell_at(1.0, joined(silent))
        door.tell_at(2.0, joined(quick))
        door.tell_at(20.0, EngineGone(name="silent.g1", reason="its lease is over"))
        result = await play(PLAN, [WatchedEngine("engine-0", BUSY)], elastic_workers=door)
        assert_undisturbed(result)
        assert quick.submitted

    run_virtual(work())


def test_engines_with_a_limit_leave_the_rest_to_whoever_joins() -> None:
    """Nothing has to move then."""

    async def work() -> None:
        own, elastic_worker, door = WatchedEngine("engine-0"), WatchedEngine("late.g1"), Door()
        door.tell_at(0.5, joined(elastic_worker))
        limited = BalancingConfig(max_running=4, enabled=False)
        result = await play(PLAN, [own], elastic_workers=door, balancing=limited)
        assert_undisturbed(result)
        assert own.max_running == 4
        assert len(elastic_worker.submitted) > 12
        assert result.migrated == ()

    run_virtual(work())
