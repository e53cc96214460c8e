"""A checkpoint is saved beside the next step: it holds what learners had before that step, and its
failure costs the checkpoint, never a committed step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from learner_factories import make_model, random_groups
from plan_factories import CONTEXT, make_report, make_step_plan
from test_step_controller import COMMITTED, course_of

from artifacts.checkpoint import Checkpoints
from artifacts.records import WeightsRef, pack
from artifacts.store import Store, StoreError
from flows import step_controller as course
from flows.run import OpenRun
from flows.steps import Played, StepOrdering
from tasks import checkpointing
from tasks.cluster.actors import ActorLost
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.remote import LearnerActor
from tasks.learner.replay import _restored
from tasks.metrics.report import StepReport
from tasks.run.run_context import RunContext, StepPlan

LOST = ActorLost("learner-0 is lost")


class Rank:
    """A learner that writes its number of updates once it may; `failure`: what becomes of that."""

    def __init__(self) -> None:
        self.updates = 0
        self.may_end = asyncio.Event()
        self.refuses: Exception | None = None
        self.failure: Exception | None = None
        self.loaded: list[str] = []
        self._begun = ("", 0)

    async def begin_checkpoint(self, path: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self._begun = (path, self.updates)

    async def end_checkpoint(self) -> None:
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure
        path, updates = self._begun
        (Path(path) / f"shard-{id(self)}").write_text(str(updates))

    async def version(self) -> int:
        return 0

    async def load_checkpoint(self, path: str) -> int:
        self.loaded += [file.read_text() for file in Path(path).glob("shard-*")]
        return 0


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> tuple[Rank, Rank]:
    two = (Rank(), Rank())
    monkeypatch.setattr(checkpointing, "learners_of", lambda run: two)
    return two


def context_of(root: Path) -> RunContext:
    return replace(CONTEXT, artifact_root=str(root), weights_dir=str(root / "weights"))


def run_folder(root: Path) -> tuple[Store, RunContext, Checkpoints]:
    """The folder of a run with a checkpoint of step 1."""
    context = context_of(root)
    store = context.open_store()
    store.write("manifest.json", b"{}")
    checkpoints = Checkpoints(store, 2)
    with checkpoints.aside(root) as aside:
        (aside / "shard-0").write_text("1")
        checkpoints.commit(1, aside)
    return store, context, checkpoints


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob(".tmp-*") if path.is_dir()]


async def test_a_checkpoint_holds_what_the_ranks_had_when_it_was_begun(
    tmp_path: Path, ranks: tuple[Rank, Rank]
) -> None:
    _, context, checkpoints = run_folder(tmp_path)
    saving = await checkpointing.begin_checkpoint(context, 2, 2)
    for rank in ranks:
        rank.updates = 3  # of the next step
    assert checkpoints.steps() == [1], "it is not there before every shard is"
    for rank in ranks:
        rank.may_end.set()
    assert await saving == "checkpoints/00002"
    with checkpoints.fetched(2, tmp_path) as folder:
        assert [file.read_text() for file in folder.glob("shard-*")] == ["0", "0"]
    assert not leftovers(tmp_path)


async def test_a_rank_that_is_lost_before_it_begins_fails_the_step(
    tmp_path: Path, ranks: tuple[Rank, Rank]
) -> None:
    _, context, checkpoints = run_folder(tmp_path)
    ranks[1].refuses = LOST
    with pytest.raises(ActorLost):
        await checkpointing.begin_checkpoint(context, 2, 2)
    assert checkpoints.steps() == [1]
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("failure", [LOST, StoreError("the disk is full")])
async def test_a_resume_takes_an_earlier_checkpoint_than_one_that_never_came_to_be(
    tmp_path: Path, ranks: tuple[Rank, Rank], failure: Exception
) -> None:
    """The commit of step 2, which names it, has deleted none that a resume needs."""
    _, context, checkpoints = run_folder(tmp_path)
    saving = await checkpointing.begin_checkpoint(context, 2, 1)
    Checkpoints(context.open_store(), 1).prune(2)
    ranks[0].failure = failure
    for rank in ranks:
        rank.may_end.set()
    with pytest.raises(type(failure)):
        await saving
    assert not leftovers(tmp_path)
    assert await _restored(ranks, checkpoints, 2, tmp_path) == 1  # type: ignore[arg-type]
    assert ranks[0].loaded == ["1"]


async def test_a_run_without_any_checkpoint_is_replayed_from_the_start(
    tmp_path: Path, ranks: tuple[Rank, Rank]
) -> None:
    store = context_of(tmp_path).open_store()
    assert await _restored(ranks, Checkpoints(store, 2), 2, tmp_path) == 0  # type: ignore[arg-type]


async def test_the_update_that_follows_at_once_waits_for_the_shard(tmp_path: Path) -> None:
    """Begun is begun: the next step may be a recorded one, whose update comes within milliseconds.
    The shard is that of the step before."""
    model = make_model(tmp_path / "model")
    config = LearnerConfig(compute="fp32")
    actor = LearnerActor(config, model, 0, 1, (), "cpu")
    before = actor._rank.fingerprints()
    groups = pack(random_groups(7))
    for step in (1, 2):
        actor.accumulate(step, groups)
        actor.update(step)
        if step == 1:
            before = actor._rank.fingerprints()
            await actor.begin_checkpoint(str(tmp_path / "saved"))
    await actor.end_checkpoint()
    assert actor._rank.fingerprints() != before
    assert actor.load_checkpoint(str(tmp_path / "saved")) == 1
    assert actor._rank.fingerprints() == before


class Course:
    """A run whose checkpoints are futures that the test ends."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, num_steps: int) -> None:
        self.saves: list[asyncio.Future[str]] = []
        self.recovered: list[int] = []

        async def begin(context: RunContext, step: int, keep: int) -> asyncio.Future[str]:
            self.saves.append(asyncio.get_running_loop().create_future())
            return self.saves[-1]

        async def recover(run: OpenRun, fleet: object, committed: int) -> WeightsRef:
            self.recovered.append(committed)
            return COMMITTED

        async def step_flow(plan: StepPlan, ordering: StepOrdering | None) -> StepReport:
            return make_report((), plan=plan)

        async def publish(*told: object) -> None:
            """There are no elastic workers."""

        monkeypatch.setattr(course, "begin_checkpoint", begin)
        monkeypatch.setattr(course, "recover", recover)
        keep = {"checkpoint_every_steps": 1}
        _, self.ops = course_of(root, "tiny-sync", keep=keep, num_steps=num_steps)
        self.ops.fleet.elastic.publish = publish  # type: ignore[method-assign]
        self.ops.step_flow = step_flow
        windows: Any = SimpleNamespace(plan=lambda *asked: make_step_plan().window)
        self.ops._windows = windows

    async def play(self, step: int) -> Played:
        ordering = StepOrdering()
        return await asyncio.wait_for(self.ops.play(make_step_plan(step), ordering), 5)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Course]:
    return lambda num_steps: Course(tmp_path, monkeypatch, num_steps)


async def test_a_step_ends_before_its_checkpoint_and_the_next_after_it(
    made: Callable[[int], Course],
) -> None:
    run = made(3)
    assert (await run.play(1))[1] == "checkpoints/00001"
    second = asyncio.create_task(run.play(2))
    await asyncio.sleep(0)
    assert not second.done()
    run.saves[0].set_result("checkpoints/00001")
    assert (await second)[1] == "checkpoints/00002"


async def test_the_last_step_ends_after_its_checkpoint(made: Callable[[int], Course]) -> None:
    run = made(1)
    last = asyncio.create_task(run.play(1))
    while not run.saves:
        await asyncio.sleep(0)
    assert not last.done()
    run.saves[0].set_result("checkpoints/00001")
    await last


async def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_the_next_step(
    made: Callable[[int], Course],
) -> None:
    run = made(3)
    await run.play(1)
    run.saves[0].set_exception(StoreError("the disk is full"))
    with pytest.raises(StoreError, match="the disk is full"):
        await run.play(2)
    assert not isinstance(StoreError(""), run.ops.recoverable)


async def test_a_learner_lost_at_a_checkpoint_is_recovered_from_once(
    made: Callable[[int], Course], caplog: pytest.LogCaptureFixture
) -> None:
    run = made(3)
    await run.play(1)
    run.saves[0].set_exception(LOST)
    await run.ops.recover(1, COMMITTED)
    assert run.recovered == [1]
    assert "its checkpoint is not saved: learner-0 is lost" in caplog.text
    await run.play(2)


async def test_an_engine_lost_beside_a_checkpoint_does_not_cost_it(
    made: Callable[[int], Course],
) -> None:
    run = made(3)
    await run.play(1)
    recovering = asyncio.create_task(run.ops.recover(1, COMMITTED))
    await asyncio.sleep(0)
    assert not run.recovered
    run.saves[0].set_result("checkpoints/00001")
    await recovering
    assert run.recovered == [1]


@pytest.mark.parametrize("wait_s", [0.0, 5.0])
async def test_a_run_that_ends_waits_for_its_checkpoint_and_one_that_is_stopped_does_not(
    made: Callable[[int], Course], wait_s: float
) -> None:
    run = made(3)
    await run.play(1)
    (saving,) = run.saves
    if wait_s:
        asyncio.get_running_loop().call_later(0.01, saving.set_result, "checkpoints/00001")
    await run.ops.drop_checkpoint(wait_s)
    assert saving.cancelled() == (not wait_s)
    await run.ops.drop_checkpoint(wait_s)  # there is none
