"""The rollout stage of rounds that overlap training: what it hands to the next round, by engine and
by journal, and what a killed one finds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from plan_factories import CONTEXT
from round_factories import make_prompts

from artifacts.records import Generated, Request, Response, WeightsRef, response_id
from artifacts.tables import ResponseRow
from tasks import reward, rollout
from tasks.engines.base import EngineStats
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.progress import ProgressReporter
from tasks.rounds.report import RolloutReport, read_round
from tasks.run.prompts import HELDOUT
from tasks.run.run_context import StepPlan, journal_of, store_of
from tasks.run.sample_buffer import GENERATED, GROUPED, SCORED, SampleBuffer
from tasks.run.sample_stream import CAPACITIES, LocalBuffer, SampleStream, round_key
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.base import PlanningInputs
from tasks.scheduling.queue_state import QueueState, finish_round
from tasks.scheduling.stream_training import AllAccepted

POLICY = AsynchronousConfig(async_ratio=1.0)
BATCH = BatchConfig(prompts_per_step=4, responses_per_prompt=2)
ENGINE = SimulatedEngineConfig(max_batch=64, lengths=LengthModel(median_tokens=100, sigma=2.0))


class CountingEngine(SimulatedEngine):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("engine-0", ENGINE)
        self.submitted: list[str] = []

    async def submit(self, requests: Sequence[Request]) -> None:
        self.submitted += [request.response_id for request in requests]
        await super().submit(requests)


class Stage:
    """The rollout stage beside a reward that is simulated."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = CountingEngine()
        self.buffer = SampleBuffer(CAPACITIES)
        self.scored: list[str] = []
        self._run = replace(
            CONTEXT,
            artifact_root=str(root),
            scheduling=POLICY,
            sampling=CONTEXT.sampling.model_copy(update={"max_response_tokens": 3000}),
            deadlines=CONTEXT.deadlines.model_copy(update={"progress_s": 1000.0}),
        )
        self._root = root
        monkeypatch.setattr(rollout, "shown_progress", unshown)
        monkeypatch.setattr(rollout, "engines_of", lambda run, names, asker: [self.engine])
        monkeypatch.setattr(
            rollout,
            "prompts_of",
            lambda run, refs: make_prompts(SimpleNamespace(candidates=refs)),  # type: ignore[arg-type]
        )

    def plan(self, state: QueueState, step: int) -> StepPlan:
        turn = PlanningInputs(
            state=state,
            batch=BATCH,
            step=step,
            num_steps=9,
            domains=("test",) * 50,
            seed=0,
            published=0,
        )
        planned = POLICY.plan_round(turn)
        assert planned is not None
        weights = WeightsRef(version=0, path="", digest="")
        plan = StepPlan(run=self._run, round=planned, weights=weights, attempt=1)
        return replace(plan, leaves_running=True)

    def stream(self, plan: StepPlan) -> SampleStream:
        """For the running event loop."""
        return SampleStream(LocalBuffer(self.buffer, asyncio.get_running_loop()), round_key(plan))

    async def play(self, plan: StepPlan, beside: Sequence[StepPlan] = ()) -> RolloutReport:
        await self.buffer.open_round(round_key(plan), [*map(round_key, beside)])
        stream = self.stream(plan)
        scoring = asyncio.create_task(self._score(plan, stream))
        report = await rollout.roll_out(plan, stream)
        await scoring
        return report

    async def _score(self, plan: StepPlan, stream: SampleStream) -> None:
        """Verdicts as they are made, and recorded as the reward stage records them."""
        feed, closed, waiting = SimulatedFeed(SimulatedRewardConfig()), False, 0
        known: dict[tuple[str, int], Generated] = {}
        while not closed:
            arrived, closed = await stream.take(GENERATED, max_items=64, wait_s=0.1)
            known |= {(response.prompt_id, response.index): response for response in arrived}
            await feed.publish(arrived)
            waiting += len(arrived)
            self.scored += [response.response_id for response in arrived]
            scores = await feed.scored(0.1) if waiting else []
            waiting -= len(scores)
            prompts = make_prompts(plan.round)
            rows = [
                ResponseRow(
                    step=plan.step,
                    kind=plan.round.kind,
                    prompt=prompts[score.prompt_id],
                    response=Response(generated=known[score.prompt_id, score.index], score=score),
                )
                for score in scores
            ]
            journal_of(plan).append(plan.step, rows)
            await stream.put(SCORED, scores)


@asynccontextmanager
async def unshown(plan: StepPlan) -> AsyncIterator[ProgressReporter]:
    yield ProgressReporter(plan)


def test_the_next_round_goes_on_with_what_runs_and_with_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        stage = Stage(tmp_path, monkeypatch)
        first = stage.plan(QueueState(), 1)
        report = await stage.play(first)
        assert report.in_flight
        recorded = journal_of(first).read(2)
        assert recorded
        carried = {carry.prompt_id for carry in report.carried}
        assert {row.prompt.prompt_id for row in recorded} <= carried
        second = stage.plan(finish_round(QueueState(), first.round, report), 2)
        second = replace(second, adopted=report.in_flight)
        later = await stage.play(second, beside=[first])
        assert set(later.accepted) == carried
        assert max(Counter(stage.engine.submitted).values()) == 1
        groups = journal_of(second).read_groups(2)
        assert {group.prompt.prompt_id for group in groups} == carried
        stream = stage.stream(first)
        waiting, is_over = await stream.take(GROUPED, max_items=9)
        assert waiting.pop() == AllAccepted()
        assert len(waiting) == BATCH.prompts_per_step, "of the first round, which trains meanwhile"
        assert is_over

    run_virtual(play())


def test_a_run_that_is_killed_between_two_rounds_asks_again_what_was_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        stage = Stage(tmp_path, monkeypatch)
        first = stage.plan(QueueState(), 1)
        report = await stage.play(first)
        left = {response.response_id for response in report.in_flight}
        recorded = {row.response.generated.response_id for row in journal_of(first).read(2)}
        killed = Stage(tmp_path, monkeypatch)
        back = read_round(store_of(first), 1)
        assert back == replace(report, in_flight=())
        second = killed.plan(finish_round(QueueState(), first.round, back), 2)
        await killed.play(second)
        assert left <= set(killed.engine.submitted)
        assert not recorded & set(killed.engine.submitted)
        rows = journal_of(second).read(2)
        names = [row.response.generated.response_id for row in rows]
        assert len(names) == len(set(names))

    run_virtual(play())


def test_what_an_evaluation_asked_for_beside_a_round_is_not_taken_for_unclaimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unclaimed(prompt_id: str) -> int:
        """Counted at the end of a round, when its engine runs a response to this prompt, too."""
        stage = Stage(tmp_path / prompt_id, monkeypatch)
        read = stage.engine.stats

        async def stats() -> EngineStats:
            reading = await read()
            return replace(reading, progress={**reading.progress, response_id(prompt_id, 0): 7})

        monkeypatch.setattr(stage.engine, "stats", stats)
        return (await stage.play(stage.plan(QueueState(), 1))).num_unclaimed

    assert run_virtual(unclaimed(f"{HELDOUT}/0")) == 0
    assert run_virtual(unclaimed("0/999")) == 1


def test_verdicts_that_are_under_way_when_a_round_pauses_are_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(Stage(tmp_path, monkeypatch).plan(QueueState(), 1), leaves_running=False)
    monkeypatch.setattr(reward, "prompts_of", lambda run, refs: {})
    for pauses in (False, True):
        inputs = reward.scoring_inputs(replace(plan, round=replace(plan.round, pauses=pauses)))
        assert inputs.leaves_running == pauses


def test_a_round_that_may_leave_nothing_leaves_its_engine_idle_and_records_what_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        stage = Stage(tmp_path, monkeypatch)
        last = replace(stage.plan(QueueState(), 1), leaves_running=False)
        report = await stage.play(last)
        assert (report.in_flight, len(report.carried)) == ((), 4)
        assert (await stage.engine.stats()).progress == {}
        assert report.tokens["aborted"] == 0
        left = [row.response.generated for row in journal_of(last).read(2)]
        stopped = [response for response in left if response.finish_reason == "aborted"]
        assert all(response.token_ids for response in stopped)
        carried = {carry.prompt_id for carry in report.carried}
        assert stopped
        assert {response.prompt_id for response in left} <= carried

    run_virtual(play())
