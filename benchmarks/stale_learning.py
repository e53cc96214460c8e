"""What staleness costs learning: every loss on tokens that are all so many versions old, beside the
synchronous run, over several seeds.

    python -m benchmarks.stale_learning --preset tiny --lag 2 --seeds 0 1 2 3 4 --out DIR \\
        --core 1 --plot docs/images/stale_learning.png
    python -m benchmarks.stale_learning --out DIR --only-report     # of what is there

Every run is DIR/VARIANT-SEED.jsonl: its settings, a line a step, its held-out reward. What is
finished there is not run again, so that a command that was stopped goes on when it is given again,
and two of them share DIR if their seeds or variants differ. Runs of one seed ask the same
questions with the same noise, and are paired.

The lag is constant and the rounds are plain synchronous ones (`stale_learning_run`). A loss without
a correction, which the configuration refuses beside asynchronous scheduling, can so be tried.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from artifacts.reports.canvas import png
from benchmarks.stale_learning_figures import Recorded, picture, read_runs, table
from benchmarks.stale_learning_run import StaleRun
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig
from tasks.engines.base import Replica
from tasks.learner.models import resolve_model
from tasks.rewards.registry import Rewards, build_rewards

Values = dict[str, Any]  # Any: JSON values, checked by RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A line of the table."""

    lag: int | None = None  # None: that of the command
    learner: Values = field(default_factory=dict)  # what differs from the preset's learner


def _loss(kind: str, **settings: object) -> Values:
    return {"loss": {"kind": kind, **settings}}


_TWICE = {"mini_batches": 2, "passes": 2}
_CRITIC = {"advantage": {"kind": "gae"}, "critic": {"optimizer": {"learning_rate": 3e-4}}}
_K3_GATE = {"kind": "drift", "statistic": "k3", "bound": 0.05}
_MASK = {"kind": "drift", "statistic": "k1", "bound": 0.02, "negative_only": True}
UNTRAINED, REFERENCE = "untrained", "sync"
VARIANTS: Mapping[str, Variant] = {
    UNTRAINED: Variant(lag=0),
    REFERENCE: Variant(lag=0),
    "ppo": Variant(),
    "ppo-engine": Variant(learner=_loss("ppo_clip", old_policy="engine")),
    "ppo-dual": Variant(learner=_loss("ppo_clip", old_policy="engine", dual_clip=3.0)),
    "tis-token": Variant(learner=_loss("reinforce")),
    "tis-sequence": Variant(learner=_loss("reinforce", level="sequence")),
    "tis-geometric": Variant(learner=_loss("reinforce", level="geometric")),
    "cispo": Variant(learner=_loss("cispo")),
    "topr": Variant(learner=_loss("topr")),
    "topr-sequence": Variant(learner=_loss("topr", level="sequence")),
    "topr-weighted": Variant(learner=_loss("topr", positive_weight=1.0, negative_weight=0.5)),
    "gspo": Variant(learner=_loss("gspo")),
    "icepop": Variant(learner=_loss("icepop")),
    "gate-k3": Variant(learner={"gate": _K3_GATE}),
    "gate-mask": Variant(learner={"gate": _MASK}),
    "reinforce++": Variant(learner={"advantage": {"kind": "reinforce_plus_plus"}}),
    "uncorrected": Variant(learner=_loss("policy_gradient")),
    "updates-sync": Variant(lag=0, learner=_TWICE),
    "updates": Variant(learner=_TWICE),
    "critic-sync": Variant(lag=0, learner=_CRITIC),
    "critic": Variant(learner=_CRITIC),
    "ppo-lag-8": Variant(lag=8),
    "wrong": Variant(lag=8, learner=_loss("policy_gradient")),
}


def config_of(variant: str, preset: str, seed: int, num_steps: int | None) -> RunConfig:
    """The run of a variant: synchronous rounds, whatever the preset has."""
    settings: Values = {
        "preset": preset,
        "seed": seed,
        "scheduling": {"kind": "sync"},
        "learner": VARIANTS[variant].learner,
    }
    return RunConfig.model_validate(
        overlay(settings, {} if num_steps is None else {"num_steps": num_steps})
    )


def settings_of(variant: str, given: argparse.Namespace, config: RunConfig) -> Values:
    """The first line of a run's file: what makes its numbers, beside the preset's own values."""
    own = VARIANTS[variant]
    return {
        "variant": variant,
        "preset": given.preset,
        "seed": config.seed,
        "lag": given.lag if own.lag is None else own.lag,
        "num_steps": 0 if variant == UNTRAINED else config.num_steps,
        "learner": own.learner,
        "alarm": config.alarm.model_dump(mode="json"),
    }


class Machine:
    """The engine and the rewards that all runs of this process share."""

    def __init__(self, config: RunConfig, core: int) -> None:
        self.model_path = str(resolve_model(config.model, Path(config.keep.model_cache)))
        self.rewards: Rewards = build_rewards(config.rewards)
        self.engine: Replica = config.engine.build_engine(
            self.model_path, "engine-0", (core,), config.seed
        )

    def close(self) -> None:
        self.engine.close()
        self.rewards.close()


@contextmanager
def handover(config: RunConfig) -> Iterator[Path]:
    """An empty directory, in memory if the machine has such a place."""
    parent = Path(config.keep.weights_dir)
    with tempfile.TemporaryDirectory(dir=parent if parent.is_dir() else None) as directory:
        yield Path(directory)


async def play(machine: Machine, config: RunConfig, settings: Values, path: Path) -> None:
    """Play a run into its file, line by line."""
    began_s = time.process_time()
    with path.open("w") as file, handover(config) as directory:

        def tell(line: Values) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        tell(settings)
        run = StaleRun(
            config, settings["lag"], machine.engine, machine.rewards, machine.model_path, directory
        )
        async for played in run.steps(settings["num_steps"]):
            tell({"step": played.step, "figures": played.figures})
        heldout = await run.heldout_reward(settings["num_steps"])
        cpu_s = time.process_time() - began_s
        tell({"heldout": heldout, "cpu_s": cpu_s})
    print(f"{path.stem}: held-out {heldout:.3f} in {cpu_s:.0f} CPU seconds", flush=True)


def check_settings(recorded: Recorded, settings: Values) -> None:
    """ValueError if a file has the run of other settings."""
    if recorded.settings != settings:
        differing = [name for name in settings if recorded.settings.get(name) != settings[name]]
        raise ValueError(
            f"a run's file must have its settings, {recorded.name} differs in"
            f" {', '.join(differing)}; take another --out, or delete the file"
        )


def play_missing(given: argparse.Namespace) -> None:
    """Every run that is not finished, seed by seed."""
    machine: Machine | None = None
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        for seed in given.seeds:
            for variant in given.variants:
                config = config_of(variant, given.preset, seed, given.steps)
                settings = settings_of(variant, given, config)
                path = given.out / f"{variant}-{seed}.jsonl"
                recorded = Recorded.read(path)
                if recorded is not None and recorded.is_finished:
                    check_settings(recorded, settings)
                    continue
                machine = machine or Machine(config, given.core)
                asyncio.run(play(machine, config, settings, path))
    finally:
        if machine is not None:
            machine.close()


def pin(core: int) -> None:
    """This process, and what it starts, on one core."""
    os.sched_setaffinity(0, {core})
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--lag", type=int, default=2, help="of the variants without one of theirs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--steps", type=int, help="instead of the preset's")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="directory of the runs' files")
    parser.add_argument("--only-report", action="store_true", help="run nothing")
    parser.add_argument("--plot", type=Path, help="where to draw the curves")
    given = parser.parse_args(arguments)
    if not given.only_report:
        pin(given.core)
        play_missing(given)
    runs = read_runs(given.out, given.variants)
    print(table(runs, REFERENCE))
    if given.plot:
        given.plot.write_bytes(png(picture(runs, REFERENCE)))


if __name__ == "__main__":
    main()
