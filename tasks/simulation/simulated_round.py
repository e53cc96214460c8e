"""Plays rounds on simulated replicas, for every experiment and test on a virtual clock.

    next_plan(state, step) ──▶ plan ──▶ play ──▶ result ──▶ state after it ──▶ next_plan ...

The driver, its router and the policies are the real ones; engines, prompts and verdicts are made
up. Leaves out the planning, the figures of a round, and all training.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from artifacts.records import Generated, Group, Prompt, WeightsRef
from tasks.engines.base import Engine, SamplingConfig
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.rounds.records import RoundInputs, RoundResult
from tasks.scheduling.events import PromptRef, RoundPlan, RoundScheduler
from tasks.scheduling.queue_state import QueueState, finish_round

PROMPT_TOKENS = 200
DEADLINE_S = 1e6  # virtual seconds

NextPlan = Callable[[QueueState, int], RoundPlan | None]  # of a step, from 1; None ends the run
Play = Callable[[RoundPlan], Awaitable[RoundResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRound:
    """A round that was played."""

    plan: RoundPlan
    result: RoundResult
    state: QueueState  # where the prompts stand after it
    rollout_s: float  # virtual seconds


async def play_rounds(next_plan: NextPlan, play: Play) -> AsyncIterator[SimulatedRound]:
    """Play the rounds of a run, one after the other, from a state without a queue."""
    state = QueueState()
    loop = asyncio.get_running_loop()
    step = 1
    while (plan := next_plan(state, step)) is not None:
        started_s = loop.time()
        result = await play(plan)
        state = finish_round(state, plan, result)
        yield SimulatedRound(
            plan=plan, result=result, state=state, rollout_s=loop.time() - started_s
        )
        step += 1


def make_engines(num_engines: int, config: SimulatedEngineConfig) -> list[SimulatedEngine]:
    """Make replicas named engine-0, engine-1, ..."""
    return [SimulatedEngine(f"engine-{place}", config) for place in range(num_engines)]


def blank_prompts(refs: Iterable[PromptRef], num_tokens: int = PROMPT_TOKENS) -> dict[str, Prompt]:
    """Returns prompts by id, each of num_tokens placeholder tokens and without text."""
    return {
        ref.prompt_id: Prompt(
            prompt_id=ref.prompt_id,
            domain=ref.domain,
            token_ids=(1,) * num_tokens,
            gold="",
            text="",
        )
        for ref in refs
    }


def round_inputs(
    plan: RoundPlan,
    scheduler: RoundScheduler,
    engines: Sequence[Engine],
    max_response_tokens: int,
    **others: Any,  # Any: fields of RoundInputs
) -> RoundInputs:
    """Returns the inputs of a round over these engines. others: fields of `RoundInputs` that differ
    from the defaults here."""
    inputs = RoundInputs(
        plan=plan,
        versions=plan.versions,
        prompts=blank_prompts(plan.candidates),
        scheduler=scheduler,
        engines=engines,
        feed=SimulatedFeed(SimulatedRewardConfig()),
        sampling=SamplingConfig(max_response_tokens=max_response_tokens),
        recorded=(),
        seed=0,
        deadline_s=DEADLINE_S,
        on_finished=_forget,
        on_accept=_train,
    )
    return replace(inputs, **others)


async def load_version(engines: Sequence[Engine], version: int) -> None:
    """Load weights of this version into every engine."""
    for engine in engines:
        await engine.load_weights(WeightsRef(version=version, path="", digest=""), probes=())


def _forget(generated: Sequence[Generated]) -> None:
    """Ignore the responses: nothing reads single ones here."""


async def _train(group: Group) -> None:
    """Training takes no time."""
