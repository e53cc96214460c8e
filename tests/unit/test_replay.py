"""Recorded responses come again as they were; others are like their siblings; cut ones go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from record_factories import make_generated

from artifacts.commit import RunManifest, StepCommit, commit_step, write_manifest
from artifacts.journal import Journal
from artifacts.records import (
    Fate,
    FinishReason,
    Generated,
    Outcome,
    Prompt,
    Response,
    Score,
    WeightsRef,
)
from artifacts.store import Store
from artifacts.tables import ResponseRow
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.simulation.recorded import (
    RecordedResponse,
    RecordedRun,
    RecordedStep,
    mean_excess,
    read_run,
    recorded_work,
    resampled,
)

CONFIG = {"sampling": {"max_response_tokens": 100}, "learner": {}}


def row(
    prompt: int, index: int, num_tokens: int, reason: FinishReason = "stop", reward: float = 1.0
) -> ResponseRow:
    name = f"0/{prompt}"
    generated = make_generated(
        token_ids=(1,) * num_tokens,
        prompt_id=name,
        index=index,
        finish_reason=reason,
        finished_s=10.0,
    )
    score = Score(
        prompt_id=name,
        index=index,
        reward=reward,
        outcome=Outcome.OK if reward else Outcome.WRONG,
        detail="",
        scorer="math",
        started_s=10.1,
        finished_s=10.0 + prompt / 100,
    )
    return ResponseRow(
        step=1,
        kind="sync",
        prompt=Prompt(prompt_id=name, domain="add", token_ids=(1,) * prompt, gold="", text=""),
        response=Response(generated=generated, score=None if reason == "aborted" else score),
        fate=Fate.TRAINED,
    )


# asked in this order: 7, 5, 9
ROWS = (
    row(7, 0, 20),
    row(7, 1, 30, reward=0.0),
    row(5, 0, 40),
    row(5, 1, 100, "length"),
    row(9, 0, 50, "aborted"),
)


def committed() -> StepCommit:
    return StepCommit(
        step=1,
        kind="sync",
        weights=WeightsRef(version=1, path="", digest=""),
        queue={},
        seeds={},
        counters={},
        metrics={},
        timings={"started_s": 0.0},
        checkpoint=None,
    )


def recorded() -> RecordedRun:
    return RecordedRun(config=CONFIG, steps=(RecordedStep(commit=committed(), rows=ROWS),))


def test_recorded_responses_come_again_in_the_order_in_which_prompts_were_asked() -> None:
    work = recorded_work(recorded())
    writer = work.writer(step=3, seed=0)
    assert [work.prompt_tokens(f"0/{place}") for place in range(3)] == [7, 5, 9]
    assert [writer.tokens("0/0", index, noise=8) for index in range(2)] == [20, 30]
    assert writer.tokens("0/1", 0) == 40
    assert work.reward(0, "0/0", 0, is_cut=False) == 1.0
    assert work.reward(0, "0/0", 1, is_cut=False) == 0.0
    assert work.domains(4) == ("add",) * 4


def test_other_indices_and_seeds_are_drawn_from_the_prompts_own_responses() -> None:
    work = recorded_work(recorded())
    writer = work.writer(1, seed=0)
    others = {writer.tokens("0/0", index) for index in range(2, 40)}
    assert others == {20, 30}
    reseeded = [work.writer(1, seed=seed).tokens("0/0", 0) for seed in range(1, 40)]
    assert set(reseeded) == {20, 30}
    assert writer.tokens("0/0", 17, noise=3) == work.writer(9, seed=0).tokens("0/0", 17, noise=3)


def test_what_is_drawn_has_the_length_and_the_verdict_of_the_same_response() -> None:
    work = recorded_work(recorded())
    drawn = {
        (
            work.writer(1, seed).tokens("0/0", index, noise=5),
            work.reward(seed, "0/0", index, is_cut=False),
        )
        for seed in range(1, 20)
        for index in range(3)
    }
    assert drawn == {(20, 1.0), (30, 0.0)}


def test_prompts_beyond_the_recorded_ones_are_any_of_them() -> None:
    work = recorded_work(recorded())
    further = [work.prompt_tokens(f"0/{place}") for place in range(3, 300)]
    assert set(further) == {5, 7, 9}
    assert further.count(7) > 60


def test_cut_responses_go_on_where_the_bound_lets_them() -> None:
    same, longer = recorded_work(recorded()), recorded_work(recorded(), longest_tokens=10_000)
    assert same.writer(1, 0).tokens("0/1", 1) == 101
    assert longer.writer(1, 0).tokens("0/1", 1) > 101
    goes_on = [longer.writer(1, 0).tokens("0/2", index) for index in range(1, 2000)]
    assert min(goes_on) > 50
    assert np.mean(goes_on) - 51 == pytest.approx(longer.mean_excess, rel=0.1)
    assert recorded_work(recorded(), longest_tokens=25).writer(1, 0).tokens("0/1", 0) == 26


def test_the_mean_excess_is_that_of_an_exponential_law_of_which_half_is_cut() -> None:
    draws = np.random.default_rng(0)
    lengths = draws.exponential(200.0, 20_000)
    cut_at = draws.exponential(200.0, 20_000)
    responses = [
        RecordedResponse(
            name="",
            num_tokens=round(float(min(length, bound))),
            is_cut=bool(bound < length),
            reward=1.0,
            scored_s=None,
        )
        for length, bound in zip(lengths, cut_at, strict=True)
    ]
    assert mean_excess(responses) == pytest.approx(200.0, rel=0.03)


def test_the_mean_excess_is_known_where_most_responses_are_cut_at_the_bound() -> None:
    lengths = np.random.default_rng(4).exponential(200.0, 20_000)
    responses = [
        RecordedResponse(
            name="",
            num_tokens=min(100, round(length) + 1),
            is_cut=length > 100,
            reward=1.0,
            scored_s=0.0,
        )
        for length in lengths
    ]
    assert sum(response.is_cut for response in responses) > 10_000
    assert mean_excess(responses) == pytest.approx(200.0, rel=0.03)


def test_resampled_prompts_are_as_many_of_the_recorded_ones_drawn_anew() -> None:
    work = recorded_work(recorded())
    draws = [resampled(work, draw) for draw in range(30)]
    assert {len(drawn.prompts) for drawn in draws} == {3}
    assert all(prompt in work.prompts for drawn in draws for prompt in drawn.prompts)
    assert resampled(work, 4) == resampled(work, 4)
    tokens = [[len(prompt.token_ids) for prompt in drawn.prompts] for drawn in draws]
    assert len({tuple(drawn) for drawn in tokens}) > 10
    assert {count for drawn in tokens for count in drawn} == {5, 7, 9}


def test_verdicts_take_their_recorded_seconds() -> None:
    work = recorded_work(recorded())

    async def told() -> list[Score]:
        feed = work.feed(None, seed=0)
        names = [("0/0", 0), ("0/0", 1), ("0/2", 0)]
        await feed.publish([_generated(*name) for name in names])
        scores: list[Score] = []
        while len(scores) < 3:
            scores += await feed.scored(5.0)
        return scores

    seconds = {(score.prompt_id, score.index): score.finished_s for score in run_virtual(told())}
    assert seconds["0/0", 0] == pytest.approx(0.07)
    # without a verdict of its own: the mean of all
    assert seconds["0/2", 0] == pytest.approx(0.06)


def test_rewards_come_again_as_they_were_recorded() -> None:
    """Of a judge, say, or of a function that takes points off: groups are as alike as they were."""
    rows = (row(7, 0, 20, reward=0.25), row(7, 1, 30, reward=-1.0), row(7, 2, 99, "length", -0.5))
    steps = (RecordedStep(commit=committed(), rows=rows),)
    work = recorded_work(RecordedRun(config=CONFIG, steps=steps))

    async def told(reason: FinishReason) -> dict[int, float | None]:
        feed, scores = work.feed(None, seed=0), list[Score]()
        generated = (_generated("0/0", index) for index in range(3))
        await feed.publish([replace(response, finish_reason=reason) for response in generated])
        while len(scores) < 3:
            scores += await feed.scored(5.0)
        return {score.index: score.reward for score in scores}

    assert run_virtual(told("stop")) == {0: 0.25, 1: -1.0, 2: -0.5}
    # the bound is lower than the recorded one, or a response that was cut there goes on
    assert run_virtual(told("length")) == {0: 0.0, 1: 0.0, 2: -0.5}


def test_what_lay_between_two_rounds_is_no_wait_for_a_verdict() -> None:
    """Of a run in turn, whose steps train before the next round has scored what it took over."""
    first, second = row(7, 0, 20), row(7, 1, 30)  # over at 10 s
    assert first.response.score is not None
    here = replace(first.response.score, started_s=12.0, finished_s=12.5)
    under_way = replace(first.response.score, index=1, started_s=10.1, finished_s=12.2)
    rows = tuple(
        replace(told, response=replace(told.response, score=score))
        for told, score in ((first, here), (second, under_way))
    )
    commit = replace(committed(), timings={"started_s": 11.0})
    run = RecordedRun(config=CONFIG, steps=(RecordedStep(commit=commit, rows=rows),))
    work = recorded_work(run)
    assert work.scored_s("0/0", 0, seed=0) == pytest.approx(0.5)
    assert work.scored_s("0/0", 1, seed=0) == pytest.approx(2.2)


def test_a_verdict_goes_on_when_its_round_is_over_and_another_answer_waits_for_its_own() -> None:
    work = recorded_work(recorded())
    first = replace(_generated("0/0", 0), finished_s=1.0)
    another = replace(first, finished_s=2.0)  # to the same prompt, asked anew

    async def told() -> list[float]:
        feed = work.feed(None, seed=0)
        await feed.publish([first])
        await asyncio.sleep(0.03)
        await feed.publish([first, another])
        scores: list[Score] = []
        while len(scores) < 3:
            scores += await feed.scored(5.0)
        return [score.finished_s for score in scores]

    assert run_virtual(told()) == pytest.approx([0.07, 0.07, 0.03 + 0.07])


def _generated(prompt_id: str, index: int) -> Generated:
    return make_generated(token_ids=(1,), prompt_id=prompt_id, index=index)


def test_a_run_is_read_from_its_store(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    write_manifest(
        store,
        RunManifest(
            run_id="a", created="", config=CONFIG, packages={}, git_sha=None, mlflow_run_id=None
        ),
    )
    Journal(store).finalise(1, ROWS, [], [])
    commit_step(store, committed())
    run = read_run(store)
    assert run.rows == ROWS
    assert run.longest_tokens == 100
    with pytest.raises(ValueError, match="must hold a run"):
        read_run(store.child("nothing"))
    with pytest.raises(ValueError, match="at least one committed step"):
        RecordedRun(config=CONFIG, steps=())


def test_a_run_whose_responses_were_deleted_is_not_played() -> None:
    steps = (RecordedStep(commit=committed(), rows=()),)
    with pytest.raises(ValueError, match="must have its responses to be played, got none"):
        recorded_work(RecordedRun(config=CONFIG, steps=steps))
