"""Rounds of episodes whose engines are lost on the way: they go on from what was written down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from episode_factories import TOKENIZER, LocalHosts, Stage, make_stage
from plan_factories import CONTEXT, make_report, make_step_plan
from round_factories import make_plan

from artifacts.attempt_log import TurnLog, read_turns
from artifacts.episodes import Episode
from artifacts.new_tokens import NewTokens
from artifacts.records import Fate, Generated, Prompt, Response, VersionSpan
from artifacts.store import Store
from research.spot.simulated_rounds import round_inputs
from tasks.engines.base import EngineLost
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.environments.games.guess import GuessConfig
from tasks.rounds.driver import drive_round
from tasks.rounds.figures import ledger_of
from tasks.rounds.records import InFlight, RoundResult
from tasks.rounds.report import close_round
from tasks.run.partial_responses import (
    drop_partial,
    partial_responses,
    turns_folder,
    written_tokens,
)
from tasks.run.run_context import RunContext, StepPlan
from tasks.scheduling.staleness import Admission
from tasks.scheduling.wait_for_all import WaitForAll

PLAN = replace(make_plan(domains=("guess",) * 3, accept_per_prompt=4), step=4)
NUM_EPISODES = 12
PROMPTS = {
    ref.prompt_id: Prompt(
        prompt_id=ref.prompt_id,
        domain="guess",
        token_ids=(int(TOKENIZER.bos_token_id),),
        gold=str(seed),
        text="",
        episode_seed=seed,
    )
    for seed, ref in enumerate(PLAN.prompts)
}
Begun = Callable[[], Mapping[str, Generated]]


def stage_of(folder: Path, name: str) -> Stage:
    return make_stage(LocalHosts(restores=True), log=TurnLog(folder, name), name=name)


async def play(
    stages: list[Stage], begun: Begun, recorded: tuple[Response, ...] = ()
) -> RoundResult:
    async def read() -> Mapping[str, Generated]:
        return begun()

    return await drive_round(
        round_inputs(
            PLAN,
            WaitForAll(PLAN),
            [stage.replica for stage in stages],
            max_response_tokens=100,
            prompts=PROMPTS,
            begun=read,
            recorded=recorded,
        )
    )


def episode_of(generated: Generated) -> Episode:
    assert generated.episode is not None
    return generated.episode


def same(one: RoundResult, other: RoundResult) -> bool:
    """Whether two rounds trained the same tokens."""
    return {each.response_id: (each.token_ids, each.logprobs) for each in one.generated} == {
        each.response_id: (each.token_ids, each.logprobs) for each in other.generated
    }


def undisturbed(folder: Path) -> RoundResult:
    async def work() -> RoundResult:
        return await play([stage_of(folder / "whole", "engine-0")], dict)

    return run_virtual(work())


def check_gone_on(result: RoundResult, found: Mapping[str, Generated], into: str) -> None:
    """Each response once; those of which turns were written down have them, as they were played."""
    assert len(result.generated) == NUM_EPISODES
    assert found
    for generated in result.generated:
        known = found.get(generated.response_id)
        if known is not None:
            turns = episode_of(known).turns
            assert turns
            assert episode_of(generated).turns[: len(turns)] == turns
        is_begun = known is not None and episode_of(known).ending is None
        assert episode_of(generated).num_resumed == is_begun
        assert generated.engine == into or not is_begun
    ledger = ledger_of(result, is_evaluation=False)
    assert ledger[Fate.TRAINED] == sum(each.num_sampled for each in result.generated)
    assert sum(ledger.values()) == ledger[Fate.TRAINED]


@pytest.mark.parametrize("lost_s", [0.07, 0.21, 0.34])
def test_what_a_lost_engine_played_goes_on_in_another(lost_s: float, tmp_path: Path) -> None:
    folder = tmp_path / "turns"
    found: dict[str, Generated] = {}

    async def work() -> RoundResult:
        stages = [stage_of(folder, f"engine-{number}") for number in range(2)]

        async def fail() -> None:
            await asyncio.sleep(lost_s)
            stages[0].inner.fail()
            everything = read_turns(folder, lambda attempt: True)
            found.update(
                (name, known) for name, known in everything.items() if known.engine == "engine-0"
            )

        failing = asyncio.create_task(fail())
        result = await play(stages, lambda: read_turns(folder, lambda attempt: True))
        await failing
        return result

    result = run_virtual(work())
    assert same(result, undisturbed(tmp_path))
    if lost_s > 0.2:
        check_gone_on(result, found, into="engine-1")


def test_the_next_attempt_goes_on_with_what_the_last_one_began(tmp_path: Path) -> None:
    """The last engine is lost, and with it the round."""
    folder = tmp_path / "turns"

    def begun() -> Mapping[str, Generated]:
        return read_turns(folder, lambda attempt: True)

    async def work() -> tuple[Mapping[str, Generated], RoundResult]:
        stage = stage_of(folder, "engine-0")
        asyncio.get_running_loop().call_later(0.6, stage.inner.fail)
        with pytest.raises(EngineLost):
            await play([stage], begun)
        await asyncio.sleep(1.0)
        found = begun()
        return found, await play([stage_of(folder, "engine-0")], begun)

    found, result = run_virtual(work())
    assert any(episode_of(known).ending for known in found.values())
    check_gone_on(result, found, into="engine-0")
    assert same(result, undisturbed(tmp_path))


def test_what_is_recorded_or_of_other_weights_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "turns"
    whole = undisturbed(tmp_path)
    recorded = tuple(
        Response(generated=generated, score=None)
        for generated in whole.generated
        if generated.prompt_id == "p0"
    )
    begun = read_turns(tmp_path / "whole", lambda attempt: True)
    older = {
        name: replace(known, versions=tuple(replace(span, version=2) for span in known.versions))
        for name, known in begun.items()
        if known.prompt_id == "p1"
    }
    assert older

    async def work() -> tuple[RoundResult, list[str]]:
        stage = stage_of(folder, "engine-0")
        known = {name: each for name, each in begun.items() if each.prompt_id == "p0"} | older
        result = await play([stage], lambda: known, recorded)
        return result, [request.prompt_id for request in stage.inner.asked]

    result, asked = run_virtual(work())
    assert {*asked} == {"p1", "p2"}
    assert {span.version for each in result.generated for span in each.versions} == {3}
    assert all(episode_of(each).num_resumed == 0 for each in result.generated)
    assert same(result, whole)


# --- of which step they are --------------------------------------------------------------------


def run_in(folder: Path) -> RunContext:
    return replace(
        CONTEXT, artifact_root=str(folder), environments={"guess": GuessConfig(style="terse")}
    )


def step_plan(
    run: RunContext, step: int, kind: str = "sync", *, overlaps: bool = False
) -> StepPlan:
    plan = replace(make_step_plan(step, kind), run=run)
    admission = (
        Admission(async_ratio=1.0, prompts_per_step=1, num_steps=9, num_before=0, version=step - 1)
        if overlaps
        else None
    )
    return replace(plan, round=replace(plan.round, admission=admission))


def written(run: RunContext, whole: Generated, *attempts: int) -> None:
    """A response of each of these attempts, its index the attempt."""
    folder = turns_folder(run)
    assert folder is not None
    log = TurnLog(folder, "engine-0")
    for attempt in attempts:
        log.write(replace(whole, index=attempt, attempt=attempt), 0)
    log.close()


def read_begun(plan: StepPlan) -> Mapping[str, Generated]:
    async def read() -> Mapping[str, Generated]:
        return await partial_responses(plan)

    return asyncio.run(read())


def found_of(plan: StepPlan) -> set[int]:
    return {known.attempt for known in read_begun(plan).values()}


def test_what_was_begun_is_read_beside_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long logs hold up no engine that still answers."""
    read_in: list[threading.Thread] = []

    def slow(folder: Path, is_meant: Callable[[int], bool]) -> Mapping[str, Generated]:
        read_in.append(threading.current_thread())
        return {}

    monkeypatch.setattr("tasks.run.partial_responses.read_turns", slow)
    assert read_begun(step_plan(run_in(tmp_path / "runs"), 7)) == {}
    assert read_in
    assert threading.main_thread() not in read_in


def test_a_step_finds_its_own_episodes_until_it_is_committed(tmp_path: Path) -> None:
    run, whole = run_in(tmp_path / "runs"), undisturbed(tmp_path).generated[0]
    written(run, whole, 6001, 7001, 7002, 7501, 8001)
    assert found_of(step_plan(run, 7)) == {7001, 7002}
    assert found_of(step_plan(run, 7, "evaluate")) == {7501}
    drop_partial(step_plan(run, 7))
    assert found_of(step_plan(run, 6)) == found_of(step_plan(run, 7)) == set()
    assert found_of(step_plan(run, 8)) == {8001}
    assert found_of(step_plan(run, 7, "evaluate")) == {7501}
    drop_partial(step_plan(run, 7, "evaluate"))
    assert found_of(step_plan(run, 7, "evaluate")) == set()


def test_what_a_round_left_to_the_next_one_is_that_ones(tmp_path: Path) -> None:
    run, whole = run_in(tmp_path / "runs"), undisturbed(tmp_path).generated[0]
    written(run, whole, 6001, 7001, 8001)
    left = InFlight(
        engine="engine-0", prompt_id=whole.prompt_id, index=6001, attempt=6001, num_kept=0
    )
    report = replace(make_report(()).rollout, in_flight=(left,))
    close_round(run.open_store(), 7, report)
    later = step_plan(run, 8, overlaps=True)
    assert found_of(later) == {6001, 8001}
    drop_partial(step_plan(run, 7, overlaps=True))
    assert found_of(later) == {6001, 8001}
    drop_partial(later)
    assert found_of(later) == set()


def test_nothing_is_written_without_episodes_or_a_folder(tmp_path: Path) -> None:
    assert turns_folder(replace(CONTEXT, artifact_root=str(tmp_path))) is None
    run = replace(run_in(tmp_path), artifact_root="memory://begun-episodes")
    assert turns_folder(run) is None
    assert read_begun(step_plan(run, 1)) == {}
    drop_partial(step_plan(run, 1))
    assert Store.open("memory://begun-episodes").list("") == []


def test_tokens_that_engines_told_are_found_and_dropped_as_turns_are(tmp_path: Path) -> None:
    telling = CONTEXT.engine.model_copy(update={"report_tokens": 8})
    run = replace(CONTEXT, artifact_root=str(tmp_path), engine=telling)
    with written_tokens(run) as write:
        write([told_in(attempt) for attempt in (6001, 7001, 7002, 7501, 8001)])
    assert found_of(step_plan(run, 7)) == {7001, 7002}
    assert found_of(step_plan(run, 7, "evaluate")) == {7501}
    drop_partial(step_plan(run, 7))
    assert found_of(step_plan(run, 6)) == found_of(step_plan(run, 7)) == set()
    assert found_of(step_plan(run, 8)) == {8001}


def test_tokens_are_written_nowhere_without_reports_or_a_folder(tmp_path: Path) -> None:
    silent = replace(CONTEXT, artifact_root=str(tmp_path))
    telling = CONTEXT.engine.model_copy(update={"report_tokens": 8})
    for run in (silent, replace(CONTEXT, artifact_root="memory://told", engine=telling)):
        with written_tokens(run) as write:
            write([told_in(7001)])
        assert read_begun(step_plan(run, 7)) == {}
    assert not list(tmp_path.iterdir())


def told_in(attempt: int) -> NewTokens:
    """Of a response of this attempt, its index the attempt."""
    return NewTokens(
        prompt_id="0/1",
        index=attempt,
        attempt=attempt,
        engine="engine-0",
        num_before=0,
        token_ids=(5, 6),
        logprobs=(-0.5, -0.25),
        versions=(VersionSpan(version=attempt // 1000 - 1, num_tokens=2),),
        submitted_s=0.0,
        first_token_s=1.0,
        reported_s=2.0,
    )
