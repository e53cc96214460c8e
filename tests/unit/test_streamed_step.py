"""A whole step on a virtual clock: engines, policy, migration and learners together, and what the stream trainer saves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from round_factories import make_engines, make_plan, play

from artifacts.records import Generated, Group, Span
from artifacts.timeline import bubble_shares, device_times
from tasks.engines.simulated import LengthModel, SimulatedEngineConfig
from tasks.engines.virtual_time import run_virtual
from tasks.learner.reports import AccumulateReport
from tasks.learner.streaming import Split, StreamedAccumulation
from tasks.scheduling.stream_training import DeviceGroup, ScaleDown, StreamTrainer, StreamTrainerConfig

NUM_DEVICES = 4
DEVICES = [f"cuda:{place}" for place in range(NUM_DEVICES)]
PLAN = make_plan(domains=("a",) * 24, accept_per_prompt=4)
ENGINE = SimulatedEngineConfig(max_batch=64, kv_capacity_tokens=40_000, lengths=LengthModel(median_tokens=120, sigma=1.2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a simulated step came to."""

    seconds: float  # until every gradient is there
    tail: float  # share of the device time in which a device waited for others to generate
    num_streamed: int  # groups trained before the round was closed
    trained: list[str]  # prompts, by name


class Rank:
    """Takes time by token, on a device of its own."""

    def __init__(self, rank: int, s_per_token: float, spans: list[Span]) -> None:
        self._rank, self._s_per_token, self._spans = rank, s_per_token, spans

    async def accumulate(self, groups: tuple[Group, ...]) -> AccumulateReport:
        start_s = asyncio.get_running_loop().time()
        await asyncio.sleep(self._s_per_token * sum(len(one.generated.token_ids) for group in groups for one in group.responses))
        end_s = asyncio.get_running_loop().time()
        self._spans.append(Span(device=DEVICES[self._rank], actor=f"learner-{self._rank}", kind="train", start_s=start_s, end_s=end_s))
        return AccumulateReport(num_groups=len(groups))


class Heard(list[Group]):
    """Accepted groups, handed to the accumulation as they come."""

    def __init__(self, accumulation: StreamedAccumulation, tasks: asyncio.TaskGroup) -> None:
        self._accumulation, self._tasks = accumulation, tasks

    def append(self, group: Group) -> None:
        super().append(group)
        self._tasks.create_task(self._accumulation.offer([group]))


class Freed(list[ScaleDown]):
    """Freed devices, handed on likewise."""

    def __init__(self, accumulation: StreamedAccumulation) -> None:
        self._accumulation = accumulation

    def append(self, decision: ScaleDown) -> None:
        super().append(decision)
        for name in decision.learners:
            self._accumulation.free(int(name.rpartition("-")[2]))


async def step(config: StreamTrainerConfig, train_s_per_token: float) -> Step:
    spans: list[Span] = []
    splits: list[Split] = []

    async def record(split: Split) -> None:
        splits.append(split)

    pairs = [DeviceGroup(engines=(f"engine-{place}",), learners=(f"learner-{place}",)) for place in range(NUM_DEVICES)]
    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(
            [Rank(rank, train_s_per_token, spans) for rank in range(NUM_DEVICES)], tasks, 500, flat_costs=True
        )
        result = await play(
            PLAN,
            make_engines(NUM_DEVICES, ENGINE),
            accepted=Heard(accumulation, tasks),
            trainer=StreamTrainer(config, pairs, PLAN.accept_prompts, lengths=[120] * 80 + [600] * 20),
            freed=Freed(accumulation),
        )
        await asyncio.sleep(0.001)  # the last group is on its way
        await accumulation.finish(record)
    ended_s = asyncio.get_running_loop().time()
    spans += [rollout_span(name, [*result.generated, *result.migrated]) for name in range(NUM_DEVICES)]
    shares = bubble_shares(device_times(spans, DEVICES, 0.0, ended_s))
    trained = sorted(name for share in splits[0] for name in share.prompt_ids)
    return Step(seconds=ended_s, tail=shares["tail"], num_streamed=accumulation.num_streamed, trained=trained)


def rollout_span(place: int, generated: list[Generated]) -> Span:
    own = [one for one in generated if one.engine == f"engine-{place}"]
    return Span(
        device=DEVICES[place], actor=f"engine-{place}", kind="rollout", start_s=0.0, end_s=max((one.finished_s for one in own), default=0.0)
    )


@pytest.mark.parametrize("train_s_per_token", [0.0004, 0.0016, 0.003])
def test_training_on_freed_devices_shortens_the_step(train_s_per_token: float) -> None:
    """Where training is a tenth of the step, a third and half of it."""
    without = run_virtual(step(StreamTrainerConfig(), train_s_per_token))
    streamed = run_virtual(step(StreamTrainerConfig(enabled=True), train_s_per_token))
    assert without.trained == streamed.trained == sorted(ref.prompt_id for ref in PLAN.prompts)
    assert without.num_streamed == 0 < streamed.num_streamed
    assert streamed.seconds < without.seconds


def test_training_fills_the_tail_where_there_is_enough_of_it() -> None:
    without = run_virtual(step(StreamTrainerConfig(), 0.0016))
    streamed = run_virtual(step(StreamTrainerConfig(enabled=True), 0.0016))
    assert streamed.tail < 0.5 * without.tail
