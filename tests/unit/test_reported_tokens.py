"""Rounds whose engines tell what they generate: an engine that is lost costs an interval of each of
its responses at most, and the round brings home what an undisturbed one does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from round_factories import make_plan

from artifacts.attempt_log import TokenLog, read_tokens
from artifacts.new_tokens import News, PartialResponse, split_news
from artifacts.records import Request, VersionSpan
from research.spot.simulated_rounds import load_version, round_inputs
from tasks.engines.base import EngineLost
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.rounds.driver import drive_round
from tasks.rounds.figures import ledger_of
from tasks.rounds.records import RoundResult
from tasks.scheduling.wait_for_all import WaitForAll

PLAN = replace(make_plan(domains=("a",) * 6, accept_per_prompt=4), step=4)
NUM_RESPONSES = 24
BOUND = 600
STEP_S = 0.01


class Counting:
    """Writes numbers that tell the response and the place."""

    def __init__(self, lengths: LengthModel) -> None:
        self._lengths = lengths

    def num_tokens(self, request: Request, noise: int) -> int:
        return self._lengths.tokens(request.prompt_id, request.index, noise)

    def tokens(self, request: Request, noise: int, num_tokens: int) -> tuple[int, ...]:
        return tuple(noise % 1000 * 1000 + place for place in range(num_tokens))

    def text(self, tokens: tuple[int, ...]) -> str:
        return str(tokens)


class Watched(SimulatedEngine):
    """Remembers what it was asked, and how far that was when it died."""

    def __init__(self, name: str, report_tokens: int, max_batch: int = 256) -> None:
        config = SimulatedEngineConfig(
            report_tokens=report_tokens,
            max_batch=max_batch,
            step_s=STEP_S,
            step_s_per_sequence=0.0,
            prefill_s_per_token=0.0,
            lengths=LengthModel(median_tokens=150, sigma=0.8),
        )
        super().__init__(name, config, version=3, writer=Counting(config.lengths))
        self.asked: list[Request] = []
        self.had: dict[str, int] = {}  # tokens of what ran when it died

    async def submit(self, requests: Sequence[Request]) -> None:
        self.asked += requests
        await super().submit(requests)

    def fail(self) -> None:
        self._advance()
        for sequence in self._batch.sequences:
            self.had[sequence.request.response_id] = sequence.whole_tokens
        super().fail()


async def play(engines: Sequence[SimulatedEngine], **given: object) -> RoundResult:
    await load_version(engines, 3)
    inputs = round_inputs(PLAN, WaitForAll(PLAN), engines, max_response_tokens=BOUND)
    return await drive_round(replace(inputs, **given))  # type: ignore[arg-type]


def trained(result: RoundResult) -> dict[str, tuple[object, ...]]:
    return {
        each.response_id: (each.token_ids, each.logprobs, each.versions, each.finish_reason)
        for each in result.generated
    }


def undisturbed() -> dict[str, tuple[object, ...]]:
    return trained(run_virtual(play([Watched("engine-0", 0)])))


WHOLE = undisturbed()


@settings(max_examples=25, deadline=None)
@given(interval=st.sampled_from([1, 7, 32]), lost_s=st.floats(0.001, 4.0))
def test_a_lost_engine_costs_an_interval_of_each_response(interval: int, lost_s: float) -> None:
    async def work() -> tuple[RoundResult, list[Watched]]:
        engines = [Watched(f"engine-{number}", interval) for number in range(2)]

        async def kill() -> None:
            await asyncio.sleep(lost_s)
            engines[0].fail()

        killing = asyncio.create_task(kill())
        result = await play(engines, report_tokens=interval)
        killing.cancel()
        return result, engines

    result, (lost, other) = run_virtual(work())
    assert trained(result) == WHOLE
    assert result.num_interrupted == len(result.lost_tokens_bounds) == len(lost.had)
    again = {each.response_id: each for each in other.asked if each.response_id in lost.had}
    assert {*again} == {*lost.had}
    again_from = {name: len(again[name].kept_tokens) for name in lost.had}
    # what really was lost, as the dead engine knew it
    lost_tokens = [had - again_from[name] for name, had in lost.had.items()]
    left = [BOUND - kept for kept in again_from.values()]
    assert sorted(result.lost_tokens_bounds) == sorted(min(interval, most) for most in left)
    for lost_of_one, most in zip(lost_tokens, left, strict=True):
        assert lost_of_one <= min(interval, most)
    assert sum(lost_tokens) <= sum(result.lost_tokens_bounds)
    ledger = ledger_of(result, is_evaluation=False)
    assert sum(ledger.values()) == sum(len(each.token_ids) for each in result.generated)
    assert len(result.migrated) == sum(kept > 0 for kept in again_from.values())


@pytest.mark.parametrize("report_tokens", [0, 16])
def test_telling_changes_nothing_about_an_undisturbed_round(report_tokens: int) -> None:
    engines = [Watched(f"engine-{number}", report_tokens, max_batch=4) for number in range(2)]

    async def work() -> RoundResult:
        return await play(engines, report_tokens=report_tokens)

    result = run_virtual(work())
    assert trained(result) == WHOLE
    assert (result.num_interrupted, result.lost_tokens_bounds, result.migrated) == (0, (), ())


def test_without_reports_a_lost_response_begins_again_and_nobody_knows_what_was_lost() -> None:
    engines = [Watched(f"engine-{number}", 0) for number in range(2)]

    async def work() -> RoundResult:
        asyncio.get_running_loop().call_later(1.0, engines[0].fail)
        return await play(engines)

    result = run_virtual(work())
    assert trained(result) == WHOLE
    assert result.num_interrupted == len(engines[0].had) > 0
    assert result.lost_tokens_bounds == ()
    assert not any(request.kept_tokens for request in engines[1].asked)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lost_s=st.floats(0.2, 3.0))
def test_the_next_attempt_goes_on_from_what_the_last_one_was_told(
    lost_s: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The last engine is lost, and with it the round; what had finished is recorded nowhere."""
    folder = tmp_path_factory.mktemp("tokens")
    log = TokenLog(folder)

    async def begun() -> dict[str, object]:
        return read_tokens(folder, lambda attempt: True)

    async def work() -> tuple[RoundResult, Watched, Watched]:
        first, second = Watched("engine-0", 8), Watched("engine-0", 8)
        asyncio.get_running_loop().call_later(lost_s, first.fail)
        with pytest.raises(EngineLost):
            await play([first], report_tokens=8, on_new_tokens=log.write, begun=begun, attempt=4001)
        return (
            await play(
                [second], report_tokens=8, on_new_tokens=log.write, begun=begun, attempt=4002
            ),
            first,
            second,
        )

    result, first, second = run_virtual(work())
    log.close()
    assert trained(result) == WHOLE
    asked = {request.response_id: len(request.kept_tokens) for request in second.asked}
    assert len(asked) == NUM_RESPONSES
    for name, had in first.had.items():
        assert 0 <= had - asked[name] <= 8
    found = read_tokens(folder, lambda attempt: attempt == 4002)
    for name, known in found.items():
        assert known.token_ids == WHOLE[name][0][: len(known.token_ids)]  # type: ignore[index]


def test_what_is_told_of_other_weights_is_not_gone_on_with() -> None:
    async def half() -> list[News]:
        engine = Watched("engine-0", 8)
        await load_version([engine], 2)
        inputs = round_inputs(PLAN, WaitForAll(PLAN), [engine], max_response_tokens=BOUND)
        await engine.submit([inputs.request("p0", 0)])
        return [new for _ in range(5) for new in await engine.collect(10.0)]

    _, told = split_news(run_virtual(half()))
    assert {span.version for new in told for span in new.versions} == {2}

    async def work() -> tuple[RoundResult, Watched]:
        engine = Watched("engine-0", 8)

        async def begun() -> dict[str, object]:
            return {"p0:0": PartialResponse(told[0]).generated()}

        return await play([engine], report_tokens=8, begun=begun), engine

    result, engine = run_virtual(work())
    assert trained(result) == WHOLE
    assert not any(request.kept_tokens for request in engine.asked)


def test_an_engine_that_tells_of_other_weights_counts_as_lost() -> None:
    async def work() -> RoundResult:
        engines = [Watched(f"engine-{number}", 8) for number in range(2)]
        await load_version(engines, 3)
        asyncio.get_running_loop().call_later(0.5, setattr, engines[0], "_version", 9)
        inputs = round_inputs(PLAN, WaitForAll(PLAN), engines, max_response_tokens=BOUND)
        return await drive_round(replace(inputs, report_tokens=8))

    result = run_virtual(work())
    assert {each.versions for each in result.generated} <= {
        (VersionSpan(version=3, num_tokens=len(each.token_ids)),) for each in result.generated
    }
    assert len(result.generated) == NUM_RESPONSES
    assert result.stale_tokens > 0


class Deaf(Watched):
    """Takes one submission; from then on it does not answer another, and generates all the same."""

    async def submit(self, requests: Sequence[Request]) -> None:
        if self.asked:
            raise EngineLost(f"{self.name} does not answer")
        await super().submit(requests)


def test_what_an_engine_tells_after_it_was_given_up_is_stale_and_nothing_counts_twice() -> None:
    async def work() -> tuple[RoundResult, float]:
        engines: list[Watched] = [Watched("engine-0", 8), Deaf("engine-1", 8)]
        engines.append(Watched("engine-2", 8))
        asyncio.get_running_loop().call_later(0.73, engines[0].fail)
        result = await play(engines, report_tokens=8)
        return result, sum(engine._batch.tokens_generated for engine in engines)

    result, num_generated = run_virtual(work())
    assert trained(result) == WHOLE
    assert result.stale_tokens > 0
    ledger = ledger_of(result, is_evaluation=False)
    assert sum(ledger.values()) <= round(num_generated)
