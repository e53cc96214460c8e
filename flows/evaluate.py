"""Held-out evaluation: the same prompts each time, sampled by the engines and scored by the
rewards, nothing trained.

All tokens of an evaluation are of the weights that it is of: no version is published while it goes
on, and a response with a token of another is refused. Where steps overlap, rounds generate beside
it on the same engines (`flows.steps`).
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import dask
from prefect import flow

from artifacts.journal import Journal
from artifacts.judgements import kept_judgements
from artifacts.records import WeightsRef
from artifacts.store import Store
from flows.rl_step import SLOT, all_results
from flows.run import OpenRun
from flows.task_results import result_of
from tasks.reward import score_responses
from tasks.rollout import run_rollout
from tasks.rounds.report import read_round
from tasks.run.partial_responses import drop_partial
from tasks.run.prompts import heldout_refs
from tasks.run.run_context import RunContext, StepPlan, journal_of, store_of
from tasks.scheduling.events import RoundPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """Scores on the held-out prompts."""

    version: int  # weight version that answered
    scores: Mapping[str, float]  # mean reward over the prompt's responses, by prompt id
    questions: Mapping[str, str]  # what each of these prompts asks
    num_infra: int  # responses without a verdict, left out of the means
    tokens: int  # generated for it
    judged_tokens: int  # written by judges for it
    seconds: float  # from the first submission to the last token

    @property
    def mean(self) -> float:
        """Over the prompts; not a number where no response has a verdict."""
        return sum(self.scores.values()) / len(self.scores) if self.scores else math.nan

    @property
    def metrics(self) -> dict[str, float]:
        """What MLflow gets."""
        mean = {"heldout/reward_mean": self.mean} if self.scores else {}
        return mean | {"heldout/infra": float(self.num_infra)}


def evaluation_round(
    run: RunContext, step: int, num_prompts: int, responses_per_prompt: int
) -> RoundPlan:
    """The round that asks the first num_prompts held-out prompts that can be asked."""
    return RoundPlan(
        step=step,
        kind="evaluate",
        is_evaluation=True,
        prompts=heldout_refs(run, num_prompts),
        launch_per_prompt=responses_per_prompt,
        accept_prompts=num_prompts,
        accept_per_prompt=responses_per_prompt,
    )


def evaluation_plan(run: OpenRun, step: int, weights: WeightsRef) -> StepPlan:
    """The first attempt at the evaluation after this step, which made these weights."""
    asked = run.config.evaluation
    planned = evaluation_round(run.context, step, asked.num_prompts, asked.responses_per_prompt)
    return StepPlan(run=run.context, round=planned, weights=weights, attempt=1)


@flow(name="evaluate", flow_run_name="evaluate-after-{plan.step:05d}", validate_parameters=False)
async def evaluate(plan: StepPlan) -> EvaluationReport:
    """Ask and score."""
    with dask.annotate(resources=SLOT):
        rollout = run_rollout.submit(plan)
        reward = score_responses.submit(plan)
    await all_results(result_of(rollout), result_of(reward))
    journal_of(plan).drop_parts(plan.step)
    drop_partial(plan)
    report = await asyncio.to_thread(recorded_evaluation, plan)
    assert report is not None, "a finished evaluation is recorded"
    return report


def recorded_evaluation(plan: StepPlan) -> EvaluationReport | None:
    """The scores of an evaluation that has been made, or None."""
    return kept_evaluation(store_of(plan), plan.step, plan.weights.version)


def kept_evaluation(store: Store, step: int, version: int) -> EvaluationReport | None:
    """The same. store: of the run's evaluations. version: of the weights that answered."""
    rollout = read_round(store, step)
    if rollout is None:
        return None
    rewards: dict[str, list[float]] = defaultdict(list)
    questions: dict[str, str] = {}
    num_infra = 0
    for row in Journal(store).read(step):
        score = row.response.score
        if score is None or score.reward is None:
            num_infra += 1
        else:
            rewards[row.prompt.prompt_id].append(score.reward)
            questions[row.prompt.prompt_id] = row.prompt.text
    return EvaluationReport(
        version=version,
        scores={
            prompt_id: sum(values) / len(values) for prompt_id, values in sorted(rewards.items())
        },
        questions=questions,
        num_infra=num_infra,
        tokens=sum(rollout.tokens.values()),
        judged_tokens=sum(judgement.new_tokens for judgement in kept_judgements(store, step)),
        seconds=rollout.finished_s - rollout.started_s,
    )
