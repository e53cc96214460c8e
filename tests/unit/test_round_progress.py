"""What a view is told of a round while it fills: watched over the scheduler of asynchronous rounds,
by hand and over whole simulated runs."""

from __future__ import annotations

from round_factories import ENGINE

from artifacts.records import Outcome
from research.spot.simulated_rounds import OverlappedRun, SimulatedLearner, play_overlapped
from tasks.engines.simulation.replica import SimulatedEngine
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.round_progress import ObservedScheduler, RoundProgress
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.events import (
    Carry,
    Finished,
    Lost,
    Published,
    RoundPlan,
    RoundScheduler,
    Scored,
)
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.queue_state import QueueState, RoundEnd, finish_round

BATCH = BatchConfig(prompts_per_step=2, responses_per_prompt=2)
DOMAINS = ("any",) * 80


class Round:
    """A watched round in which responses end when they are told to."""

    def __init__(self, ratio: float, step: int = 1, state: QueueState | None = None) -> None:
        policy = AsynchronousConfig(async_ratio=ratio)
        self.before = state or QueueState()
        turn = PlanningInputs(
            state=self.before,
            batch=BATCH,
            step=step,
            num_steps=9,
            domains=DOMAINS,
            seed=0,
            published=0,
        )
        plan = policy.plan_round(turn)
        assert plan is not None
        self.plan = plan
        self.watched = ObservedScheduler(policy.scheduler(plan), plan)
        self.decisions = self.watched.start()

    @property
    def progress(self) -> RoundProgress:
        return self.watched.progress

    def finish(self, place: int, index: int) -> None:
        name = self.plan.candidates[place].prompt_id
        event = Finished(prompt_id=name, index=index, num_tokens=3)
        self.decisions += self.watched.handle(event)

    def score(self, place: int, index: int) -> None:
        name = self.plan.candidates[place].prompt_id
        event = Scored(prompt_id=name, index=index, outcome=Outcome.OK, reward=1.0)
        self.decisions += self.watched.handle(event)

    def complete(self, place: int) -> None:
        for index in range(BATCH.responses_per_prompt):
            self.finish(place, index)
            self.score(place, index)

    def after(self) -> QueueState:
        carried = tuple(decision for decision in self.decisions if isinstance(decision, Carry))
        accepted = [ref.prompt_id for ref in self.plan.candidates[: BATCH.prompts_per_step]]
        return finish_round(self.before, self.plan, RoundEnd(accepted=accepted, carried=carried))


def test_responses_run_then_wait_for_a_verdict_then_make_a_group() -> None:
    played = Round(ratio=1.0)
    begun = played.progress
    assert (begun.num_wanted, begun.num_undecided, begun.num_running) == (2, 4, 8)
    assert begun.does_learner_wait  # nothing is there to train yet
    played.finish(0, 0)
    assert (played.progress.num_running, played.progress.num_unscored) == (7, 1)
    played.score(0, 0)
    played.finish(0, 1)
    played.score(0, 1)
    taken = played.progress
    assert (taken.num_accepted, taken.num_undecided) == (1, 3)
    assert (taken.num_running, taken.num_unscored, taken.num_complete) == (6, 0, 0)


def test_a_lost_response_that_is_launched_again_runs_on() -> None:
    played = Round(ratio=1.0)
    name = played.plan.candidates[0].prompt_id
    played.watched.handle(Lost(prompt_id=name, index=0))
    assert played.progress.num_running == 8


def test_a_full_round_has_nothing_under_way_and_nobody_waits_for_it() -> None:
    played = Round(ratio=1.0)
    played.complete(0)
    played.complete(1)
    full = played.progress
    assert (full.num_accepted, full.num_undecided, full.num_running) == (2, 0, 0)
    assert full.is_full
    assert not full.does_learner_wait
    assert not full.do_engines_wait


def test_a_group_whose_slot_is_anothers_is_complete_and_waits() -> None:
    first = Round(ratio=1.0)
    first.complete(0)
    first.complete(1)
    played = Round(ratio=1.0, step=2, state=first.after())
    assert (played.progress.num_carried, played.progress.num_undecided) == (2, 2)
    assert not played.progress.does_learner_wait  # step 1 still trains
    played.decisions += played.watched.publish(Published(version=1))
    played.complete(2)  # its deadline is a step later than that of the carried ones
    waiting = played.progress
    assert (waiting.num_accepted, waiting.num_complete, waiting.num_carried) == (0, 1, 2)
    assert (waiting.version, waiting.does_learner_wait) == (1, True)


def test_engines_wait_where_only_newer_weights_help() -> None:
    first = Round(ratio=0.25)
    first.complete(0)
    first.complete(1)
    played = Round(ratio=0.25, step=2, state=first.after())
    assert played.progress.do_engines_wait
    assert not played.progress.does_learner_wait
    played.watched.publish(Published(version=1))
    assert not played.progress.do_engines_wait
    assert played.progress.num_running == 4


def test_every_round_of_a_run_ends_full_and_empty() -> None:
    watched: list[ObservedScheduler] = []

    def watch(plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
        watched.append(ObservedScheduler(scheduler, plan))
        return watched[-1]

    async def play() -> list[int]:
        engines = [SimulatedEngine("engine-0", ENGINE)]
        run = OverlappedRun(
            policy=AsynchronousConfig(async_ratio=1.5),
            batch=BATCH,
            num_steps=6,
            domains=DOMAINS,
            engines=engines,
            learner=SimulatedLearner(engines, 2.0),
            feed=lambda: SimulatedFeed(SimulatedRewardConfig()),
            max_response_tokens=2000,
            watch=watch,
        )
        return [len(played.result.groups) async for played in play_overlapped(run)]

    num_groups = run_virtual(play())
    assert [one.progress.num_accepted for one in watched] == num_groups == [2] * 6
    for one in watched:
        assert one.progress.is_full
        assert (one.progress.num_running, one.progress.num_undecided) == (0, 0)
