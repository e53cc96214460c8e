"""Made-up rounds of generated programs: when each response ends, how long its program runs, and
whether it is right.

The programs of a question take similar times, some questions have a fast and a slow correct
solution, and a share of the programs never ends. Everything is a function of the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from artifacts.records import CaseResult, CaseVerdict

ENDLESS_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is generated and executed in a round."""

    num_prompts: int  # questions of a round
    num_responses: int  # responses to each
    num_questions: int  # questions that there are; they come again in later rounds
    doomed_share: float  # of the programs that never end
    correct_share: float  # of the others that are right
    two_speed_share: float  # of the questions with a fast and a slow correct solution
    rollout_s: float  # median time at which a response ends
    # standard deviation of its logarithm; small where speculation has cut the tail
    rollout_sigma: float
    scale: float  # all seconds are multiplied by it, limits included


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program to execute."""

    response_id: str
    key: str  # its test case
    ready_s: float  # when its response ended, from the round's start
    needs_s: float  # how long it runs
    is_correct: bool  # whether it passes when it may run to its end


def jobs_of_round(work: Workload, number: int, seed: int) -> Iterator[Job]:
    """The round's programs, a function of the seed alone."""
    rng = random.Random(f"{seed}/{number}")
    for prompt in range(work.num_prompts):
        question = rng.randrange(work.num_questions)
        own = random.Random(f"{seed}/question/{question}")
        typical_s = own.lognormvariate(-2.3, 1.0)
        is_two_speed = own.random() < work.two_speed_share
        for index in range(work.num_responses):
            needs_s = typical_s * rng.lognormvariate(0.0, 0.3)
            if is_two_speed and rng.random() < 0.3:
                needs_s += 3.0 + 5.0 * own.random()
            doomed = rng.random() < work.doomed_share
            yield Job(
                response_id=f"{number}/{prompt}:{index}",
                key=f"q{question}",
                ready_s=work.scale * work.rollout_s * rng.lognormvariate(0.0, work.rollout_sigma),
                needs_s=ENDLESS_S if doomed else work.scale * needs_s,
                is_correct=not doomed and rng.random() < work.correct_share,
            )


def simulated(job: Job, limit_s: float) -> CaseResult:
    """The execution without executing anything."""
    verdict = (
        CaseVerdict.TIMEOUT
        if job.needs_s > limit_s
        else CaseVerdict.PASS
        if job.is_correct
        else CaseVerdict.WRONG
    )
    return CaseResult(
        key=job.key, verdict=verdict, wall_s=min(job.needs_s, limit_s), limit_s=limit_s
    )


def program(job: Job) -> str:
    """A program that takes the job's time without the machine's: it sleeps, or never ends."""
    wait = (
        "while True: time.sleep(60)"
        if job.needs_s == ENDLESS_S
        else f"time.sleep({job.needs_s:.4f})"
    )
    return f"import time\ndef work():\n    {wait}\n    return {int(job.is_correct)}"
