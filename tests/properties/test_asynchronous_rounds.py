"""Invariants 1, 2 and 13 (docs/architecture.md) of asynchronous rounds, whatever comes first:
responses that finish, verdicts that fail, engines that die, versions that are published, kills.

Every property is tried on 400 orders of events; on 10,000 with

    pytest tests/properties/test_asynchronous_rounds.py --hypothesis-profile thorough
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.records import Outcome
from tasks.scheduling.asynchronous_round import AsynchronousScheduler, AtDeadline
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
    PromptRef,
    Published,
    RoundPlan,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.queue_state import Carried, QueueState, finish_round
from tasks.scheduling.staleness import Admission, Dispatched, can_all_be_trained

DOMAINS = ("add", "letters", "rare") * 20
Name = tuple[str, int]  # a response: its prompt and its index


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run over a made-up world."""

    policy: AsynchronousConfig
    batch: BatchConfig
    num_steps: int
    seed: int
    infra_share: float = 0.0  # of the verdicts
    right_share: float = 0.5  # of the others
    loss_share: float = 0.0  # of what happens to a running response
    num_engines: int = 1
    death_share: float = 0.0  # of all that happens: an engine dies with all that it runs
    kill_share: float = 0.0  # of all that happens
    eager: float = 0.5  # probability that a version is published as soon as it could be


@dataclass(slots=True, kw_only=True)
class Played:
    """A round that was played."""

    plan: RoundPlan
    state: QueueState  # after it
    accepted: dict[str, int] = field(default_factory=dict)  # oldest version, by prompt
    dropped: list[str] = field(default_factory=list)
    filtered: list[str] = field(default_factory=list)
    deferred: list[str] = field(default_factory=list)
    carried: list[Carry] = field(default_factory=list)

    @property
    def lags(self) -> list[int]:
        return [self.plan.step - 1 - version for version in self.accepted.values()]


MOST_FAILURES = 20  # of a round; without a bound a long one would be begun anew for minutes


class World:
    """What engines, rewards and the learner do, in an order that is drawn."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._random = random.Random(scenario.seed)
        self._running: dict[Name, int] = {}  # with its engine
        self._alive = list(range(scenario.num_engines))
        self._unscored: dict[Name, None] = {}
        self._begun: dict[Name, int] = {}  # the version of each response's first token
        self._records: dict[Name, list[Event]] = {}
        self._events: deque[Event] = deque()
        self._asked: set[Name] = set()  # by this attempt at the round
        self._wanted: dict[str, tuple[int, ...]] = {}  # responses of complete carried groups
        self._version = 0
        self._num_failures = 0  # of the attempts at a round

    def play(self) -> Iterator[Played]:
        state, step = QueueState(), 1
        while (plan := self._plan(state, step)) is not None:
            played = self._play_round(plan, state)
            yield played
            state, step = played.state, step + 1

    def _plan(self, state: QueueState, step: int) -> RoundPlan | None:
        if step > self._scenario.num_steps or self._scenario.policy.async_ratio == 0:
            self._version = step - 1  # nothing overlaps
        turn = PlanningInputs(
            state=QueueState.from_json(json.loads(json.dumps(state.to_json()))),
            batch=self._scenario.batch,
            step=step,
            num_steps=self._scenario.num_steps,
            domains=DOMAINS,
            seed=self._scenario.seed,
            published=self._version,
        )
        return self._scenario.policy.plan_round(turn)

    def _play_round(self, plan: RoundPlan, before: QueueState) -> Played:
        self._num_failures = 0
        while True:
            played = Played(plan=plan, state=before)
            scheduler = self._scenario.policy.scheduler(plan)
            if self._go_on(scheduler, played):
                break
            self._num_failures += 1
            self._recover(plan.step)
        carried = {carry.prompt_id for carry in played.carried}
        self._wanted = {carry.prompt_id: carry.indices for carry in played.carried if carry.indices}
        assert {prompt for prompt, _ in self._running} <= carried - self._wanted.keys()
        for name in [name for name in self._unscored if name[0] in self._wanted]:
            del self._unscored[name]
        left = {prompt for prompt, _ in self._unscored} - carried
        assert not left or plan.admission is None, "synchronous rounds ask early, some in vain"
        for prompt in left:
            self._forget(prompt)
        played.state = finish_round(before, plan, played)
        return played

    def _recover(self, step: int) -> None:
        """Killed: what is not recorded is asked again, of new engines. They get the learner's
        weights, which may be newer than those that were published."""
        self._running.clear()
        self._unscored.clear()
        self._events.clear()
        self._alive = list(range(self._scenario.num_engines))
        if self._version < step - 1 and self._random.random() < 0.5:
            self._version += 1

    def _fails(self, share: float) -> bool:
        return self._num_failures < MOST_FAILURES and self._random.random() < share

    def _go_on(self, scheduler: RoundScheduler, played: Played) -> bool:
        """Whether the round came to its end."""
        self._asked.clear()
        is_closed = self._carry_out(scheduler.start(), played)
        if isinstance(scheduler, AsynchronousScheduler):  # an earlier attempt may have heard more
            newest = Published(version=self._version)
            is_closed |= self._carry_out(scheduler.publish(newest), played)
        for name in self._running.keys() - self._asked:  # as the driver aborts what nobody claims
            del self._running[name]
        while not is_closed:
            if self._events:
                decisions = scheduler.handle(self._events.popleft())
            elif self._fails(self._scenario.kill_share):
                return False
            elif self._fails(self._scenario.death_share):
                self._die()
                continue
            elif not self._alive:
                return False
            else:
                happened = self._happen(scheduler, played.plan.step)
                if happened is None:
                    return False
                decisions = happened
            is_closed = self._carry_out(decisions, played)
            if not self._events:
                self._check_surplus(played.plan)
        self._events.clear()
        return True

    def _check_surplus(self, plan: RoundPlan) -> None:
        """Of a group that has all of its verdicts nothing runs any more; stand-ins of synchronous
        rounds aside, which may have answered in an earlier step."""
        if plan.admission is None:
            return
        valid = Counter(
            prompt
            for (prompt, index), events in self._records.items()
            if (prompt, index) in self._asked
            and isinstance(events[-1], Scored)
            and events[-1].reward is not None
        )
        running = {prompt for prompt, _ in self._running}
        assert not [prompt for prompt in running if valid[prompt] >= plan.accept_per_prompt]

    def _die(self) -> None:
        """An engine is gone, and the scheduler hears of every response that went with it."""
        if not self._alive:
            return
        dead = self._alive.pop(self._random.randrange(len(self._alive)))
        for name in [name for name, engine in self._running.items() if engine == dead]:
            del self._running[name]
            self._events.append(Lost(prompt_id=name[0], index=name[1]))

    def _happen(self, scheduler: RoundScheduler, step: int) -> list[Decision] | None:
        """What the scheduler decides on what happens next; None when weights cannot be published,
        because an engine is gone."""
        may_publish = self._version < step - 1
        waiting = [*self._running, *self._unscored]
        assert may_publish or waiting, f"a dead end: {scheduler.waiting_for()}"
        if may_publish and (not waiting or self._random.random() < self._scenario.eager):
            if len(self._alive) < self._scenario.num_engines:
                return None
            self._version += 1
            assert isinstance(scheduler, AsynchronousScheduler)
            return scheduler.publish(Published(version=self._version))
        prompt, index = name = self._random.choice(waiting)
        if name in self._unscored:
            return self._score(scheduler, name)
        del self._running[name]
        if self._random.random() < self._scenario.loss_share:
            return scheduler.handle(Lost(prompt_id=prompt, index=index))
        finished = Finished(prompt_id=prompt, index=index, num_tokens=1)
        self._unscored[name] = None
        self._records[name] = [finished]
        return scheduler.handle(finished)

    def _score(self, scheduler: RoundScheduler, name: Name) -> list[Decision]:
        del self._unscored[name]
        is_infra = self._random.random() < self._scenario.infra_share
        is_right = self._random.random() < self._scenario.right_share
        scored = Scored(
            prompt_id=name[0],
            index=name[1],
            outcome=Outcome.INFRA if is_infra else Outcome.OK,
            reward=None if is_infra else float(is_right),
        )
        self._records[name].append(scored)
        return scheduler.handle(scored)

    def _carry_out(self, decisions: list[Decision], played: Played) -> bool:
        """Whether the round is closed by them."""
        is_closed = False
        for decision in decisions:
            match decision:
                case Launch(prompt_id=prompt, index=index):
                    self._launch((prompt, index), played.plan)
                case Abort(prompt_id=prompt, indices=indices):
                    for index in indices:
                        self._running.pop((prompt, index), None)
                case AcceptGroup(prompt_id=prompt, indices=indices):
                    assert len(set(indices)) == played.plan.accept_per_prompt
                    played.accepted[prompt] = min(self._begun[prompt, one] for one in indices)
                    self._forget(prompt)
                case Drop(prompt_id=prompt):
                    played.dropped.append(prompt)
                    self._forget(prompt)
                case Filter(prompt_id=prompt):
                    played.filtered.append(prompt)
                    self._forget(prompt)
                case Defer(prompt_id=prompt):
                    played.deferred.append(prompt)
                    self._forget(prompt)
                case Carry():
                    played.carried.append(decision)
                case CloseRound():
                    is_closed = True
        return is_closed

    def _launch(self, name: Name, plan: RoundPlan) -> None:
        """Replay what is recorded of weights that are allowed, go on with what runs, begin the
        rest."""
        self._asked.add(name)
        step, admission = plan.step, plan.admission
        allowed = admission.versions(step) if admission else range(step - 1, step)
        if name in self._begun and self._begun[name] not in allowed:
            self._records.pop(name, None)
            self._unscored.pop(name, None)
        if name not in self._records:  # asked again, and perhaps not to be scored this time
            self._wanted.pop(name[0], None)
        assert name[0] not in self._wanted or name[1] in self._wanted[name[0]]
        if name in self._records:
            self._events += self._records[name]
            if len(self._records[name]) == 1:
                self._unscored[name] = None
        elif name not in self._running:
            # none is alive: the round is over before anything comes of it
            self._running[name] = self._random.choice(self._alive or [0])
            self._begun[name] = self._version

    def _forget(self, prompt: str) -> None:
        for names in (self._unscored, self._records):
            for name in [name for name in names if name[0] == prompt]:
                del names[name]


@st.composite
def scenarios(
    draw: st.DrawFn, at_deadline: AtDeadline | None = None, ratio: float | None = None
) -> Scenario:
    return Scenario(
        policy=AsynchronousConfig(
            async_ratio=draw(st.sampled_from([0, 0.25, 0.5, 0.7, 1, 1.5, 2, 2.3, 4]))
            if ratio is None
            else ratio,
            extra_lag=draw(st.sampled_from([0, 0, 1, 3])),
            at_deadline=at_deadline
            or draw(st.sampled_from(["wait", "park", "drop", "train_anyway"])),
            response_overprovision=draw(st.sampled_from([1, 1, 1.5, 2.5])),
            dynamic_sampling=draw(st.sampled_from([0.0, 0.0, 0.5, 2.0])),
        ),
        batch=BatchConfig(
            prompts_per_step=draw(st.integers(1, 6)), responses_per_prompt=draw(st.integers(2, 3))
        ),
        num_steps=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 100_000)),
        infra_share=draw(st.sampled_from([0.0, 0.0, 0.1, 0.7])),
        right_share=draw(st.sampled_from([0.5, 0.9, 1.0])),
        loss_share=draw(st.sampled_from([0.0, 0.2])),
        num_engines=draw(st.integers(1, 3)),
        death_share=draw(st.sampled_from([0.0, 0.03])),
        kill_share=draw(st.sampled_from([0.0, 0.02])),
        eager=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
    )


def bound_of(policy: AsynchronousConfig) -> int:
    """Versions by which a token may lag."""
    return math.ceil(policy.async_ratio) + policy.extra_lag if policy.async_ratio else 0


@given(scenarios())
def test_every_drawn_prompt_is_somewhere_and_every_run_ends(scenario: Scenario) -> None:
    gone: Counter[str] = Counter()
    steps = 0
    for played in World(scenario).play():
        state, steps = played.state, steps + 1
        gone.update([*played.accepted, *played.dropped, *played.filtered])
        assert max(gone.values(), default=1) == 1
        carried = [carried.ref.prompt_id for carried in state.carried]
        waiting = [*carried, *(ref.prompt_id for ref in (*state.queue, *state.skipped))]
        assert len(set(waiting)) == len(waiting)
        assert not gone.keys() & set(waiting)
        assert state.num_drawn == gone.total() + len(waiting)
        counted = (state.num_trained, state.num_dropped, state.num_filtered)
        assert sum(counted) == gone.total()
    assert steps >= scenario.num_steps
    assert (state.carried, state.queue) == ((), ())


@given(scenarios())
def test_every_step_trains_its_groups_unless_prompts_were_dropped(scenario: Scenario) -> None:
    for played in World(scenario).play():
        missing = played.plan.accept_prompts - len(played.accepted)
        assert 0 <= missing <= len(played.dropped)
        assert not missing or not played.carried


@given(st.one_of(scenarios(at_deadline="wait"), scenarios(at_deadline="park")))
def test_no_token_lags_more_than_the_bound(scenario: Scenario) -> None:
    for played in World(scenario).play():
        assert max(played.lags, default=0) <= bound_of(scenario.policy)


@given(scenarios(at_deadline="drop"))
def test_what_is_dropped_at_its_deadline_is_replaced(scenario: Scenario) -> None:
    for played in World(scenario).play():
        assert max(played.lags, default=0) <= bound_of(scenario.policy)
        if scenario.infra_share == 0:
            assert len(played.accepted) == played.plan.accept_prompts


@given(scenarios(at_deadline="wait"))
def test_under_wait_nothing_is_lost_but_what_cannot_be_scored(scenario: Scenario) -> None:
    for played in World(scenario).play():
        assert played.deferred == []
        assert played.dropped == [] or scenario.infra_share > 0


@given(
    ratio=st.sampled_from([0.25, 0.5, 1, 1.5, 2, 4]),
    extra_lag=st.sampled_from([0, 2]),
    prompts_per_step=st.sampled_from([4, 8]),
    seed=st.integers(0, 1000),
)
def test_mean_lag_is_the_ratio_while_admission_is_the_limit(
    ratio: float, extra_lag: int, prompts_per_step: int, seed: int
) -> None:
    """Little's law: whatever is generated is ready long before the next
    version is published."""
    scenario = Scenario(
        policy=AsynchronousConfig(async_ratio=ratio, extra_lag=extra_lag),
        batch=BatchConfig(prompts_per_step=prompts_per_step, responses_per_prompt=2),
        num_steps=32,
        seed=seed,
        eager=0.0,
    )
    rounds = list(World(scenario).play())[math.ceil(ratio) : -math.ceil(ratio)]
    lags = [lag for played in rounds for lag in played.lags]
    # a group of these rounds may have been passed over from before them, or into those after them
    assert sum(lags) / len(lags) == pytest.approx(ratio, rel=0.15 if extra_lag else 1e-9)


@given(scenarios(ratio=0))
def test_without_a_ratio_every_step_is_synchronous(scenario: Scenario) -> None:
    for played in World(scenario).play():
        assert played.carried == []
        assert set(played.lags) <= {0}


@given(
    st.permutations([(f"p{prompt}", index) for prompt in range(4) for index in range(3)]),
    st.sets(st.integers(0, 11), max_size=5),
    st.sets(st.integers(0, 11)),
    st.sampled_from([3, 2]),
)
def test_its_schedulers_decide_like_those_of_synchronous_policies_without_a_ratio(
    order: list[Name], failing: set[int], lost: set[int], num_trained: int
) -> None:
    """Three responses of each prompt, of which three are trained, or two: `sync`, or a short round
    over as many prompts as it trains."""
    turn = PlanningInputs(
        state=QueueState(),
        batch=BatchConfig(prompts_per_step=4, responses_per_prompt=num_trained),
        step=1,
        num_steps=5,
        domains=DOMAINS,
        seed=0,
    )
    eta_r = 3 / num_trained
    policy = AsynchronousConfig(async_ratio=0, response_overprovision=eta_r)
    plan = policy.plan_round(turn)
    other = (
        SyncConfig()
        if eta_r == 1
        else TailBatchingConfig(prompt_overprovision=1, response_overprovision=eta_r)
    )
    plain_plan = other.plan_round(turn)
    assert plan is not None
    assert plain_plan is not None
    names = {f"p{place}": ref.prompt_id for place, ref in enumerate(plan.prompts)}
    admission = Admission(async_ratio=0, prompts_per_step=4, num_steps=5, num_before=0, version=0)
    overlapped = AsynchronousScheduler(replace(plan, admission=admission), "wait")
    alone, plain = policy.scheduler(plan), other.scheduler(plain_plan)
    assert overlapped.start() == alone.start() == plain.start()
    for place, (prompt, index) in enumerate(order):
        prompt_id, reward = names[prompt], None if place in failing else 1.0
        outcome = Outcome.INFRA if reward is None else Outcome.OK
        events: list[Event] = [
            *([Lost(prompt_id=prompt_id, index=index)] if place in lost else []),
            Finished(prompt_id=prompt_id, index=index, num_tokens=1),
            Scored(prompt_id=prompt_id, index=index, outcome=outcome, reward=reward),
        ]
        for event in events:
            assert overlapped.handle(event) == alone.handle(event) == plain.handle(event)


def test_the_surplus_of_a_complete_group_stops_while_its_slot_is_another_groups() -> None:
    """One group a step: step 2 must train the one that was dispatched at version 0, and carries the
    one that is complete before it."""
    policy = AsynchronousConfig(async_ratio=1, response_overprovision=1.5)
    old = Carried(ref=PromptRef(prompt_id="0/0", domain="add"), dispatched=Dispatched(version=0))

    def plan_of(state: QueueState, step: int) -> RoundPlan:
        turn = PlanningInputs(
            state=QueueState.from_json(json.loads(json.dumps(state.to_json()))),
            batch=BatchConfig(prompts_per_step=1, responses_per_prompt=2),
            step=step,
            num_steps=3,
            domains=DOMAINS,
            seed=0,
            published=1,
        )
        plan = policy.plan_round(turn)
        assert plan is not None
        return plan

    before = QueueState(carried=(old,), num_drawn=2, num_trained=1)
    plan = plan_of(before, step=2)
    first, second = (ref.prompt_id for ref in plan.prompts)
    scheduler = policy.scheduler(plan)
    assert scheduler.start() == [
        Launch(prompt_id=name, index=index, oldest_version=version)
        for name, version in ((first, 0), (second, 1))
        for index in range(3)
    ]
    assert scored(scheduler, second, 2) == []
    assert scored(scheduler, second, 0) == [Abort(prompt_id=second, indices=(1,))]
    assert scored(scheduler, first, 0) == []
    carry = Carry(prompt_id=second, version=1, indices=(0, 2))
    assert scored(scheduler, first, 1) == [
        AcceptGroup(prompt_id=first, indices=(0, 1)),
        Abort(prompt_id=first, indices=(2,)),
        carry,
        CloseRound(),
    ]
    played = Played(plan=plan, state=before, accepted={first: 0}, carried=[carry])
    state = finish_round(before, plan, played)
    assert policy.scheduler(plan_of(state, step=3)).start() == [
        Launch(prompt_id=second, index=index, oldest_version=1) for index in (0, 2)
    ]


def scored(scheduler: RoundScheduler, prompt_id: str, index: int) -> list[Decision]:
    """What is decided on the verdict on a response that finishes."""
    decisions = scheduler.handle(Finished(prompt_id=prompt_id, index=index, num_tokens=1))
    return decisions + scheduler.handle(
        Scored(prompt_id=prompt_id, index=index, outcome=Outcome.OK, reward=float(index))
    )


def test_a_prompt_that_was_parked_is_asked_for_no_more_than_is_trained() -> None:
    batch = BatchConfig(prompts_per_step=1, responses_per_prompt=2)
    policy = AsynchronousConfig(async_ratio=1, at_deadline="park", response_overprovision=2)
    parked = PromptRef(prompt_id="0/0", domain="add")
    turn = PlanningInputs(
        state=QueueState(queue=(parked,), num_drawn=1),
        batch=batch,
        step=1,
        num_steps=3,
        domains=DOMAINS,
        seed=0,
        published=0,
    )
    plan = policy.plan_round(turn)
    assert plan is not None
    launched = Counter(
        decision.prompt_id
        for decision in policy.scheduler(plan).start()
        if isinstance(decision, Launch)
    )
    assert launched.pop("0/0") == 2
    assert set(launched.values()) == {4}


def test_a_step_keeps_slots_for_what_is_due_in_later_ones() -> None:
    """Two groups a step: with one slot left in this step, three that are due in the next one are
    just possible, and a fourth is not."""
    assert can_all_be_trained({5: 1, 6: 2}, step=5, num_free=1, prompts_per_step=2)
    assert not can_all_be_trained({5: 1, 6: 3}, step=5, num_free=1, prompts_per_step=2)
    assert not can_all_be_trained({4: 2}, step=5, num_free=1, prompts_per_step=2)


def test_the_limit_grows_by_a_step_with_each_version_up_to_the_end_of_the_run() -> None:
    admission = Admission(
        async_ratio=2.3, prompts_per_step=10, num_steps=5, num_before=0, version=0
    )
    assert [admission.limit(version) for version in range(4)] == [33, 43, 50, 50]
    assert [admission.deadline(version) for version in range(3)] == [4, 5, 6]
    patient = replace(admission, extra_lag=2)
    assert [patient.limit(version) for version in range(4)] == [33, 43, 50, 50]
    assert [patient.deadline(version) for version in range(3)] == [6, 7, 8]
    assert patient.versions(7) == range(1, 7)
