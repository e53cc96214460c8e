"""How fast rounds are simulated, and how that grows with responses and with devices.

    python -m benchmarks.simulator_speed --devices 128 --prompts 128 --steps 40 --policy sync
    python -m benchmarks.simulator_speed --growth            # a step at a time, ever larger
    python -m benchmarks.simulator_speed --profile 30        # where the time goes

Driver, router, schedulers and stream trainer are the real ones, so that what is found slow here is
slow beside real engines, too. Every run is timed in a process of its own, on one core; its peak
memory is that of the process. Leaves out learners: training is a wait.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import pstats
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from tasks.engines.base import EngineLost
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.score_feed import SimulatedFeed, SimulatedRewardConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.rounds.driver import drive_round
from tasks.rounds.records import RoundResult
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.device_groups import DeviceGroup
from tasks.scheduling.events import RoundPlan, RoundScheduler
from tasks.scheduling.policies.base import Policy, Turn
from tasks.scheduling.policies.registry import POLICIES, SchedulingConfig
from tasks.scheduling.queue_state import QueueState
from tasks.scheduling.stream_training import StreamTrainer, StreamTrainerConfig
from tasks.simulation.overlapped_rounds import (
    OverlappedRun,
    SimulatedLearner,
    Watch,
    play_overlapped,
)
from tasks.simulation.simulated_round import (
    SimulatedRound,
    load_version,
    make_engines,
    play_rounds,
    round_inputs,
)

TRAIN_S = 60.0  # virtual seconds of a step's training, where rounds overlap it
LONGEST_TOKENS = 16_384
KINDS = tuple(str(policy.model_fields["kind"].default) for policy in POLICIES)
# devices, prompts of a step, steps
GROWTH = (
    (128, 64, 4),
    (128, 128, 4),
    (128, 256, 4),
    (128, 512, 4),
    (128, 1024, 4),
    (16, 128, 4),
    (1024, 128, 4),
    (1024, 1024, 4),
)


def policy_of(kind: str) -> Policy:
    """The policy of this kind, its settings the defaults."""
    policy: Policy = TypeAdapter(SchedulingConfig).validate_python({"kind": kind})
    return policy


def _unwatched(plan: RoundPlan, scheduler: RoundScheduler) -> RoundScheduler:
    return scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A run of simulated rounds."""

    policy: Policy
    num_devices: int  # engines, each of a device
    batch: BatchConfig
    num_steps: int
    seed: int = 0
    stream_trainer: StreamTrainerConfig = field(default_factory=StreamTrainerConfig)
    engine: SimulatedEngineConfig = field(default_factory=SimulatedEngineConfig)
    reward: SimulatedRewardConfig = field(default_factory=SimulatedRewardConfig)
    domains: tuple[str, ...] = ("any",)  # of the rows, which repeat them
    watch: Watch = _unwatched  # looks at the decisions
    losses_s: tuple[float, ...] = ()  # when the first, the second ... engine dies, virtual seconds

    @property
    def rows(self) -> tuple[str, ...]:
        """The domain of every row of the dataset: more rows than the run asks."""
        num_rows = 8 * self.batch.prompts_per_step * (self.num_steps + 1)
        return self.domains * (num_rows // len(self.domains) + 1)

    def engines(self) -> list[SimulatedEngine]:
        lengths = self.engine.lengths.model_copy(update={"seed": self.seed})
        config = self.engine.model_copy(update={"lengths": lengths})
        engines = make_engines(self.num_devices, config)
        for engine, lost_s in zip(engines, self.losses_s, strict=False):
            asyncio.get_running_loop().call_later(lost_s, engine.fail)
        return engines


def play(simulation: Simulation) -> AsyncIterator[SimulatedRound]:
    """Its rounds, one after the other or as they overlap training."""
    overlaps = simulation.policy.algebra(simulation.batch).overlaps
    return _play_overlapped(simulation) if overlaps else _play_apart(simulation)


def _play_overlapped(simulation: Simulation) -> AsyncIterator[SimulatedRound]:
    engines = simulation.engines()
    run = OverlappedRun(
        policy=simulation.policy,
        batch=simulation.batch,
        num_steps=simulation.num_steps,
        domains=simulation.rows,
        engines=engines,
        learner=SimulatedLearner(engines, TRAIN_S),
        feed=lambda: SimulatedFeed(simulation.reward),
        max_response_tokens=LONGEST_TOKENS,
        seed=simulation.seed,
        watch=simulation.watch,
    )
    return play_overlapped(run)


async def _play_apart(simulation: Simulation) -> AsyncIterator[SimulatedRound]:
    policy, engines, rows = simulation.policy, simulation.engines(), simulation.rows

    def next_plan(state: QueueState, step: int) -> RoundPlan | None:
        return policy.plan_round(
            Turn(
                state=state,
                batch=simulation.batch,
                step=step,
                num_steps=simulation.num_steps,
                domains=rows,
                seed=simulation.seed,
            )
        )

    async def play_one(plan: RoundPlan) -> RoundResult:
        inputs = round_inputs(
            plan,
            simulation.watch(plan, policy.scheduler(plan)),
            engines,
            LONGEST_TOKENS,
            seed=simulation.seed,
            feed=SimulatedFeed(simulation.reward),
            stream_trainer=_stream_trainer(simulation, plan),
        )
        return await drive_round(inputs)

    async for played in play_rounds(next_plan, play_one):
        for engine in engines:
            with suppress(EngineLost):  # the next round finds it lost
                await load_version([engine], played.plan.step)
        yield played


def _stream_trainer(simulation: Simulation, plan: RoundPlan) -> StreamTrainer:
    """Every device may be freed by itself; nothing is known of lengths."""
    pairs = [
        DeviceGroup(engines=(f"engine-{place}",), learners=(str(place),))
        for place in range(simulation.num_devices)
    ]
    return StreamTrainer(simulation.stream_trainer, pairs, plan.accept_prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a run took."""

    seconds: float  # of the core
    num_responses: int  # aborted ones included
    num_rounds: int
    virtual_s: float  # of the rollouts
    peak_mib: float  # of the process, and what it had before the run


def measure(simulation: Simulation) -> Speed:
    """Play the run and forget its rounds one by one."""
    began_s = time.process_time()
    num_responses, rounds_s = run_virtual(_count(simulation))
    return Speed(
        seconds=time.process_time() - began_s,
        num_responses=num_responses,
        num_rounds=len(rounds_s),
        virtual_s=sum(rounds_s),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


async def _count(simulation: Simulation) -> tuple[int, list[float]]:
    num_responses, rounds_s = 0, []
    async for played in play(simulation):
        num_responses += len(played.result.generated)
        rounds_s.append(played.rollout_s)
    return num_responses, rounds_s


def measure_apart(simulation: Simulation) -> Speed:
    """In a process of its own, so that its peak is not that of an earlier run."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (simulation,))


@contextmanager
def profiled(num_lines: int) -> Iterator[None]:
    """Print the functions that take longest; nothing for 0 lines."""
    profile = cProfile.Profile(time.process_time)
    if num_lines:
        profile.enable()
    yield
    profile.disable()
    if num_lines:
        pstats.Stats(profile).sort_stats("tottime").print_stats(num_lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--devices", type=int, default=128, help="(default: %(default)s)")
    made.add_argument("--prompts", type=int, default=128, help="of a step (default: %(default)s)")
    made.add_argument("--responses", type=int, default=8, help="of a prompt (default: %(default)s)")
    made.add_argument("--steps", type=int, default=40, help="(default: %(default)s)")
    made.add_argument("--policy", choices=KINDS, help="(default: each of them)")
    made.add_argument("--median", type=float, default=500.0, help="tokens of a response")
    made.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    made.add_argument("--stream", action="store_true", help="free devices in mid-round")
    made.add_argument("--growth", action="store_true", help="ever more responses, then devices")
    made.add_argument("--profile", type=int, default=0, help="lines of a profile (default: none)")
    return made


def simulations(options: argparse.Namespace) -> Iterator[Simulation]:
    """What the options ask for."""
    asked = ((options.devices, options.prompts, options.steps),)
    for devices, prompts, steps in GROWTH if options.growth else asked:
        for kind in [options.policy] if options.policy else KINDS:
            yield Simulation(
                policy=policy_of(kind),
                num_devices=devices,
                batch=BatchConfig(prompts_per_step=prompts, responses_per_prompt=options.responses),
                num_steps=steps,
                seed=options.seed,
                stream_trainer=StreamTrainerConfig(enabled=options.stream),
                engine=SimulatedEngineConfig(lengths=LengthModel(median_tokens=options.median)),
            )


COLUMNS = (
    "policy",
    "devices",
    "responses a step",
    "steps",
    "seconds",
    "a step",
    "µs a response",
    "responses/s",
    "peak MiB",
)


def row_of(simulation: Simulation, speed: Speed) -> tuple[str, ...]:
    batch = simulation.batch
    return (
        simulation.policy.kind,
        str(simulation.num_devices),
        str(batch.prompts_per_step * batch.responses_per_prompt),
        str(speed.num_rounds),
        f"{speed.seconds:.2f}",
        f"{speed.seconds / speed.num_rounds:.3f}",
        f"{1e6 * speed.seconds / speed.num_responses:.0f}",
        f"{speed.num_responses / speed.seconds:,.0f}",
        f"{speed.peak_mib:.0f}",
    )


def main() -> None:
    options = parser().parse_args()
    table, so_far = Table(*COLUMNS, title="simulated rounds"), Console(stderr=True)
    for simulation in simulations(options):
        with profiled(options.profile):
            speed = measure(simulation) if options.profile else measure_apart(simulation)
        row = row_of(simulation, speed)
        so_far.print(*row)
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
