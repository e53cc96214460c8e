"""Rounds, engines and whole simulated runs to test the scheduling with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.records import Group, Prompt, Response, RoundKind, WeightsRef
from tasks.engines.base import EngineLost
from tasks.engines.driver import drive_round
from tasks.engines.round_records import RoundInputs, RoundResult, ScoreFeed
from tasks.engines.sampling import SamplingConfig
from tasks.engines.simulated import LengthModel, SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulated_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.scheduling.events import PromptRef, Quota, RoundPlan
from tasks.scheduling.rounds import (
    BatchConfig,
    QueueState,
    SyncConfig,
    TailBatchingConfig,
    finish_round,
    make_scheduler,
    plan_round,
)
from tasks.scheduling.stream_training import ScaleDown, StreamTrainer, StreamTrainerConfig

ENGINE = SimulatedEngineConfig(max_batch=64, kv_capacity_tokens=60_000, lengths=LengthModel(median_tokens=120, sigma=1.0))


def make_plan(
    kind: RoundKind = "sync",
    domains: Sequence[str] = ("a", "a"),
    accept_prompts: int | None = None,
    accept_per_prompt: int = 2,
    launch_per_prompt: int | None = None,
    quotas: Mapping[str, int] | None = None,
    max_replacements: int = 4,
    reserve: Sequence[str] = (),
) -> RoundPlan:
    """Prompts are named p0, p1, ..., those of the reserve, given by domain, r0, r1, ...; without quotas any domain may have all groups."""
    accept_prompts = len(domains) if accept_prompts is None else accept_prompts
    bounds = {domain: (slots, slots) for domain, slots in quotas.items()} if quotas else dict.fromkeys(domains, (0, accept_prompts))
    return RoundPlan(
        step=1,
        kind=kind,
        prompts=tuple(PromptRef(prompt_id=f"p{place}", domain=domain) for place, domain in enumerate(domains)),
        launch_per_prompt=launch_per_prompt or accept_per_prompt,
        accept_prompts=accept_prompts,
        accept_per_prompt=accept_per_prompt,
        quotas=tuple(Quota(domain=domain, least=least, most=most) for domain, (least, most) in bounds.items()) if kind == "short" else (),
        max_replacements=max_replacements,
        reserve=tuple(PromptRef(prompt_id=f"r{place}", domain=domain) for place, domain in enumerate(reserve)),
    )


def make_engines(count: int, config: SimulatedEngineConfig = ENGINE) -> list[SimulatedEngine]:
    return [SimulatedEngine(f"engine-{place}", config) for place in range(count)]


def make_prompts(plan: RoundPlan, num_tokens: int = 20) -> dict[str, Prompt]:
    return {
        ref.prompt_id: Prompt(prompt_id=ref.prompt_id, domain=ref.domain, token_ids=(1,) * num_tokens, gold="", text="")
        for ref in plan.candidates
    }


async def play(
    plan: RoundPlan,
    engines: Sequence[SimulatedEngine],
    feed: ScoreFeed | None = None,
    recorded: Sequence[Response] = (),
    max_response_tokens: int = 2000,
    deadline_s: float = 1000.0,
    accepted: list[Group] | None = None,
    trainer: StreamTrainer | None = None,
    freed: list[ScaleDown] | None = None,
) -> RoundResult:
    async def keep(group: Group) -> None:
        if accepted is not None:
            accepted.append(group)

    async def free(decision: ScaleDown) -> None:
        if freed is not None:
            freed.append(decision)

    inputs = RoundInputs(
        plan=plan,
        prompts=make_prompts(plan),
        scheduler=make_scheduler(plan),
        engines=engines,
        feed=feed or SimulatedFeed(SimulatedRewardConfig()),
        sampling=SamplingConfig(max_response_tokens=max_response_tokens),
        recorded=recorded,
        seed=0,
        deadline_s=deadline_s,
        on_finished=lambda generated: None,
        on_accept=keep,
        stream_trainer=trainer or StreamTrainer(StreamTrainerConfig(), (), 0),
        on_freed=free,
    )
    return await drive_round(inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round that was played in a simulated run."""

    plan: RoundPlan
    result: RoundResult
    state: QueueState  # after it
    rollout_s: float


async def simulate_run(
    batch: BatchConfig,
    scheduling: SyncConfig | TailBatchingConfig,
    *,
    num_steps: int,
    engines: Sequence[SimulatedEngine],
    domains: Sequence[str],
    seed: int = 0,
    reward: SimulatedRewardConfig | None = None,
    max_response_tokens: int = 2000,
) -> list[Round]:
    """All rounds of a run, the drain included; each step ends with a new version in every engine that lives."""
    rounds: list[Round] = []
    state = QueueState()
    loop = asyncio.get_running_loop()
    while True:
        step = len(rounds) + 1
        plan = plan_round(state, batch, scheduling, domains=domains, seed=seed, step=step, num_steps=num_steps)
        if plan is None:
            return rounds
        started_s = loop.time()
        feed = SimulatedFeed(reward or SimulatedRewardConfig())
        result = await play(plan, engines, feed, max_response_tokens=max_response_tokens)
        accepted = [group.prompt.prompt_id for group in result.groups]
        state = finish_round(state, plan, accepted=accepted, deferred=result.deferred, dropped=result.dropped, filtered=result.filtered)
        state = QueueState.from_json(json.loads(json.dumps(state.to_json())))
        rounds.append(Round(plan=plan, result=result, state=state, rollout_s=loop.time() - started_s))
        engines = await publish(engines, step)


async def publish(engines: Sequence[SimulatedEngine], version: int) -> list[SimulatedEngine]:
    """Load a version everywhere; the engines that live. Fails if a round left something running."""
    alive = []
    for engine in engines:
        try:
            await engine.load_weights(WeightsRef(version=version, path="", digest=""), seed=0, probes=())
        except EngineLost:
            continue
        alive.append(engine)
    return alive
