"""What the stream trainer saves, by how many devices it may free and when, on simulated engines and
learners.

    python -m benchmarks.stream_trainer_simulated --devices 16 --train-share 0.25

Synchronous rounds on colocated devices: the real driver, router, policy and dealing of groups, on a
virtual clock. A learner takes time by the token; how much follows from the share of a plain step
that training is to have. Leaves out what it costs a device to change over (a GPU may have to give
its KV cache back), and the update, which is the same for all.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from artifacts.records import Group, Span
from artifacts.reports.timeline import bubble_shares, device_times, stage_s
from benchmarks.simulated_round import make_engines, round_inputs
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.learner.dealing import GroupPart
from tasks.learner.reports import AccumulateReport
from tasks.learner.split import Split
from tasks.learner.streaming import StreamedAccumulation
from tasks.rounds.driver import drive_round
from tasks.rounds.figures import rollout_spans
from tasks.rounds.records import RoundInputs
from tasks.scheduling.device_groups import DeviceGroup
from tasks.scheduling.events import PromptRef, RoundPlan
from tasks.scheduling.stream_training import (
    ScaleDown,
    StreamTrainer,
    StreamTrainerConfig,
)
from tasks.scheduling.wait_for_all import WaitForAll

ROW_TOKENS = 16384
LARGE_GPU = SimulatedEngineConfig(lengths=LengthModel(median_tokens=500, sigma=1.1))
VARIANTS = {
    "off": StreamTrainerConfig(),
    "a quarter, 20-50 %": StreamTrainerConfig(enabled=True, max_freed_share=0.25),
    "half, 20-50 %": StreamTrainerConfig(enabled=True),
    "half, 20-90 %": StreamTrainerConfig(enabled=True, last_milestone=0.9),
    "half, 50-90 %": StreamTrainerConfig(enabled=True, first_milestone=0.5, last_milestone=0.9),
    "all but one, 20-50 %": StreamTrainerConfig(enabled=True, max_freed_share=1),
}
COLUMNS = (
    "freed at most, milestones",
    "step s",
    "of off",
    "rollout s",
    "tail",
    "streamed groups",
    "migrated",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cluster and its load."""

    num_devices: int  # each an engine and a learner rank
    num_prompts: int  # of a step
    responses_per_prompt: int = 8
    engine: SimulatedEngineConfig = LARGE_GPU
    longest_tokens: int = 16_000

    def plan(self) -> RoundPlan:
        return RoundPlan(
            step=1,
            kind="sync",
            prompts=tuple(
                PromptRef(prompt_id=f"0/{row}", domain="a") for row in range(self.num_prompts)
            ),
            launch_per_prompt=self.responses_per_prompt,
            accept_prompts=self.num_prompts,
            accept_per_prompt=self.responses_per_prompt,
        )

    def engines(self, seed: int) -> list[SimulatedEngine]:
        lengths = self.engine.lengths.model_copy(update={"seed": seed})
        config = self.engine.model_copy(update={"lengths": lengths})
        return make_engines(self.num_devices, config)

    def history(self) -> list[int]:
        """Lengths of earlier rounds."""
        return [
            min(self.longest_tokens, self.engine.lengths.tokens(f"1/{row}", index))
            for row in range(200)
            for index in range(4)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """What one step came to."""

    step_s: float  # until every gradient is there
    rollout_s: float  # until the last response is there
    train_s: float  # device seconds of training
    tail: float  # share of the device time in which a device waited for others to generate
    num_streamed: int  # groups trained before the round was closed
    num_migrated: int  # responses that changed engines
    trained: tuple[str, ...]  # prompts, sorted


@dataclass(slots=True)
class SimulatedRank:
    """A learner rank that takes time by the token."""

    rank: int
    s_per_token: float
    spans: list[Span]

    async def accumulate(self, parts: tuple[GroupPart, ...]) -> AccumulateReport:
        clock = asyncio.get_running_loop().time
        start_s = clock()
        await asyncio.sleep(
            self.s_per_token
            * sum(
                len(part.group.responses[place].generated.token_ids)
                for part in parts
                for place in part.places
            )
        )
        device, actor = device_name(self.rank), f"learner-{self.rank}"
        self.spans.append(
            Span(device=device, actor=actor, kind="train", start_s=start_s, end_s=clock())
        )
        return AccumulateReport(num_groups=sum(part.is_first for part in parts))


def device_name(place: int) -> str:
    return f"cuda:{place}"


async def play_step(
    machine: Machine, config: StreamTrainerConfig, s_per_token: float, seed: int
) -> StepFigures:
    """A round and the gradients of its groups."""
    spans: list[Span] = []
    splits: list[Split] = []

    async def record(split: Split) -> None:
        splits.append(split)

    ranks = [SimulatedRank(rank, s_per_token, spans) for rank in range(machine.num_devices)]
    async with asyncio.TaskGroup() as tasks:
        accumulation = StreamedAccumulation(
            ranks, tasks, machine.num_prompts, ROW_TOKENS, flat_costs=True
        )
        result = await drive_round(inputs(machine, config, accumulation, seed))
        await accumulation.finish(record)
    step_s = asyncio.get_running_loop().time()
    devices = [device_name(place) for place in range(machine.num_devices)]
    owned = {f"engine-{place}": (device,) for place, device in enumerate(devices)}
    spans += rollout_spans(result, owned)
    return StepFigures(
        step_s=step_s,
        rollout_s=stage_s(spans, "rollout", 0, step_s),
        train_s=sum(span.end_s - span.start_s for span in spans if span.kind == "train"),
        tail=bubble_shares(device_times(spans, devices, 0, step_s))["tail"],
        num_streamed=accumulation.num_streamed,
        num_migrated=len(result.migrated),
        trained=tuple(sorted({name for share in splits[0] for name, _ in share.parts})),
    )


def inputs(
    machine: Machine, config: StreamTrainerConfig, accumulation: StreamedAccumulation, seed: int
) -> RoundInputs:
    """The round, its groups and freed devices handed to the accumulation."""
    plan = machine.plan()
    pairs = [
        DeviceGroup(engines=(f"engine-{place}",), learners=(str(place),))
        for place in range(machine.num_devices)
    ]

    async def accept(group: Group) -> None:
        await accumulation.offer([group])

    async def free(decision: ScaleDown) -> None:
        for rank in decision.learners:
            accumulation.free(int(rank))

    return round_inputs(
        plan,
        WaitForAll(plan),
        machine.engines(seed),
        machine.longest_tokens,
        seed=seed,
        on_accept=accept,
        stream_trainer=StreamTrainer(config, pairs, plan.accept_prompts, machine.history()),
        on_freed=free,
    )


def token_cost_s(machine: Machine, train_share: float) -> float:
    """Seconds a token that would give training this share of a plain step, were it dealt without a
    remainder."""
    plain = run_virtual(play_step(machine, VARIANTS["off"], 1.0, seed=0))
    return train_share / (1 - train_share) * plain.rollout_s * machine.num_devices / plain.train_s


def mean(figures: Sequence[StepFigures], name: str) -> float:
    return sum(float(getattr(seen, name)) for seen in figures) / len(figures)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument(
        "--devices", type=int, default=16, help="simulated devices (default: %(default)s)"
    )
    made.add_argument(
        "--prompts",
        type=int,
        default=128,
        help="prompts of a step, 8 responses each (default: %(default)s)",
    )
    made.add_argument(
        "--train-share",
        type=float,
        default=0.25,
        help="of a plain step that is training (default: %(default)s)",
    )
    made.add_argument(
        "--seeds",
        type=int,
        default=3,
        help="rounds that are played, and averaged (default: %(default)s)",
    )
    return made


def checked(options: argparse.Namespace) -> argparse.Namespace:
    """ValueError for numbers that leave nothing to compare."""
    if not 0 < options.train_share < 1 or options.devices < 2 or options.seeds < 1:
        raise ValueError(
            "--train-share must lie between 0 and 1, --devices be >= 2 and --seeds >= 1, got"
            f" {options}"
        )
    return options


def compared(machine: Machine, train_share: float, num_seeds: int) -> Iterator[tuple[str, ...]]:
    """A row of the table for every variant, as they are played."""
    cost_s, plain_s = token_cost_s(machine, train_share), 0.0
    for name, config in VARIANTS.items():
        figures = [
            run_virtual(play_step(machine, config, cost_s, seed)) for seed in range(num_seeds)
        ]
        step_s = mean(figures, "step_s")
        plain_s = plain_s or step_s
        yield (
            name,
            f"{step_s:.1f}",
            f"{step_s / plain_s:.3f}",
            f"{mean(figures, 'rollout_s'):.1f}",
            f"{mean(figures, 'tail'):.3f}",
            f"{mean(figures, 'num_streamed'):.0f}",
            f"{mean(figures, 'num_migrated'):.0f}",
        )


def main() -> None:
    reader = parser()
    try:
        options = checked(reader.parse_args())
    except ValueError as error:
        reader.error(str(error))
    title = (
        f"{options.devices} devices, {options.prompts} prompts, {options.train_share:.0%} training,"
        f" {options.seeds} rounds"
    )
    table = Table(*COLUMNS, title=title)
    machine = Machine(num_devices=options.devices, num_prompts=options.prompts)
    for row in compared(machine, options.train_share, options.seeds):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
