"""The reward stage: one coordinator task that scores every response as soon as it is finished, and records it.

sample buffer -> reward threads -> verdict -> sample buffer, and the step's journal
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.journal import Journal
from artifacts.records import Generated, Outcome, Prompt, Response, Score, Span
from artifacts.tables import ResponseRow
from tasks.plan import StepPlan, journal_of, prompts_of
from tasks.rewards.registry import Rewards, build_rewards
from tasks.sample_stream import SampleStream, aborting

JOURNAL_EVERY_S = 1.0  # recorded responses are written in batches, at least this far apart


MIN_FAILURES = 4  # a few failures are never a trend


class RewardBroken(RuntimeError):
    """The reward itself fails; the run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """What scoring did in a round."""

    num_scored: int  # responses scored
    num_infra: int  # of them without a verdict
    first_infra: str  # the first such failure in words; empty if there was none
    busy_s: float  # seconds of scoring, added over the reward workers
    spans: tuple[Span, ...]  # when scoring went on


@task(name="score-responses", task_run_name="reward-{plan.round.kind}-{plan.step}", cache_policy=NO_CACHE, tags=["reward"])
def score_responses(plan: StepPlan) -> RewardReport:
    """Score the round's responses until its rollout ends."""
    stream = SampleStream.connect(plan)
    journal = journal_of(plan)
    with RewardThreads(plan) as rewards:
        return asyncio.run(aborting(stream, "reward", _score_round(plan, stream, journal, rewards)))


class RewardThreads:
    """A few threads with a set of rewards each (a reward serves one thread at a time)."""

    def __init__(self, plan: StepPlan) -> None:
        self._configs = plan.run.rewards
        self._local = threading.local()
        self._built: list[Rewards] = []
        self._threads = ThreadPoolExecutor(plan.run.reward_workers, thread_name_prefix="reward")

    def __enter__(self) -> RewardThreads:
        return self

    def __exit__(self, *failure: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for rewards in self._built:
            rewards.close()

    async def score(self, prompt: Prompt, generated: Generated) -> Score:
        """A verdict from a free thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._score, prompt, generated)

    def _score(self, prompt: Prompt, generated: Generated) -> Score:
        if not hasattr(self._local, "rewards"):
            self._local.rewards = build_rewards(self._configs)
            self._built.append(self._local.rewards)
        score: Score = self._local.rewards.score(prompt, generated)
        return score


async def _score_round(plan: StepPlan, stream: SampleStream, journal: Journal, rewards: RewardThreads) -> RewardReport:
    prompts = prompts_of(plan.run, plan.round.candidates)
    scored: list[Response] = []

    async def score_one(generated: Generated) -> None:
        score = await rewards.score(prompts[generated.prompt_id], generated)
        await stream.put("scores", [score])
        scored.append(Response(generated=generated, score=score))
        check_infra(plan, scored)

    num_recorded, recorded_s, closed = 0, time.monotonic(), False
    async with asyncio.TaskGroup() as tasks:
        while not closed:
            arrived, closed = await stream.take("generated", max_items=256, wait_s=JOURNAL_EVERY_S)
            for generated in arrived:
                tasks.create_task(score_one(generated))
            if time.monotonic() - recorded_s >= JOURNAL_EVERY_S:
                num_recorded, recorded_s = _record(plan, journal, prompts, scored, num_recorded), time.monotonic()
    _record(plan, journal, prompts, scored, num_recorded)
    return _report(plan, [response.score for response in scored if response.score is not None])


def check_infra(plan: StepPlan, scored: Sequence[Response]) -> None:
    """Raise RewardBroken when too many responses have no verdict: training on the rest would only look healthy."""
    launched = max(len(plan.round.prompts) * plan.round.launch_per_prompt, len(scored))
    failed = [one.score for one in scored if one.score is not None and one.score.outcome is Outcome.INFRA]
    if len(failed) >= MIN_FAILURES and len(failed) > plan.run.max_infra_fraction * launched:
        raise RewardBroken(
            f"rewards must reach a verdict for all but {plan.run.max_infra_fraction:.0%} of the responses, "
            f"{len(failed)} of {launched} of step {plan.step} have none ({failed[0].scorer}: {failed[0].detail}); "
            "mend the reward, or raise max_infra_fraction"
        )


def _record(plan: StepPlan, journal: Journal, prompts: dict[str, Prompt], scored: list[Response], num_recorded: int) -> int:
    """Append what has been scored since the last time; returns how many are recorded now."""
    num_scored = len(scored)
    journal.append(plan.step, [_row(plan, prompts, response) for response in scored[num_recorded:num_scored]])
    return num_scored


def _row(plan: StepPlan, prompts: dict[str, Prompt], response: Response) -> ResponseRow:
    return ResponseRow(step=plan.step, kind=plan.round.kind, prompt=prompts[response.generated.prompt_id], response=response)


def _report(plan: StepPlan, scores: list[Score]) -> RewardReport:
    infra = [score for score in scores if score.outcome is Outcome.INFRA]
    device = plan.run.devices["control"]
    return RewardReport(
        num_scored=len(scores),
        num_infra=len(infra),
        first_infra=infra[0].detail if infra else "",
        busy_s=sum(score.finished_s - score.started_s for score in scores),
        spans=tuple(
            Span(device=device, actor="reward", kind="reward", start_s=score.started_s, end_s=score.finished_s) for score in scores
        ),
    )
