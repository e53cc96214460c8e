"""The steps of a run, over stages that take virtual time: who begins when, where they overlap and
where they do not, and what a failure leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from plan_factories import make_report, make_step_plan

from artifacts.records import WeightsRef
from flows.steps import Planned, Played, StepOrdering, Steps
from tasks.engines.base import EngineLost
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.metrics.report import StepReport
from tasks.rounds.records import InFlight
from tasks.rounds.report import RolloutReport
from tasks.run.run_context import StepPlan
from tasks.run.sample_buffer import RoundAborted
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.staleness import Admission

ADMISSION = Admission(async_ratio=1, prompts_per_step=1, num_steps=9, num_before=0, version=0)
LEFT = (InFlight(engine="engine-0", prompt_id="0/0", index=0, attempt=1, num_kept=0),)
ROLLOUT_S, TRAIN_S, EVALUATE_S = 10.0, 4.0, 12.0


@dataclass(slots=True, kw_only=True)
class Staged:
    """A course whose rounds take ten seconds and whose training takes four."""

    overlaps: bool = True
    num_steps: int = 4
    barriers: tuple[int, ...] = ()
    evaluated: tuple[int, ...] = ()  # steps after which there is an evaluation
    fails: Callable[[str, StepPlan], BaseException | None] = lambda what, plan: None
    max_recoveries: int = 2
    recoverable: tuple[type[BaseException], ...] = (EngineLost,)
    said: list[str] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    evaluating: int | None = None  # the step whose weights are being evaluated
    _aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, what: str) -> None:
        self.said.append(f"{asyncio.get_running_loop().time():g} {what}")

    def plan(self, state: QueueState, step: int, weights: WeightsRef) -> Planned | None:
        if step > self.num_steps:
            return None
        assert state.num_trained == step - 1, "a round is planned from the one before"
        plan = make_step_plan(step, kind="any")
        planned = replace(plan.round, admission=ADMISSION if self.overlaps else None)
        return Planned(before=state, plan=replace(plan, round=planned, weights=weights))

    def after(self, before: QueueState, plan: StepPlan, rollout: RolloutReport) -> QueueState:
        return replace(before, num_trained=before.num_trained + 1)

    def is_barrier(self, step: int) -> bool:
        return not self.overlaps or step in self.barriers

    def evaluation(self, step: int, weights: WeightsRef) -> StepPlan | None:
        assert weights.version == step
        plan = replace(make_step_plan(step, kind="evaluate"), weights=weights)
        return plan if step in self.evaluated else None

    async def evaluate(self, plan: StepPlan) -> None:
        self.evaluating = plan.step
        await self._roll_out(plan, make_report(()).rollout, EVALUATE_S)
        self.evaluating = None
        self.say(f"evaluated {plan.step}")

    async def open(self, plan: StepPlan, beside: Sequence[StepPlan]) -> None:
        self._aborted = self._aborted if beside else asyncio.Event()
        self.plans += [] if plan.is_evaluation else [plan]
        others = ",".join(map(named, beside))
        self.say(f"open {named(plan)} attempt {plan.attempt} beside {others or 'none'}")

    async def play(self, plan: StepPlan, ordering: StepOrdering) -> Played:
        rollout = replace(make_report(()).rollout, in_flight=LEFT)
        if self.overlaps:
            telling = asyncio.create_task(ordering.may_train(Answer(self._roll_out(plan, rollout))))
            if not await telling:
                raise RoundAborted("another step failed")
            await ordering.closed
        else:  # nobody else has a use for its place
            await self._roll_out(plan, rollout)
        await asyncio.sleep(TRAIN_S)
        self._fail("train", plan)
        await ordering.may_update()
        assert self.evaluating is None, "these weights are being evaluated"
        self.say(f"trained {plan.step}")
        weights = WeightsRef(version=plan.step, path="", digest="")
        report = make_report((), plan=plan)
        return replace(report, published=replace(report.published, weights=weights)), None

    async def _roll_out(
        self, plan: StepPlan, rollout: RolloutReport, lasts_s: float = ROLLOUT_S
    ) -> RolloutReport:
        try:
            async with asyncio.timeout(lasts_s):
                await self._aborted.wait()
        except TimeoutError:
            self._fail("evaluate" if plan.is_evaluation else "roll out", plan)
            return rollout
        raise RoundAborted("aborted")

    def _fail(self, what: str, plan: StepPlan) -> None:
        error = self.fails(what, plan)
        if error is not None:
            self.say(f"failed {what} {plan.step}")
            raise error

    async def commit(self, report: StepReport, state: QueueState, checkpoint: str | None) -> None:
        assert state.num_trained == report.plan.step
        self.say(f"commit {report.plan.step}")

    async def abort(self, reason: str) -> None:
        self.say("abort")
        self._aborted.set()

    async def recover(self, step: int, committed: WeightsRef) -> WeightsRef:
        assert committed.version == step
        self.say(f"recover {step}")
        return committed


def named(plan: StepPlan) -> str:
    return f"{'evaluation ' * plan.is_evaluation}{plan.step}"


class Answer:
    """A future as Prefect has it, of what is awaited in this loop."""

    def __init__(self, work: object) -> None:
        self._task = asyncio.ensure_future(work)  # type: ignore[call-overload]

    async def waited(self) -> RolloutReport:
        report: RolloutReport = await self._task
        return report


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in a thread for Prefect waits in the loop here: its clock is virtual."""

    async def close_after(self: StepOrdering, rollout: Answer) -> None:
        try:
            self.closed.set_result(await rollout.waited())
        except BaseException as error:
            self.closed.set_exception(error)
            self.closed.exception()

    monkeypatch.setattr(StepOrdering, "_close_after", close_after)


def begin() -> WeightsRef:
    return WeightsRef(version=0, path="", digest="")


async def play(course: Staged) -> Steps:
    steps = Steps(course, QueueState(), 0, begin())
    while await steps.play():
        course.say(f"barrier {steps.step}")
    return steps


def test_a_round_begins_when_the_one_before_it_closes_and_steps_train_in_order() -> None:
    course = Staged(num_steps=3)
    steps = run_virtual(play(course))
    assert course.said == [
        "0 open 1 attempt 1 beside none",
        "10 open 2 attempt 1 beside 1",
        "14 trained 1",
        "14 commit 1",
        "20 open 3 attempt 1 beside 2",
        "24 trained 2",
        "24 commit 2",
        "34 trained 3",
        "34 commit 3",
        "34 barrier 3",
    ]
    assert (steps.step, steps.weights.version) == (3, 3)
    assert [plan.adopted for plan in course.plans] == [(), LEFT, LEFT]
    assert [plan.weights.version for plan in course.plans] == [0, 0, 1]


def test_nothing_overlaps_a_barrier() -> None:
    course = Staged(num_steps=3, barriers=(2,))
    run_virtual(play(course))
    assert course.said[2:7] == [
        "14 trained 1",
        "14 commit 1",
        "24 trained 2",
        "24 commit 2",
        "24 barrier 2",
    ]
    assert [plan.leaves_running for plan in course.plans] == [True, False, True]
    assert [plan.adopted for plan in course.plans] == [(), LEFT, ()]


def test_a_round_and_training_go_on_beside_an_evaluation_that_the_update_waits_for() -> None:
    """Step 2 is trained at 24, and updates at 26, when the evaluation of the weights of step 1 is
    over."""
    course = Staged(num_steps=4, evaluated=(1,))
    run_virtual(play(course))
    assert course.said == [
        "0 open 1 attempt 1 beside none",
        "10 open 2 attempt 1 beside 1",
        "14 trained 1",
        "14 commit 1",
        "14 open evaluation 1 attempt 1 beside 2",
        "20 open 3 attempt 1 beside 2,evaluation 1",
        "26 evaluated 1",
        "26 trained 2",
        "26 commit 2",
        "30 open 4 attempt 1 beside 3",
        "34 trained 3",
        "34 commit 3",
        "44 trained 4",
        "44 commit 4",
        "44 barrier 4",
    ]
    assert [plan.leaves_running for plan in course.plans] == [True] * 4, "nothing was a barrier"


def test_an_evaluation_of_the_last_step_that_there_is_is_waited_for() -> None:
    course = Staged(num_steps=1, evaluated=(1,))
    run_virtual(play(course))
    assert course.said[-2:] == ["26 evaluated 1", "26 barrier 1"]


@pytest.mark.parametrize(
    ("what", "step", "at_s"), [("evaluate", 1, 26), ("roll out", 2, 20), ("train", 2, 24)]
)
def test_after_a_loss_an_evaluation_begins_again_before_the_steps_beside_it(
    what: str, step: int, at_s: int
) -> None:
    """The evaluation, the round beside it or the training beside it was lost: both begin again."""
    lost = once(what, step, EngineLost("engine-0 is gone"))
    course = Staged(num_steps=3, evaluated=(1,), fails=lost)
    run_virtual(play(course))
    failed = course.said.index(f"{at_s} failed {what} {step}")
    assert course.said[failed + 1 : failed + 5] == [
        f"{at_s} abort",
        f"{at_s} recover 1",
        f"{at_s} open evaluation 1 attempt 2 beside none",
        f"{at_s} open 2 attempt 2 beside evaluation 1",
    ]
    assert course.said.count(f"{at_s + 12} evaluated 1") == 1
    assert sum("evaluated" in said for said in course.said) == 1
    commits = [said.split()[1:] for said in course.said if "commit" in said]
    assert commits == [["commit", str(number)] for number in (1, 2, 3)]


def test_steps_that_do_not_overlap_are_played_one_at_a_time() -> None:
    course = Staged(num_steps=2, overlaps=False)
    steps = run_virtual(play(course))
    assert course.said == [
        "0 open 1 attempt 1 beside none",
        "14 trained 1",
        "14 commit 1",
        "14 barrier 1",
        "14 open 2 attempt 1 beside none",
        "28 trained 2",
        "28 commit 2",
        "28 barrier 2",
    ]
    assert (steps.step, steps.weights.version) == (2, 2)
    assert [(plan.adopted, plan.leaves_running) for plan in course.plans] == [((), False)] * 2


def once(what: str, step: int, error: BaseException) -> Callable[..., BaseException | None]:
    def fails(where: str, plan: StepPlan) -> BaseException | None:
        is_now = (where, plan.step, plan.attempt) == (what, step, 1)
        return error if is_now else None

    return fails


@pytest.mark.parametrize("what", ["train", "roll out"])
def test_a_step_alone_that_is_lost_begins_again_and_there_is_no_round_to_end(what: str) -> None:
    course = Staged(
        num_steps=2, overlaps=False, fails=once(what, 2, EngineLost("engine-0 is gone"))
    )
    run_virtual(play(course))
    at_s = {"roll out": 24, "train": 28}[what]
    assert course.said[5:8] == [
        f"{at_s} failed {what} 2",
        f"{at_s} recover 1",
        f"{at_s} open 2 attempt 2 beside none",
    ]
    assert "abort" not in " ".join(course.said)


async def stop(course: Staged, after_s: float) -> Sequence[str]:
    """What is still going on in the loop when a run is stopped."""
    playing = asyncio.create_task(play(course))
    await asyncio.sleep(after_s)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    return [str(task) for task in asyncio.all_tasks() - {asyncio.current_task()}]


def test_a_run_that_is_stopped_waits_for_no_step() -> None:
    course = Staged(num_steps=2, overlaps=False)
    assert run_virtual(stop(course, after_s=12)) == []
    assert course.said == ["0 open 1 attempt 1 beside none"]


@pytest.mark.parametrize("what", ["train", "roll out"])
def test_after_a_loss_the_steps_since_the_last_commit_begin_again(what: str) -> None:
    course = Staged(num_steps=3, fails=once(what, 2, EngineLost("engine-0 is gone")))
    steps = run_virtual(play(course))
    assert steps.step == 3
    failed = next(number for number, said in enumerate(course.said) if "failed" in said)
    is_beside_another = what == "train"  # the round of step 3 is open by then
    then = [said.split(maxsplit=1)[1] for said in course.said[failed + 1 :]]
    assert then[:is_beside_another] == ["abort"] * is_beside_another
    assert then[is_beside_another:][:2] == ["recover 1", "open 2 attempt 2 beside none"]
    assert next(plan.adopted for plan in course.plans if plan.attempt > 1) == ()
    commits = [said.split()[1:] for said in course.said if "commit" in said]
    assert commits == [["commit", "1"], ["commit", "2"], ["commit", "3"]]
    last = max(plan.attempt for plan in course.plans if plan.step == 3)
    assert last == (2 if what == "train" else 1)


def test_it_recovers_as_often_as_it_may_without_a_commit_in_between() -> None:
    def fails(what: str, plan: StepPlan) -> BaseException | None:
        return EngineLost("again") if (what, plan.step) == ("train", 2) else None

    course = Staged(num_steps=3, fails=fails, max_recoveries=2)
    with pytest.raises(EngineLost, match="again"):
        run_virtual(play(course))
    assert sum("recover" in said for said in course.said) == 2


def test_the_failure_that_made_the_others_fail_is_raised() -> None:
    """The round of step 3 is called off when that of step 2 trains in vain."""
    course = Staged(num_steps=3, fails=once("train", 2, ValueError("the loss is broken")))
    with pytest.raises(ValueError, match="the loss is broken"):
        run_virtual(play(course))
    assert not any("recover" in said for said in course.said)
