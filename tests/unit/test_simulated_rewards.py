"""Simulated verdicts: queues that match closed forms, limits that adapt, judges that pipeline, and
rounds that give up what nobody needs."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from artifacts.records import CaseVerdict, Generated, Outcome, Score, VersionSpan
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rewards.programs.adaptive_timeout import AdaptiveTimeoutConfig, MeasuredTimes
from tasks.simulation.reward_queue import (
    AnswerToScore,
    JudgeTimes,
    ProgramTimes,
    RewardQueue,
    RewardTimes,
    RewardWorkers,
    RuleTimes,
    Work,
)
from tasks.simulation.workloads import MATH, Correctness, QueuedFeed, Workload, workload

ONE_SECOND = RuleTimes(median_s=1.0, sigma=0.0)


def answer(
    prompt: int = 0, index: int = 0, num_tokens: int = 1000, right: bool = True
) -> AnswerToScore:
    return AnswerToScore(
        prompt_id=f"0/{prompt}", index=index, num_tokens=num_tokens, is_right=right
    )


def waits(times: RewardTimes, workers: RewardWorkers, arrivals_s: Sequence[float]) -> list[Work]:
    """The works of a queue to which answers come at these times."""
    queue = RewardQueue(workers, MeasuredTimes(), seed=0)
    ends: list[tuple[float, int, Work]] = []
    done: list[Work] = []

    def begin(works: Sequence[Work]) -> None:
        for work in works:
            done.append(work)
            heapq.heappush(ends, (work.ends_s, len(done), work))

    for place, now_s in enumerate(arrivals_s):
        while ends and ends[0][0] <= now_s:
            ended_s, _, work = heapq.heappop(ends)
            begin(queue.end(work, ended_s))
        begin(queue.offer(answer(place), times, now_s))
    while ends:
        ended_s, _, work = heapq.heappop(ends)
        begin(queue.end(work, ended_s))
    return done


def test_rules_that_are_scored_serially_wait_for_each_other_and_for_nothing_else() -> None:
    workers = RewardWorkers(num_workers=8, scores_rules_serially=True)
    works = waits(ONE_SECOND, workers, [0.0] * 4)
    assert [work.begins_s for work in works] == [0.0, 1.0, 2.0, 3.0]
    queue = RewardQueue(workers, MeasuredTimes(), seed=0)
    assert len(queue.offer(answer(0), ONE_SECOND, 0.0)) == 1
    assert not queue.offer(answer(1), ONE_SECOND, 0.0)
    assert len(queue.offer(answer(2), ProgramTimes(), 0.0)) == 1


def test_one_worker_with_random_arrivals_waits_as_the_m_d_1_queue_does() -> None:
    """Mean wait: load x service / (2 (1 - load)) (Pollaczek and Khinchine)."""
    load, num_answers, draws = 0.4, 200_000, random.Random(2)
    arrivals_s = np.cumsum([draws.expovariate(load) for _ in range(num_answers)]).tolist()
    works = waits(ONE_SECOND, RewardWorkers(num_workers=1), arrivals_s)
    begun_s = np.array([work.begins_s for work in works])
    assert np.mean(begun_s - arrivals_s) == pytest.approx(load / (2 * (1 - load)), rel=0.01)


@pytest.mark.parametrize(("num_answers", "num_workers"), [(64, 1), (64, 8), (60, 7)])
def test_a_storm_of_equal_verdicts_ends_after_as_many_turns_as_it_takes(
    num_answers: int, num_workers: int
) -> None:
    works = waits(ONE_SECOND, RewardWorkers(num_workers=num_workers), [0.0] * num_answers)
    assert max(work.ends_s for work in works) == math.ceil(num_answers / num_workers)
    waited_s = sum(work.begins_s for work in works)
    assert waited_s == sum(place // num_workers for place in range(num_answers))


def test_programs_are_done_by_thirty_seconds_but_for_the_doomed() -> None:
    times, book = ProgramTimes(timeout=AdaptiveTimeoutConfig(floor_s=30.0)), MeasuredTimes()
    cases = [times.case(answer(place), 0, book) for place in range(4000)]
    took_s = [times.seconds(case) for case in cases]
    killed = [case for case in cases if case.verdict is CaseVerdict.TIMEOUT]
    assert np.mean(np.array(took_s) < 30.0) == pytest.approx(0.95, abs=0.01)
    assert {case.wall_s for case in killed} == {30.0}
    assert np.median(took_s) == pytest.approx(times.median_s, rel=0.1)


def test_the_first_right_program_lowers_the_limit_of_those_behind_it() -> None:
    times, book = ProgramTimes(), MeasuredTimes()
    queue = RewardQueue(RewardWorkers(num_workers=1), book, seed=0)
    first = next(
        index for index in range(50) if times.case(answer(1, index), 0, book).verdict == "pass"
    )
    doomed = next(
        index for index in range(500) if times.case(answer(1, index), 0, book).verdict == "timeout"
    )
    (before,) = queue.offer(answer(1, doomed), times, 0.0)
    assert before.ends_s == 30.0
    (right,) = queue.end(before, 30.0) or queue.offer(answer(1, first), times, 30.0)
    queue.end(right, right.ends_s)
    (after,) = queue.offer(answer(1, doomed), times, 100.0)
    assert after.ends_s - 100.0 == pytest.approx(max(2.0, 1.5 * right.cases[0].wall_s))


def test_a_judge_serves_what_waits_in_one_pass_and_no_more_than_fits() -> None:
    times = JudgeTimes(pass_tokens=4000, frame_tokens=0)
    works = waits(times, RewardWorkers(num_judges=1), [0.0] * 9)
    assert [len(work.answers) for work in works] == [1, 4, 4]
    assert works[1].ends_s - works[1].begins_s == times.seconds(4000)


def test_a_pipelined_judge_hides_its_copies_and_one_that_copies_first_does_not() -> None:
    resident, pipelined, copied = (
        JudgeTimes(placement=placement) for placement in ("resident", "pipelined", "copied")
    )
    for num_tokens in (500, 8192, 32768):
        assert pipelined.seconds(num_tokens) == pytest.approx(resident.seconds(num_tokens))
    # 15.2 GB over 25 GB/s
    assert copied.seconds(1000) - resident.seconds(1000) == pytest.approx(0.608)
    halved = JudgeTimes(compute_share=0.5)
    assert halved.seconds(1000) == pytest.approx(2 * resident.seconds(1000))


def test_rules_do_not_wait_behind_programs() -> None:
    queue = RewardQueue(RewardWorkers(num_workers=1), MeasuredTimes(), seed=0)
    assert len(queue.offer(answer(0), ProgramTimes(), 0.0)) == 1
    assert queue.offer(answer(1), ProgramTimes(), 0.0) == []
    assert len(queue.offer(answer(2), ONE_SECOND, 0.0)) == 1


def generated(prompt: int, index: int = 0) -> Generated:
    return Generated(
        prompt_id=f"0/{prompt}",
        index=index,
        token_ids=(1,) * 10,
        logprobs=(0.0,) * 10,
        versions=(VersionSpan(version=0, num_tokens=10),),
        finish_reason="stop",
        text="",
        engine="engine-0",
        submitted_s=0.0,
        first_token_s=0.0,
        finished_s=0.0,
    )


def one_second(num_workers: int, **others: Any) -> QueuedFeed:
    """A feed whose verdicts take a second each."""
    work = Workload(
        name="seconds",
        longest_tokens=100,
        parts=(replace(MATH, reward=ONE_SECOND),),
        workers=RewardWorkers(num_workers=num_workers),
        **others,
    )
    return work.feed(None, seed=0)


async def play(feed: QueuedFeed, num_responses: int, every_s: float) -> list[Score]:
    """Publish a response at a time, and collect all verdicts."""
    for place in range(num_responses):
        await asyncio.sleep(every_s)
        await feed.publish([generated(place)])
    scores: list[Score] = []
    while len(scores) < num_responses:
        scores += await feed.scored(1e6)
    return scores


def test_verdicts_come_as_responses_do_and_a_storm_of_them_takes_its_time() -> None:
    spread = run_virtual(play(one_second(1), 10, every_s=2.0))
    assert [score.finished_s for score in spread] == pytest.approx(np.arange(3.0, 23.0, 2.0))
    at_once = run_virtual(play(one_second(1), 10, every_s=0.0))
    assert [score.started_s for score in at_once] == pytest.approx(np.arange(0.0, 10.0))
    assert [score.finished_s for score in at_once] == pytest.approx(np.arange(1.0, 11.0))


def test_a_later_round_gives_up_what_an_earlier_one_left() -> None:
    async def two_rounds() -> list[Score]:
        feed = one_second(1)
        await feed.publish([replace(generated(row), attempt=1) for row in range(3)])
        await asyncio.sleep(0.5)
        await feed.publish([replace(generated(0), attempt=2)])
        return [*await feed.scored(1.0), *await feed.scored(2.0), *await feed.scored(9.0)]

    scores = run_virtual(two_rounds())
    told = [(score.prompt_id, score.reward, score.finished_s) for score in scores]
    assert told[:3] == [("0/0", None, 0.5), ("0/1", None, 0.5), ("0/2", None, 0.5)]
    assert [(name, finished_s) for name, _, finished_s in told[3:]] == [("0/0", 1.5)]


def test_verdicts_are_the_same_with_any_number_of_workers() -> None:
    def verdicts(num_workers: int) -> dict[str, Outcome]:
        scores = run_virtual(play(one_second(num_workers), 40, every_s=0.01))
        return {score.prompt_id: score.outcome for score in scores}

    assert verdicts(1) == verdicts(64)
    assert set(verdicts(1).values()) == {Outcome.OK, Outcome.WRONG}


def test_what_the_bound_cut_is_wrong() -> None:
    async def two() -> list[Score]:
        feed = one_second(1, correctness=Correctness(share=0.9999))
        await feed.publish([generated(0), replace(generated(1), finish_reason="length")])
        return [*await feed.scored(10.0), *await feed.scored(10.0)]

    assert [score.reward for score in run_virtual(two())] == [1.0, 0.0]


def test_right_answers_have_their_share_and_are_alike_within_a_prompt() -> None:
    law = Correctness(share=0.3, prompt_share=0.7)
    right = np.array(
        [[law.is_right(0, f"0/{row}", index) for index in range(8)] for row in range(2000)]
    )
    assert right.mean() == pytest.approx(0.3, abs=0.03)
    unanimous = np.mean(right.all(axis=1) | ~right.any(axis=1))
    assert unanimous > 0.25 > 0.7**8 + 0.3**8


def test_the_mixed_workload_is_scored_by_all_three_kinds() -> None:
    mixed = workload("mixed", 16384)
    scores = run_virtual(play(mixed.feed(None, seed=0), 60, every_s=0.1))
    scored_by = {type(mixed.reward_of(score.prompt_id)).__name__ for score in scores}
    assert scored_by == {"RuleTimes", "ProgramTimes", "JudgeTimes"}
