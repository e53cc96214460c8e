"""Held-out evaluation: the engines answer the same prompts each time, the rewards score the
answers, and nothing is trained. All tokens come from one weight version: none is published
meanwhile, and a response with a token of another version is refused. Where steps overlap, rounds
generate beside the evaluation on the same engines (`flows.steps`)."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import dask
from prefect import flow

from artifacts import layout
from artifacts.journal import Journal
from artifacts.judgements import kept_judgements
from artifacts.prompt_ids import adapter_of
from artifacts.records import WeightsRef
from artifacts.reports.answers import (
    EpisodeChange,
    HeldoutQuestion,
    changes_of,
    distinct,
    markdown,
    questions_of,
    spread,
)
from artifacts.store import Store
from artifacts.tables import ResponseRow
from flows.rl_step import SLOT, abort_round, all_results
from flows.run import OpenRun
from flows.task_runner import result_of
from tasks.reward import score_responses
from tasks.rollout import run_rollout
from tasks.rounds.report import read_round
from tasks.run.partial_responses import drop_partial
from tasks.run.prompts import heldout_refs
from tasks.run.run_context import StepPlan, journal_of, store_of
from tasks.scheduling.events import RoundPlan

SHOWN_QUESTIONS = 12
SHOWN_EPISODES = 6  # fewer, because episodes are longer


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """Scores of one evaluation on the held-out prompts."""

    version: int  # weight version that answered
    scores: Mapping[str, float]  # mean reward over the prompt's responses, by prompt id
    questions: Mapping[str, str]  # text of each scored prompt, by prompt id
    num_infra: int  # responses without a verdict, left out of the means
    tokens: int  # generated for the evaluation
    judged_tokens: int  # written by judges for the evaluation
    seconds: float  # from the first submission to the last token

    @property
    def mean(self) -> float:
        """Mean score over the prompts; NaN if no response has a verdict."""
        return sum(self.scores.values()) / len(self.scores) if self.scores else math.nan

    @property
    def metrics(self) -> dict[str, float]:
        mean = {"heldout/reward_mean": self.mean} if self.scores else {}
        by_adapter = {
            f"adapter/{name}_heldout_mean": value for name, value in self.by_adapter.items()
        }
        return mean | {"heldout/infra": float(self.num_infra)} | by_adapter

    @property
    def by_adapter(self) -> dict[str, float]:
        """Mean score over the prompts that each of several adapters answered; empty for one."""
        found: dict[str, list[float]] = defaultdict(list)
        for prompt_id, score in self.scores.items():
            found[adapter_of(prompt_id)].append(score)
        return {name: sum(own) / len(own) for name, own in sorted(found.items()) if name}

    @property
    def best(self) -> str:
        """The adapter with the highest mean, the first by name of equal ones; empty for one."""
        return max(self.by_adapter, key=self.by_adapter.__getitem__, default="")


Evaluations = Mapping[int, EvaluationReport]  # by the step after which each was made


def evaluation_plan(run: OpenRun, step: int, weights: WeightsRef) -> StepPlan:
    """Plan the first attempt at the evaluation after `step`, whose update made `weights`. Between
    the first and the last step each prompt is answered once: a curve needs no more."""
    asked = run.config.evaluation
    is_between = 0 < step < run.config.num_steps
    per_prompt = 1 if is_between else asked.responses_per_prompt
    refs = heldout_refs(run.context, asked.num_prompts, run.config.learner.lora.answering)
    planned = RoundPlan(
        step=step,
        kind="evaluate",
        is_evaluation=True,
        prompts=refs,
        launch_per_prompt=per_prompt,
        accept_prompts=len(refs),
        accept_per_prompt=per_prompt,
    )
    return StepPlan(run=run.context, round=planned, weights=weights, attempt=1)


@flow(name="evaluate", flow_run_name="evaluate-after-{plan.step:05d}", validate_parameters=False)
async def evaluate(plan: StepPlan) -> EvaluationReport:
    """Generate and score answers to the held-out prompts."""
    with dask.annotate(resources=SLOT):
        rollout = run_rollout.submit(plan)
        reward = score_responses.submit(plan)
    await all_results(partial(abort_round, plan), result_of(rollout), result_of(reward))
    journal_of(plan).drop_parts(plan.step)
    drop_partial(plan)
    report = await asyncio.to_thread(recorded_evaluation, plan)
    assert report is not None, "a finished evaluation is recorded"
    return report


def recorded_evaluation(plan: StepPlan) -> EvaluationReport | None:
    """Read the recorded scores of a planned evaluation; None without a record."""
    return kept_evaluation(store_of(plan), plan.step, plan.weights.version)


def kept_evaluation(store: Store, step: int, version: int) -> EvaluationReport | None:
    """Read the recorded scores of the evaluation after a step; None without a record. store: the
    folder of the run's evaluations. version: the weight version that answered."""
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
            questions[row.prompt.prompt_id] = row.prompt.identity
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutAnswers:
    """Responses of the first and the last evaluation of a run."""

    before: Sequence[ResponseRow]  # responses of the first evaluation
    after: Sequence[ResponseRow]  # of the last one; empty while there is one evaluation only

    @property
    def questions(self) -> list[HeldoutQuestion]:
        """Every held-out question with its answers before and after training."""
        return questions_of(self.before, self.after)

    @property
    def shown(self) -> list[HeldoutQuestion]:
        """The sample of questions that reports show, from the largest gain to the largest loss."""
        return spread(
            distinct(self.questions), SHOWN_EPISODES if self.episodes else SHOWN_QUESTIONS
        )

    @property
    def episodes(self) -> list[EpisodeChange]:
        """Figures of held-out episodes before and after training; empty without episodes."""
        return changes_of(self.before, self.after)

    def markdown(self) -> str:
        """Figures and transcripts of held-out episodes as Markdown; empty without episodes."""
        return markdown(self.episodes, self.shown) if self.episodes else ""


def read_answers(store: Store, evaluations: Evaluations) -> HeldoutAnswers:
    """Read the answers of a run's first and last evaluation; none without evaluations."""
    if not evaluations:
        return HeldoutAnswers(before=(), after=())
    journal = Journal(store.child(layout.EVALUATION))
    first, last = min(evaluations), max(evaluations)
    return HeldoutAnswers(
        before=journal.read(first), after=journal.read(last) if last > first else ()
    )
