"""A run whose tokens are all equally old: one engine and one learner in this process, step by step.

    step s   version max(0, s - 1 - lag) ─▶ engine ─▶ a round ─▶ rewards ─▶ groups
             version s - 1 ─▶ learner: gradients, update ─▶ version s ─▶ a file, kept for lag steps

Round, driver, learner actor and weight files are those of a run; what is left out is everything
that has a time: no two things go on at once, and no response goes on over newer weights. Equal
settings give equal numbers. Not for models that vLLM takes from transformers: it changes classes
that the learner of the same process computes with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.records import Generated, Group, Prompt, Score
from artifacts.store import Store
from benchmarks.stale_learning_versions import KeptVersions, due_version
from flows.config.run_config import RunConfig
from tasks.engines.base import Engine
from tasks.engines.mailbox import Mailbox
from tasks.lag import lag_figures
from tasks.learner.collective import RoundToTrain, accumulate_round, update_all
from tasks.learner.remote import LearnerActor, RemoteLearner
from tasks.learner.reports import token_means, update_figures
from tasks.learner.reward_moments import record_moments
from tasks.prompts import dataset_of, heldout_refs, prompts_of
from tasks.rewards.registry import Rewards
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.run_context import RunContext
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.policies.base import Turn
from tasks.scheduling.queue_state import QueueState, finish_round

Figures = dict[str, float]
CLOCKED = ("train/busy_s",)  # figures that depend on the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """A step that has been trained."""

    step: int  # from 1
    groups: tuple[Group, ...]  # trained ones
    figures: Figures  # by the names that a run's metrics have


class InProcess:
    """An object of this process behind the calls of `tasks.cluster.actors.Remote`; they block, for
    nobody else works meanwhile."""

    name = "learner-0"

    def __init__(self, served: object) -> None:
        self._served = served

    async def call(
        self, method: str, *args: object, deadline_s: float
    ) -> Any:  # Any: what the method returns
        return getattr(self._served, method)(*args)


class ScoredAtOnce:
    """The reward stage of a round (`ScoreFeed`)."""

    def __init__(self, rewards: Rewards, prompts: Mapping[str, Prompt]) -> None:
        self._rewards, self._prompts = rewards, prompts
        self._scores = Mailbox[Score]()

    async def publish(self, generated: Sequence[Generated]) -> None:
        for response in generated:
            self._scores.put(self._rewards.score(self._prompts[response.prompt_id], response))

    async def scored(self, wait_s: float) -> list[Score]:
        return await self._scores.take(wait_s)


class StaleRun:
    """One run; `engine` may have played others before."""

    def __init__(
        self,
        config: RunConfig,
        lag: int,
        engine: Engine,
        rewards: Rewards,
        model_path: str,
        directory: Path,
    ) -> None:
        """directory: empty, for weights and records."""
        self._config, self._lag, self._engine, self._rewards = config, lag, engine, rewards
        self._context = _context_of(config, engine.name, model_path, directory)
        actor = LearnerActor(config.learner, model_path, 0, 1, (), device="cpu")
        self._learner = RemoteLearner(
            InProcess(actor),  # type: ignore[arg-type]  # as much of it as is called
            config.deadlines.learner_call_s,
        )
        self._versions = KeptVersions(self._learner, directory / "weights", lag)
        self._store = Store.open(str(directory / "records"))
        self._state = QueueState()

    async def steps(self, num_steps: int) -> AsyncIterator[PlayedStep]:
        """So many first steps, each as soon as it is trained; once, before anything else."""
        await self._versions.keep(0)
        for step in range(1, num_steps + 1):
            yield await self._step(step)

    async def heldout_reward(self, version: int) -> float:
        """Mean reward on the held-out prompts, asked of the newest version after its step."""
        asked = self._config.evaluation
        plan = RoundPlan(
            step=version + 1,
            kind="evaluate",
            is_evaluation=True,
            prompts=heldout_refs(self._context, asked.num_prompts),
            launch_per_prompt=asked.responses_per_prompt,
            accept_prompts=asked.num_prompts,
            accept_per_prompt=asked.responses_per_prompt,
        )
        played = await self._play(plan, version)
        return _mean([_mean(_rewards_of(group)) for group in played.groups])

    async def _step(self, step: int) -> PlayedStep:
        version = due_version(step, self._lag)
        plan = self._planned(step)
        played = await self._play(plan, version)
        self._state = finish_round(self._state, plan, played)
        trained = await self._train(step, version, played.groups)
        await self._versions.keep(step)
        lags = lag_figures(step, played.groups, recomputes=False)
        figures = _round_figures(played.groups) | lags | trained
        return PlayedStep(step=step, groups=played.groups, figures=figures)

    def _planned(self, step: int) -> RoundPlan:
        config, dataset = self._config, dataset_of(self._context)
        plan = config.scheduling.plan_round(
            Turn(
                state=self._state,
                batch=config.batch,
                step=step,
                num_steps=config.num_steps,
                domains=dataset.domains,
                seed=dataset.order_seed(config.seed),
            )
        )
        assert plan is not None, "a planned step has a round"
        return plan

    async def _play(self, plan: RoundPlan, version: int) -> RoundResult:
        """A round whose tokens this version alone samples."""
        config = self._config
        prompts = prompts_of(self._context, plan.candidates)
        await self._engine.load_weights(self._versions[version], ())
        return await drive_round(
            RoundInputs(
                plan=plan,
                versions=range(version, version + 1),
                prompts=prompts,
                scheduler=config.scheduling.scheduler(plan),
                engines=[self._engine],
                feed=ScoredAtOnce(self._rewards, prompts),
                sampling=config.sampling,
                recorded=(),
                seed=config.seed,
                deadline_s=config.deadlines.progress_s,
                on_finished=lambda generated: None,
                on_accept=_taken_from_the_result,
                attempt=plan.step,
            )
        )

    async def _train(self, step: int, version: int, groups: tuple[Group, ...]) -> Figures:
        """The step's updates, as a run makes them; the figures that a run tells of them."""
        planned = RoundToTrain(
            step=step, versions=range(version, version + 1), num_groups=len(groups)
        )
        record_moments(groups, self._store, step, self._config.learner)
        accumulated = await accumulate_round(
            [self._learner], _said(groups), self._store, planned, self._config.learner
        )
        (update,) = await update_all([self._learner], step)
        total = accumulated.ranks[0] + update.computed
        figures = token_means(total) | update_figures(update)
        return {name: value for name, value in figures.items() if name not in CLOCKED}


def _context_of(
    config: RunConfig, engine_name: str, model_path: str, directory: Path
) -> RunContext:
    return RunContext(
        run_id="stale-learning",
        artifact_root=str(directory),
        weights_dir=str(directory),
        seed=config.seed,
        task=config.task,
        model_path=model_path,
        rewards=config.rewards,
        reward_workers=1,
        max_infra_fraction=config.max_infra_fraction,
        engine=config.engine,
        sampling=config.sampling,
        learner=config.learner,
        scheduling=config.scheduling,
        stream_trainer=config.stream_trainer,
        gate=config.gate,
        deadlines=config.deadlines,
        engines=(engine_name,),
        learners=(InProcess.name,),
        devices={},
    )


async def _said(groups: Sequence[Group]) -> AsyncIterator[Group]:
    for group in groups:
        yield group


async def _taken_from_the_result(group: Group) -> None:
    pass


def _round_figures(groups: Sequence[Group]) -> Figures:
    lengths = [response.generated.num_sampled for group in groups for response in group.responses]
    return {
        "reward/mean": _mean([reward for group in groups for reward in _rewards_of(group)]),
        "rollout/response_tokens_mean": _mean(lengths),
    }


def _rewards_of(group: Group) -> list[float]:
    """Verdicts; a response without one has none."""
    scores = [response.score for response in group.responses if response.score is not None]
    return [score.reward for score in scores if score.reward is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
