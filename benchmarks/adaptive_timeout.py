"""What does the adaptive timeout save against a fixed one, and whom does it starve?

    python -m benchmarks.adaptive_timeout
        simulated: 20 rounds of 44 x 8 responses, 5 % of the executions doomed
    python -m benchmarks.adaptive_timeout --execute --scale 0.1 --rounds 10
        the same programs in the real sandbox: a few minutes

A round is rollout and reward together: responses end at log-normal times, programs wait for one of
the reward workers, and the round is over with the last verdict (RollPacker, Figure 13c: 1.6 times
faster). `program_workload` says what the programs are like. Starved are correct programs that a
limit killed. Second looks happen while a real run trains, so they take no time of a round here.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from artifacts.datasets.code_cases import CodeGold, call_case
from artifacts.records import CaseResult, CaseVerdict
from benchmarks.program_workload import (
    ENDLESS_S,
    Job,
    Workload,
    jobs_of_round,
    program,
    simulated,
)
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rewards.programs.adaptive_timeout import (
    AdaptiveTimeoutConfig,
    TimeoutBook,
    is_early_kill,
    observed,
    second_looks,
)
from tasks.rewards.programs.sandbox.case_runner import CaseRunner
from tasks.sandbox.isolation import Isolation
from tasks.sandbox.limits import SandboxLimits

GOLD = CodeGold(function="work", cases=(call_case((), 1),))
Execute = Callable[[Job, float], Awaitable[CaseResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run under one configuration of time limits."""

    round_s: float  # mean seconds of rollout and reward together
    rollout_s: float  # of which the rollout alone
    num_early_kills: int
    num_doomed: int
    num_slow_correct: int  # correct programs of the slow solution
    num_starved: int  # of them killed


async def play_round(
    jobs: Sequence[Job],
    config: AdaptiveTimeoutConfig,
    book: TimeoutBook,
    num_workers: int,
    execute: Execute,
) -> tuple[float, list[CaseResult]]:
    """Seconds until the last verdict, and the results in the order of the jobs: first ended, first
    served; a limit knows what had ended when it was set."""
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    waiting = iter(jobs)
    results: dict[str, CaseResult] = {}

    async def work() -> None:
        for job in waiting:
            await asyncio.sleep(max(0.0, begun_s + job.ready_s - clock()))
            (limit_s,) = book.limits(config, (job.key,))
            result = await execute(job, limit_s)
            book.learn(observed(config, ((result,),)))
            results[job.response_id] = result

    await asyncio.gather(*(work() for _ in range(num_workers)))
    return clock() - begun_s, [results[job.response_id] for job in jobs]


def simulate_round(
    jobs: Sequence[Job], config: AdaptiveTimeoutConfig, book: TimeoutBook, num_workers: int
) -> tuple[float, list[CaseResult]]:
    """The round on a virtual clock, without executing anything."""

    async def execute(job: Job, limit_s: float) -> CaseResult:
        result = simulated(job, limit_s)
        await asyncio.sleep(result.wall_s)
        return result

    return run_virtual(play_round(jobs, config, book, num_workers, execute))


def execute_round(
    jobs: Sequence[Job], config: AdaptiveTimeoutConfig, book: TimeoutBook, num_workers: int
) -> tuple[float, list[CaseResult]]:
    """The same in real time, each program executed by a real sandbox when its response would have
    ended."""
    local = threading.local()
    runners: list[CaseRunner] = []

    def run_once(job: Job, limit_s: float) -> CaseResult:
        if not hasattr(local, "runner"):
            local.runner = CaseRunner(Isolation.NAMESPACES, SandboxLimits())
            runners.append(local.runner)
        (run,) = local.runner.run(program(job), GOLD, (limit_s,))
        return CaseResult(key=job.key, verdict=run.verdict, wall_s=run.wall_s, limit_s=limit_s)

    with ThreadPoolExecutor(num_workers) as threads:

        async def execute(job: Job, limit_s: float) -> CaseResult:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads, run_once, job, limit_s)

        took_s, results = asyncio.run(play_round(jobs, config, book, num_workers, execute))
    for runner in runners:
        runner.close()
    return took_s, results


def run(
    work: Workload,
    config: AdaptiveTimeoutConfig,
    num_rounds: int,
    num_workers: int,
    seed: int,
    *,
    really: bool,
    num_looks: int,
) -> Outcome:
    """All rounds under one configuration; the anchors live on from round to round, mended by
    `num_looks` second looks after each."""
    book = TimeoutBook()
    took_s = 0.0
    rollout_s = 0.0
    early = doomed = slow = starved = 0
    for number in range(num_rounds):
        jobs = sorted(jobs_of_round(work, number, seed), key=lambda job: job.ready_s)
        seconds, results = (execute_round if really else simulate_round)(
            jobs, config, book, num_workers
        )
        for place in second_looks(
            config, book.anchors, [(result,) for result in results], num_looks
        ):
            book.learn(observed(config, ((simulated(jobs[place], config.ceiling_s),),)))
        took_s += seconds
        rollout_s += jobs[-1].ready_s
        for job, result in zip(jobs, results, strict=True):
            early += is_early_kill(config, result)
            doomed += job.needs_s == ENDLESS_S
            is_slow = job.is_correct and job.needs_s > work.scale * 3.0
            slow += is_slow
            starved += is_slow and result.verdict is CaseVerdict.TIMEOUT
    return Outcome(
        round_s=took_s / num_rounds,
        rollout_s=rollout_s / num_rounds,
        num_early_kills=early,
        num_doomed=doomed,
        num_slow_correct=slow,
        num_starved=starved,
    )


def configurations(scale: float) -> tuple[AdaptiveTimeoutConfig, AdaptiveTimeoutConfig]:
    """A fixed limit, and the paper's rule."""
    ceiling_s = 30.0 * scale
    return AdaptiveTimeoutConfig(floor_s=ceiling_s, ceiling_s=ceiling_s), AdaptiveTimeoutConfig(
        floor_s=2.0 * scale, ceiling_s=ceiling_s
    )


def report(name: str, outcome: Outcome, fixed: Outcome) -> str:
    """One line of figures."""
    return (
        f"{name:<22} round_s={outcome.round_s:.2f} (rollout {outcome.rollout_s:.2f})"
        f" speedup={fixed.round_s / outcome.round_s:.2f} early_kills={outcome.num_early_kills}"
        f" doomed={outcome.num_doomed} starved={outcome.num_starved} of {outcome.num_slow_correct}"
        " slow correct"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.adaptive_timeout",
        description="Adaptive against fixed time limits.",
    )
    parser.add_argument("--rounds", type=int, default=20, help="rounds of one run")
    parser.add_argument("--prompts", type=int, default=44, help="questions of a round")
    parser.add_argument("--responses", type=int, default=8, help="responses to a question")
    parser.add_argument("--questions", type=int, default=256, help="questions that there are")
    parser.add_argument(
        "--doomed", type=float, default=0.05, help="share of programs that never end"
    )
    parser.add_argument(
        "--rollout-s", type=float, default=12.0, help="median time at which a response ends"
    )
    parser.add_argument(
        "--rollout-sigma", type=float, default=0.25, help="spread of the logarithm of that time"
    )
    parser.add_argument("--workers", type=int, default=32, help="reward workers")
    parser.add_argument(
        "--looks",
        type=int,
        default=0,
        help="second looks after a round, if it is not as many as there are workers",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies every second, limits included"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the workload")
    parser.add_argument(
        "--execute", action="store_true", help="execute the programs in the sandbox, in real time"
    )
    return parser


def main() -> None:
    """Compare the configurations on one workload."""
    given = _parser().parse_args()
    work = Workload(
        num_prompts=given.prompts,
        num_responses=given.responses,
        num_questions=given.questions,
        doomed_share=given.doomed,
        correct_share=0.4,
        two_speed_share=0.2,
        rollout_s=given.rollout_s,
        rollout_sigma=given.rollout_sigma,
        scale=given.scale,
    )
    fixed, adaptive = configurations(given.scale)
    outcomes = {
        name: run(
            work,
            config,
            given.rounds,
            given.workers,
            given.seed,
            really=given.execute,
            num_looks=num_looks,
        )
        for name, config, num_looks in (
            ("fixed", fixed, 0),
            ("adaptive", adaptive, 0),
            ("adaptive, looks again", adaptive, given.looks or given.workers),
        )
    }
    for name, outcome in outcomes.items():
        print(report(name, outcome, outcomes["fixed"]))


if __name__ == "__main__":
    main()
