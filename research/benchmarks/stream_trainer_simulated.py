"""What the stream trainer saves, by how many devices it may free and when, on simulated engines and
learners.

    python -m research.benchmarks.stream_trainer_simulated --devices 16 --train-share 0.25

Synchronous steps on colocated devices (`tasks.simulation`). How much time training takes follows
from the share of a plain step that it is to have. Leaves out what it costs a device to change over
(a GPU may have to give its KV cache back), and the update, which is the same for all. A first step,
of whose responses nothing is known, is played and not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from tasks.engines.simulation.lengths import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.stream_training import StreamTrainerConfig
from tasks.simulation.figures import PlayedRun
from tasks.simulation.plain import PlainMachine, PlainWorkload
from tasks.simulation.steps import SimulatedRun, play

LARGE_GPU = PlainMachine()
WORK = PlainWorkload(longest_tokens=16_000, lengths=LengthModel(median_tokens=500, sigma=1.1))
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


def synchronous(machine: PlainMachine, work: PlainWorkload, batch: BatchConfig) -> SimulatedRun:
    """One step of which nothing is counted, then one that is."""
    return SimulatedRun(machine=machine, work=work, policy=SyncConfig(), batch=batch, num_steps=2)


def with_training(run: SimulatedRun, machine: PlainMachine, train_share: float) -> SimulatedRun:
    """The run on this machine, its learners so fast that training has this share of a plain step,
    were it dealt without a remainder."""
    plain = counted(replace(run, machine=replace(machine, token_s=1.0)))
    rollout_s, train_s = plain.mean("rollout_s"), plain.mean("train_device_s")
    token_s = train_share / (1 - train_share) * rollout_s * machine.num_devices / train_s
    return replace(run, machine=replace(machine, token_s=token_s))


def counted(run: SimulatedRun) -> PlayedRun:
    """The steps that count."""
    return play(run).after(1)


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
        "--steps",
        type=int,
        default=3,
        help="steps that are averaged (default: %(default)s)",
    )
    return made


def checked(options: argparse.Namespace) -> argparse.Namespace:
    """ValueError for numbers that leave nothing to compare."""
    if not 0 < options.train_share < 1 or options.devices < 2 or options.steps < 1:
        raise ValueError(
            "--train-share must lie between 0 and 1, --devices be >= 2 and --steps >= 1, got"
            f" {options}"
        )
    return options


def compared(run: SimulatedRun) -> Iterator[tuple[str, ...]]:
    """A row of the table for every variant, as they are played."""
    plain_s = 0.0
    for name, config in VARIANTS.items():
        played = counted(replace(run, stream_trainer=config))
        step_s = played.mean("step_s")
        plain_s = plain_s or step_s
        tails = [step.bubbles["tail"] for step in played.steps]
        yield (
            name,
            f"{step_s:.1f}",
            f"{step_s / plain_s:.3f}",
            f"{played.mean('rollout_s'):.1f}",
            f"{sum(tails) / len(tails):.3f}",
            f"{played.mean('num_streamed'):.0f}",
            f"{played.mean('num_migrated'):.0f}",
        )


def main() -> None:
    reader = parser()
    try:
        options = checked(reader.parse_args())
    except ValueError as error:
        reader.error(str(error))
    title = (
        f"{options.devices} devices, {options.prompts} prompts, {options.train_share:.0%} training,"
        f" {options.steps} steps"
    )
    table = Table(*COLUMNS, title=title)
    machine = replace(LARGE_GPU, num_devices=options.devices)
    batch = BatchConfig(prompts_per_step=options.prompts, responses_per_prompt=8)
    run = replace(synchronous(machine, WORK, batch), num_steps=1 + options.steps)
    for row in compared(with_training(run, machine, options.train_share)):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
