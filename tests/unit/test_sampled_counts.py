"""Invariant 14 in rounds and figures: what was given within an episode is counted nowhere, except
where a context has to fit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from record_factories import make_generated, make_request
from round_factories import ENGINE, make_plan, make_prompts, play
from turn_factories import TalkingEngine, as_episode, turn

from artifacts.episodes import Episode
from artifacts.records import (
    Fate,
    Generated,
    Group,
    Prompt,
    Response,
    VersionSpan,
    WeightsRef,
    num_computed,
    of_sampled,
    sampled_versions,
)
from artifacts.reports.answers import questions_of
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.metrics.step_metrics import length_figures
from tasks.rounds.engine_pool import EnginePool
from tasks.rounds.figures import lengths_of_decided
from tasks.rounds.records import RoundResult
from tasks.rounds.report import close_round, held_tokens_before, round_report
from tasks.scheduling.ledger import account_tokens
from tasks.scheduling.staleness import lag_of, staleness_figures

PLAN = replace(make_plan(domains=("a",) * 4, accept_per_prompt=4), step=4)


def said(*versions: tuple[int, int]) -> Generated:
    """A response of one turn, its spans as (version, tokens)."""
    num_tokens = sum(count for _, count in versions)
    return make_generated(
        prompt_id="p0",
        token_ids=tuple(range(num_tokens)),
        logprobs=tuple(-0.1 * place for place in range(num_tokens)),
        versions=tuple(
            VersionSpan(version=version, num_tokens=count) for version, count in versions
        ),
    )


def test_what_sampled_tokens_have() -> None:
    """An observation that only older weights read, before tokens of newer ones, and one that
    nothing followed."""
    generated = as_episode(
        said((2, 3), (3, 2)), (((9, 9), 3), ((9,), 0), ((9, 9), 2), ((9,) * 5, 0))
    )
    assert (generated.num_sampled, num_computed(generated)) == (5, 10)
    assert of_sampled(generated, generated.token_ids) == (0, 1, 2, 3, 4)
    assert of_sampled(generated, generated.logprobs) == said((2, 3), (3, 2)).logprobs
    assert sampled_versions(generated) == said((2, 3), (3, 2)).versions
    silent = as_episode(said(), (((9,), 0),))
    assert (silent.num_sampled, num_computed(silent), sampled_versions(silent)) == (0, 0, ())
    plain = said((2, 3))
    assert sampled_versions(plain) is plain.versions
    assert num_computed(plain) == 3


def test_given_tokens_have_no_lag() -> None:
    """Version 1 read an observation and sampled nothing; given tokens count in no other figure."""
    generated = as_episode(said((2, 3), (3, 2)), (((9,) * 4, 3), ((9,) * 6, 2)))
    stale = replace(
        generated, versions=(VersionSpan(version=1, num_tokens=4), *generated.versions[4:])
    )
    prompt = make_prompts(PLAN)["p0"]
    figures = [
        staleness_figures(
            4,
            [Group(prompt=prompt, responses=(Response(generated=each, score=None),))],
            recomputes=True,
        )
        for each in (said((2, 3), (3, 2)), stale)
    ]
    assert lag_of(stale, 4) == 1
    assert figures[0] == figures[1]
    assert figures[1]["lag/recomputed_tokens"] == 3
    assert lag_of(as_episode(said(), (((9,), 0),)), 4) is None
    read_earlier = replace(
        as_episode(said((3, 5)), (((9,) * 4, 5),)),
        versions=(VersionSpan(version=2, num_tokens=4), VersionSpan(version=3, num_tokens=5)),
    )
    group = Group(prompt=prompt, responses=(Response(generated=read_earlier, score=None),))
    assert not any(staleness_figures(4, [group], recomputes=True).values())


def test_rounds_count_what_their_engines_sampled(tmp_path: Path) -> None:
    """The engine counts for itself; a left-over episode is stale by its sampled tokens, too."""

    async def played() -> tuple[RoundResult, int, int]:
        engine = TalkingEngine("engine-0", ENGINE)
        await engine.load_weights(WeightsRef(version=3, path="", digest=""), probes=())
        left_over = make_request(
            prompt_id="p0", prompt_tokens=(1,), max_new_tokens=30, attempt=3001
        )
        await engine.submit([left_over])
        await asyncio.sleep(100)
        before = (await engine.stats()).tokens_generated
        result = await play(PLAN, [engine], attempt=4001)
        return result, before, (await engine.stats()).tokens_generated

    result, before, after = run_virtual(played())
    assert any(len(each.token_ids) > each.num_sampled for each in result.generated)
    assert result.stale_tokens == before
    report = round_report(result, (), {}, is_evaluation=False)
    assert report.tokens[Fate.TRAINED] == after - before
    assert sum(report.tokens.values()) == after
    assert sum(report.lengths) == report.num_decided_tokens == after - before
    assert report.acceptance["acceptance/accepted_tokens_mean"] == (after - before) / 16
    assert length_figures(report, result.groups)["length/trained_tokens"] == after - before
    assert sorted(report.lengths) == sorted(lengths_of_decided(result))
    # what an engine has to hold is another matter
    held = [len(each.token_ids) for each in result.generated]
    store = Store.open(str(tmp_path))
    close_round(store, 4, report)
    assert list(held_tokens_before(store, 5, 1)) == held
    assert sum(held) > sum(report.lengths)


def test_recorded_episodes_of_another_round_are_stale_by_their_sampled_tokens() -> None:
    async def again() -> RoundResult:
        engine = TalkingEngine("engine-0", ENGINE)
        await engine.load_weights(WeightsRef(version=3, path="", digest=""), probes=())
        old = as_episode(said((2, 5)), (((9,) * 30, 2), ((9,) * 30, 3)))
        return await play(PLAN, [engine], recorded=[Response(generated=old, score=None)])

    assert run_virtual(again()).stale_tokens == 5


def test_observations_that_older_weights_read_make_no_response_stale() -> None:
    """What was sampled is of the round's weights."""

    async def again() -> RoundResult:
        engine = TalkingEngine("engine-0", ENGINE)
        await engine.load_weights(WeightsRef(version=3, path="", digest=""), probes=())
        new = as_episode(said((3, 5)), (((9,) * 4, 5),))
        spans = (VersionSpan(version=2, num_tokens=4), VersionSpan(version=3, num_tokens=5))
        recorded = Response(generated=replace(new, versions=spans), score=None)
        return await play(PLAN, [engine], recorded=[recorded])

    result = run_virtual(again())
    assert result.stale_tokens == 0
    assert any(each.num_sampled == 5 and len(each.token_ids) == 9 for each in result.generated)


def test_an_engine_sampled_what_was_not_kept_of_an_episode() -> None:
    """Three of five sampled tokens came from another engine, in two turns with four given ones."""
    engine = TalkingEngine("engine-0", ENGINE)
    pool = EnginePool([engine])
    generated = as_episode(said((3, 5)), (((9,), 2), ((9,) * 3, 1), ((9,), 2)))
    request = make_request(
        prompt_id="p0",
        prompt_tokens=(1,),
        max_new_tokens=30,
        kept_tokens=generated.token_ids[:7],
        kept_logprobs=generated.logprobs[:7],
        kept_versions=(VersionSpan(version=3, num_tokens=7),),
        kept_episode=Episode(turns=(turn(1, 2), turn(3, 1)), ending=None),
    )
    assert request.num_kept == 3
    run_virtual(pool.submit([request]))
    assert pool.num_new("engine-0", generated) == 2
    again = replace(generated.episode, num_forgotten=3) if generated.episode else None
    assert pool.num_new("engine-0", replace(generated, episode=again)) == 5
    assert replace(request, kept_episode=None).num_kept == 7


def test_held_out_answers_are_as_long_as_what_was_sampled() -> None:
    generated = as_episode(said((3, 5)), (((9,) * 7, 5),))
    row = ResponseRow(
        step=0,
        kind="evaluate",
        prompt=Prompt(prompt_id="p0", domain="a", token_ids=(1,), gold="", text=""),
        response=Response(generated=generated, score=None),
    )
    (question,) = questions_of([row], [])
    assert question.before[0].num_tokens == 5
    assert account_tokens([generated], is_evaluation=True)[Fate.EVALUATED] == 5


@pytest.mark.parametrize("kept", ["held_tokens", "lengths"])
def test_reports_of_earlier_runs_tell_what_was_held_by_the_lengths(
    tmp_path: Path, kept: str
) -> None:
    store = Store.open(str(tmp_path))
    store.write("rounds/00001.json", f'{{"{kept}": [3, 5]}}'.encode())
    assert held_tokens_before(store, 2, 8) == (3, 5)
