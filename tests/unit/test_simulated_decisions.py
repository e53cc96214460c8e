"""A simulated round decides what a driver decides that hears of the same things in the same
order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from simulated_run_factories import make_run

from artifacts.records import (
    Generated,
    Outcome,
    Request,
    Running,
    Score,
    VersionSpan,
    WeightsRef,
    response_id,
)
from research.spot.simulated_rounds import round_inputs
from tasks.engines.base import Attestation, EngineStats
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.driver import drive_round
from tasks.scheduling.events import Decision, Event, Finished, RoundPlan, RoundScheduler, Scored
from tasks.scheduling.policies.base import Policy
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.simulation.steps import play

Item = TypeVar("Item")
Log = list[tuple[Event | None, list[Decision]]]  # what was heard, and the answer


class Written:
    """A scheduler whose events and decisions are written down."""

    def __init__(self, scheduler: RoundScheduler, log: Log) -> None:
        self._scheduler, self._log = scheduler, log

    def start(self) -> list[Decision]:
        return self._write(None, self._scheduler.start())

    def handle(self, event: Event) -> list[Decision]:
        return self._write(event, self._scheduler.handle(event))

    def waiting_for(self) -> str:
        return self._scheduler.waiting_for()

    def _write(self, event: Event | None, decisions: list[Decision]) -> list[Decision]:
        self._log.append((event, list(decisions)))
        return decisions


@dataclass
class Script:
    """What happens next: events, each when the one before it was answered, whatever the time."""

    events: list[Event]
    log: Log  # of the scheduler that hears of them; its first entry is the start
    place: int = 0
    submitted: dict[str, Request] = field(default_factory=dict)
    aborted: list[Generated] = field(default_factory=list)

    def next_finished(self) -> list[Generated]:
        event = self._next()
        if not isinstance(event, Finished):
            return []
        request = self.submitted.pop(response_id(event.prompt_id, event.index), None)
        if request is None:
            return []
        self.place += 1
        return [answered(request, event.num_tokens)]

    def next_scored(self) -> list[Score]:
        event = self._next()
        if not isinstance(event, Scored):
            return []
        self.place += 1
        return [
            Score(
                prompt_id=event.prompt_id, index=event.index, reward=event.reward,
                outcome=Outcome(event.outcome), detail="", scorer="", started_s=0, finished_s=0,
            )
        ]  # fmt: skip

    def _next(self) -> Event | None:
        is_answered = len(self.log) - 1 == self.place
        return self.events[self.place] if is_answered and self.place < len(self.events) else None


@dataclass
class ScriptedEngine:
    """Answers in the order of a script. Takes no time of its own."""

    script: Script
    name: str = "engine-0"

    async def submit(self, requests: Sequence[Request]) -> None:
        self.script.submitted |= {request.response_id: request for request in requests}

    async def collect(self, wait_s: float) -> list[Generated]:
        return await polled(self._collect, wait_s)

    def _collect(self) -> list[Generated]:
        aborted, self.script.aborted = self.script.aborted, []
        return aborted or self.script.next_finished()

    async def abort(self, response_ids: Iterable[str]) -> None:
        known = [name for name in response_ids if name in self.script.submitted]
        gone = [self.script.submitted.pop(name) for name in known]
        self.script.aborted += [
            replace(answered(request, 1), finish_reason="aborted") for request in gone
        ]

    async def load_weights(
        self, weights: WeightsRef, probes: object, running: Running = Running.DROP
    ) -> Attestation:
        raise AssertionError("a round loads nothing")

    async def stats(self) -> EngineStats:
        raise AssertionError("nobody frees devices")

    async def sleep(self) -> None:
        """There is nothing to give back."""

    def close(self) -> None:
        """There is nothing to close."""


@dataclass
class ScriptedFeed:
    """Tells verdicts in the order of a script."""

    script: Script

    async def publish(self, generated: Sequence[Generated]) -> None:
        """The verdicts are known."""

    async def scored(self, wait_s: float) -> list[Score]:
        return await polled(self.script.next_scored, wait_s)


async def polled(ask: Callable[[], list[Item]], wait_s: float) -> list[Item]:
    """The answer, as soon as there is one, or nothing after wait_s."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + wait_s
    while not (found := ask()) and clock() < until_s:
        await asyncio.sleep(0.01)
    return found


def answered(request: Request, num_tokens: int) -> Generated:
    return Generated(
        prompt_id=request.prompt_id, index=request.index, token_ids=(1,) * num_tokens,
        logprobs=(0.0,) * num_tokens, versions=(VersionSpan(version=0, num_tokens=num_tokens),),
        finish_reason="stop", text="", engine="engine-0", submitted_s=0, first_token_s=0,
        finished_s=0, attempt=request.attempt,
    )  # fmt: skip


def logs_of(policy: Policy) -> tuple[list[RoundPlan], list[Log]]:
    """Plans, events and decisions of every round of a simulated run."""
    plans: list[RoundPlan] = []
    logs: list[Log] = []

    def watch(plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
        plans.append(plan)
        logs.append([])
        return Written(scheduler, logs[-1])

    play(make_run(policy=policy, num_steps=5, watch=watch))
    return plans, logs


@pytest.mark.parametrize("policy", [SyncConfig(), TailBatchingConfig()], ids=str)
def test_the_same_events_lead_a_driver_to_the_same_decisions(policy: Policy) -> None:
    plans, logs = logs_of(policy)
    for plan, log in zip(plans, logs, strict=True):
        again: Log = []
        script = Script([event for event, _ in log if event is not None], again)
        inputs = round_inputs(
            plan,
            Written(policy.scheduler(plan), again),
            [ScriptedEngine(script)],
            2_000,
            feed=ScriptedFeed(script),
            versions=range(1),
            deadline_s=1.0,
        )
        result = run_virtual(drive_round(inputs))
        assert again == log
        assert len(result.groups) == plan.accept_prompts
