"""Checks that a scheduling policy keeps what a run relies on, in random simulated rounds.

    plan_round ─▶ scheduler ─▶ Launch ... ─▶ responses end, fail and vanish in random order
        ▲                                                       │
        └── state, over JSON ◀── finish_round ◀── decisions ◀───┘

Leaves out engines, and policies whose rounds overlap training: their publications need a learner.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from artifacts.conformance import RuleBroken, RuleCheck, RuleFindings, shown
from artifacts.records import Outcome
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    Abort,
    AcceptGroup,
    Carry,
    CloseRound,
    Decision,
    Defer,
    Drop,
    Event,
    Filter,
    Finished,
    Launch,
    Lost,
    RoundPlan,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.policies.base import PlanningInputs, Policy
from tasks.scheduling.queue_state import QueueState, RoundEnd, finish_round

NUM_STEPS, MAX_DRAIN = 6, 40  # rounds of a simulated run, and those that its drain may take
MAX_EVENTS = 20_000  # of a round
DOMAINS = ("add", "letters", "rare") * 20


class PolicyRule(StrEnum):
    """The rules, in the order in which they are reported."""

    PLANS = "the same state gives the same plan, of prompts that are there"
    DECIDES = "decisions are about the round's own prompts and responses"
    REPEATS = "the same events give the same decisions"
    ENDS = "every round ends, whatever order responses come in"
    ACCOUNTS = "every prompt is trained once, given up, or still waits"
    GROUPS = "a trained group has its number of scored responses"
    STATE = "the state between steps is the same after JSON"
    RUN_ENDS = "the run ends after its last step and the drain"


@dataclass
class _PlayedRound:
    """One round as it is played: responses by state, and the fate of each prompt."""

    plan: RoundPlan
    running: set[tuple[str, int]] = field(default_factory=set)
    unscored: set[tuple[str, int]] = field(default_factory=set)
    rewards: dict[tuple[str, int], float] = field(default_factory=dict)
    fates: dict[str, Decision] = field(default_factory=dict)  # in the order of the decisions
    groups: list[AcceptGroup] = field(default_factory=list)
    is_closed: bool = False

    def carry_out(self, decisions: Sequence[Decision]) -> None:
        """Take one answer of the scheduler. Raises RuleBroken for a decision without sense."""
        known = {ref.prompt_id for ref in self.plan.candidates}
        for decision in decisions:
            if isinstance(decision, CloseRound):
                self.is_closed = True
                continue
            if decision.prompt_id not in known:
                raise RuleBroken(
                    f"a decision must be about a prompt of the plan, got {shown(decision)}; take"
                    " plan.prompts, or plan.reserve"
                )
            match decision:
                case Launch(prompt_id=prompt_id, index=index):
                    name = (prompt_id, index)
                    if name in self.running | self.unscored or name in self.rewards:
                        raise RuleBroken(
                            f"a response must be launched once, {name} was launched again; take the"
                            " next index"
                        )
                    self.running.add(name)
                case Abort(prompt_id=prompt_id, indices=indices):
                    self.running -= {(prompt_id, index) for index in indices}
                case AcceptGroup() | Defer() | Drop() | Filter() | Carry():
                    if decision.prompt_id in self.fates:
                        raise RuleBroken(
                            f"a prompt must be decided once in a round, got {shown(decision)} after"
                            f" {shown(self.fates[decision.prompt_id])}; remember what is decided"
                        )
                    self.fates[decision.prompt_id] = decision
                    self.groups += [decision] if isinstance(decision, AcceptGroup) else []

    def next_event(self, rng: random.Random, trouble: float) -> Event | None:
        """The end of a random response, or its verdict; None if there is neither. trouble: share of
        responses that vanish with their engine, and of those without a verdict."""
        may_score = not (self.plan.scores_last and self.running)
        names = sorted(self.running) + (sorted(self.unscored) if may_score else [])
        if not names:
            return None
        prompt_id, index = name = rng.choice(names)
        if name in self.running:
            if rng.random() < trouble:
                self.running.remove(name)
                return Lost(prompt_id=prompt_id, index=index)
            self.running.remove(name)
            self.unscored.add(name)
            return Finished(prompt_id=prompt_id, index=index, num_tokens=rng.randint(1, 999))
        self.unscored.remove(name)
        if rng.random() < trouble:
            return Scored(prompt_id=prompt_id, index=index, outcome=Outcome.INFRA, reward=None)
        reward = self.rewards[name] = float(rng.random() < 0.5)
        outcome = Outcome.OK if reward else Outcome.WRONG
        return Scored(prompt_id=prompt_id, index=index, outcome=outcome, reward=reward)

    def end(self) -> RoundEnd:
        def those(kind: type[Decision]) -> list[str]:
            return [name for name, fate in self.fates.items() if isinstance(fate, kind)]

        carried = [fate for fate in self.fates.values() if isinstance(fate, Carry)]
        return RoundEnd(
            accepted=those(AcceptGroup),
            deferred=those(Defer),
            dropped=those(Drop),
            filtered=those(Filter),
            carried=carried,
            answer_tokens=dict.fromkeys(those(AcceptGroup), 100),
        )


def check_policy(policy: Policy, num_runs: int = 24) -> tuple[RuleCheck, ...]:
    """Play so many random runs by the policy. Raises ValueError for one whose rounds overlap
    training."""
    if policy.algebra(BatchConfig(prompts_per_step=2, responses_per_prompt=2)).is_off_policy:
        raise ValueError(
            f"a policy can be checked if its rounds train what they ask, {policy.kind!r} carries"
            " prompts over publications; check it in a run of preset tiny-async"
        )
    findings = RuleFindings(PolicyRule)
    for seed in range(num_runs):
        _play_run(policy, findings, random.Random(seed), seed)
    return findings.checks


def _play_run(policy: Policy, findings: RuleFindings, rng: random.Random, seed: int) -> None:
    batch = BatchConfig(prompts_per_step=rng.randint(1, 5), responses_per_prompt=rng.randint(2, 4))
    trouble = rng.choice((0.0, 0.0, 0.1, 0.4))
    state, gone = QueueState(), set[str]()
    for step in range(1, NUM_STEPS + MAX_DRAIN + 2):
        turn = PlanningInputs(
            state=state, batch=batch, step=step, num_steps=NUM_STEPS, domains=DOMAINS, seed=seed
        )
        plan: RoundPlan | None = None
        played: _PlayedRound | None = None
        with findings.trying(PolicyRule.PLANS):
            plan = policy.plan_round(turn)
            _check_plan(plan, policy.plan_round(turn))
        if plan is None or findings.is_broken(PolicyRule.PLANS):
            break
        with findings.trying(PolicyRule.DECIDES):
            played = _played(policy, plan, findings, rng, trouble)
        if played is None or not played.is_closed:
            return
        with findings.trying(PolicyRule.GROUPS):
            for group in played.groups:
                _check_group(group, played)
        with findings.trying(PolicyRule.ACCOUNTS):
            end = played.end()
            trained = {*end.accepted, *end.dropped, *end.filtered}
            if again := trained & gone:
                raise RuleBroken(f"a prompt must be trained once, {sorted(again)} came again")
            gone |= trained
            state = finish_round(state, plan, end)
        if findings.is_broken(PolicyRule.ACCOUNTS):
            return
        with findings.trying(PolicyRule.STATE):
            kept = QueueState.from_json(json.loads(json.dumps(state.to_json())))
            if kept != state:
                raise RuleBroken(
                    f"the state must be the same after JSON, {shown(state)} became {shown(kept)}"
                )
    with findings.trying(PolicyRule.RUN_ENDS):
        if plan is not None and not findings.is_broken(PolicyRule.PLANS):
            raise RuleBroken(
                f"plan_round must return None once all is trained, it still plans at step {step} of"
                f" {NUM_STEPS}; ask turn.is_after_last, and play what waits"
            )


def _check_plan(plan: RoundPlan | None, again: RoundPlan | None) -> None:
    if plan != again:
        raise RuleBroken(
            "plan_round must give the same plan for the same turn, the second call gave another;"
            " keep nothing between calls: all that a policy remembers is turn.state"
        )
    names = [ref.prompt_id for ref in plan.candidates] if plan else []
    if plan and (not plan.prompts or len(set(names)) != len(names)):
        raise RuleBroken(
            f"a plan must ask prompts, each once, got {shown(names)}; take them from turn.upcoming"
        )


def _check_group(group: AcceptGroup, played: _PlayedRound) -> None:
    size = played.plan.accept_per_prompt
    scored = {index for name, index in played.rewards if name == group.prompt_id}
    if len(group.indices) != size or len(set(group.indices) & scored) != size:
        raise RuleBroken(
            f"a trained group must have {size} responses with a reward, got indices"
            f" {group.indices} where {sorted(scored)} have one; wait for their Scored events"
        )


def _played(
    policy: Policy, plan: RoundPlan, findings: RuleFindings, rng: random.Random, trouble: float
) -> _PlayedRound:
    """Play a round to its end, and beside it the same events with a second scheduler."""
    schedulers: list[RoundScheduler] = [policy.scheduler(plan), policy.scheduler(plan)]
    played = _PlayedRound(plan=plan)
    decisions, again = (scheduler.start() for scheduler in schedulers)
    for _ in range(MAX_EVENTS):
        with findings.trying(PolicyRule.REPEATS):
            if decisions != again:
                raise RuleBroken(
                    f"the same events must give the same decisions, {shown(decisions)} became"
                    f" {shown(again)}; draw no random numbers, read no clock, share no state"
                    " between schedulers"
                )
        played.carry_out(decisions)
        event = None if played.is_closed else played.next_event(rng, trouble)
        if event is None:
            break
        decisions, again = (scheduler.handle(event) for scheduler in schedulers)
    with findings.trying(PolicyRule.ENDS):
        if not played.is_closed:
            raise RuleBroken(
                f"a round must end with CloseRound, step {plan.step} has nothing running and waits:"
                f" {schedulers[0].waiting_for()}; launch lost responses again, and drop or close"
                " what cannot be completed"
            )
    return played
