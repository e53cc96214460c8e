"""Rounds, engines and whole simulated runs to test the scheduling with."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import count

from artifacts.records import Generated, Group, Prompt, Response, WeightsRef, response_id
from research.spot import simulated_rounds
from research.spot.simulated_rounds import (
    SimulatedRound,
    blank_prompts,
    round_inputs,
)
from tasks.engines.base import EngineLost
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.writers import LengthModel
from tasks.rounds.driver import drive_round
from tasks.rounds.elastic_engines import ElasticWorkers
from tasks.rounds.records import RoundResult, ScoreFeed
from tasks.scheduling.balancing import BalancingConfig
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    AcceptGroup,
    Decision,
    Event,
    Launch,
    PromptRef,
    Quota,
    RoundPlan,
    RoundScheduler,
)
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.scheduling.stream_training import (
    FreesDevices,
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)

ENGINE = SimulatedEngineConfig(
    max_batch=64, kv_capacity_tokens=60_000, lengths=LengthModel(median_tokens=120, sigma=1.0)
)


def make_plan(
    kind: str = "sync",
    domains: Sequence[str] = ("a", "a"),
    accept_prompts: int | None = None,
    accept_per_prompt: int = 2,
    launch_per_prompt: int | None = None,
    quotas: Mapping[str, int] | None = None,
    max_replacements: int = 4,
    reserve: Sequence[str] = (),
) -> RoundPlan:
    """Prompts are named p0, p1, ..., those of the reserve, given by domain, r0, r1, ...; without
    quotas any domain may have all groups."""
    accept_prompts = len(domains) if accept_prompts is None else accept_prompts
    bounds = (
        {domain: (slots, slots) for domain, slots in quotas.items()}
        if quotas
        else dict.fromkeys(domains, (0, accept_prompts))
    )
    return RoundPlan(
        step=1,
        kind=kind,
        prompts=tuple(
            PromptRef(prompt_id=f"p{place}", domain=domain) for place, domain in enumerate(domains)
        ),
        launch_per_prompt=launch_per_prompt or accept_per_prompt,
        accept_prompts=accept_prompts,
        accept_per_prompt=accept_per_prompt,
        quotas=tuple(
            Quota(domain=domain, least=least, most=most) for domain, (least, most) in bounds.items()
        )
        if kind == "short"
        else (),
        max_replacements=max_replacements,
        num_queued=len(domains) if kind in ("long", "drain") else 0,
        reserve=tuple(
            PromptRef(prompt_id=f"r{place}", domain=domain) for place, domain in enumerate(reserve)
        ),
    )


def plan_round(
    state: QueueState,
    batch: BatchConfig,
    policy: Policy,
    *,
    domains: Sequence[str],
    seed: int,
    step: int,
    num_steps: int,
    unfit: Collection[int] = (),
) -> RoundPlan | None:
    turn = PlanningInputs(
        state=state,
        batch=batch,
        step=step,
        num_steps=num_steps,
        domains=domains,
        seed=seed,
        unfit=unfit,
    )
    return policy.plan_round(turn)


def make_engines(count: int, config: SimulatedEngineConfig = ENGINE) -> list[SimulatedEngine]:
    return simulated_rounds.make_engines(count, config)


def make_prompts(plan: RoundPlan, num_tokens: int = 20) -> dict[str, Prompt]:
    return blank_prompts(plan.candidates, num_tokens)


class CarriedOut:
    """A scheduler that must not be asked before its last answer is carried out."""

    def __init__(self, scheduler: RoundScheduler, recorded: Sequence[Response]) -> None:
        self._scheduler = scheduler
        self._recorded = {response.generated.response_id for response in recorded}
        self.owed: set[str] = set()  # prompt and response ids

    def start(self) -> list[Decision]:
        return self._owe(self._scheduler.start())

    def handle(self, event: Event) -> list[Decision]:
        assert not self.owed, f"asked again before these were carried out: {sorted(self.owed)}"
        return self._owe(self._scheduler.handle(event))

    def waiting_for(self) -> str:
        return self._scheduler.waiting_for()

    def _owe(self, decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            match decision:
                case Launch(prompt_id=prompt_id, index=index):
                    self.owed |= {response_id(prompt_id, index)} & self._recorded
                case AcceptGroup(prompt_id=prompt_id):
                    self.owed.add(prompt_id)
        self._recorded -= self.owed
        return decisions


def stands_in(generated: Generated, versions: range) -> bool:
    """Whether a recorded response takes the place of its launch."""
    is_allowed = all(span.version in versions for span in generated.versions)
    return generated.finish_reason != "aborted" and is_allowed


async def play(
    plan: RoundPlan,
    engines: Sequence[SimulatedEngine],
    feed: ScoreFeed | None = None,
    recorded: Sequence[Response] = (),
    max_response_tokens: int = 2000,
    deadline_s: float = 1000.0,
    accepted: list[Group] | None = None,
    trainer: FreesDevices | None = None,
    freed: list[ScaleDown] | None = None,
    free_s: float = 0.0,
    attempt: int = 0,
    policy: Policy | None = None,
    elastic_workers: ElasticWorkers | None = None,
    balancing: BalancingConfig | None = None,
    empty_s: float = math.inf,
) -> RoundResult:
    versions = range(plan.step - 1, plan.step)
    replayed = [response for response in recorded if stands_in(response.generated, versions)]
    scheduler = CarriedOut((policy or TailBatchingConfig()).scheduler(plan), replayed)

    def finish(generated: Sequence[Generated]) -> None:
        scheduler.owed -= {response.response_id for response in generated}

    async def keep(group: Group) -> None:
        scheduler.owed.discard(group.prompt.prompt_id)
        if accepted is not None:
            accepted.append(group)

    async def free(decision: ScaleDown) -> None:
        await asyncio.sleep(free_s)
        if freed is not None:
            freed.append(decision)

    inputs = round_inputs(
        plan,
        scheduler,
        engines,
        max_response_tokens,
        prompts=make_prompts(plan),
        feed=feed or SimulatedFeed(SimulatedRewardConfig()),
        recorded=recorded,
        deadline_s=deadline_s,
        empty_s=empty_s,
        on_finished=finish,
        on_accept=keep,
        stream_trainer=trainer or StreamTrainer(StreamTrainerConfig(), (), 0),
        on_freed=free,
        attempt=attempt,
        elastic_workers=elastic_workers,
        balancing=balancing or BalancingConfig(),
    )
    return await drive_round(inputs)


async def simulate_run(
    batch: BatchConfig,
    scheduling: Policy,
    *,
    num_steps: int,
    engines: Sequence[SimulatedEngine],
    domains: Sequence[str],
    seed: int = 0,
    reward: SimulatedRewardConfig | None = None,
    max_response_tokens: int = 2000,
) -> list[SimulatedRound]:
    """All rounds of a run, the drain included; each step ends with a new version in every engine
    that lives."""
    alive = list(engines)

    state, loop = QueueState(), asyncio.get_running_loop()
    rounds: list[SimulatedRound] = []
    for step in count(1):
        kept = QueueState.from_json(json.loads(json.dumps(state.to_json())))
        plan = plan_round(
            kept, batch, scheduling, domains=domains, seed=seed, step=step, num_steps=num_steps
        )
        if plan is None:
            break
        started_s = loop.time()
        feed = SimulatedFeed(reward or SimulatedRewardConfig())
        result = await play(
            plan, alive, feed, max_response_tokens=max_response_tokens, policy=scheduling
        )
        state = finish_round(state, plan, result)
        rollout_s = loop.time() - started_s
        rounds.append(SimulatedRound(plan=plan, result=result, state=state, rollout_s=rollout_s))
        alive = await publish(alive, step)
    return rounds


async def publish(engines: Sequence[SimulatedEngine], version: int) -> list[SimulatedEngine]:
    """Load a version everywhere; the engines that live. Fails if a round left something there."""
    alive = []
    for engine in engines:
        try:
            assert (await engine.stats()).progress == {}, "a round leaves its engines idle"
            assert await engine.collect(0.0) == [], "a round collects all that it asked for"
            await engine.load_weights(WeightsRef(version=version, path="", digest=""), probes=())
        except EngineLost:
            continue
        alive.append(engine)
    return alive
