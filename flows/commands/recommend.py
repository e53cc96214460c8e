"""rollflow recommend: which policy, eta and engine size a model should be trained with on some
devices, by playing the candidates on simulated ones.

    sizes that fit ─▶ synchronous steps of each ─▶ best size ─▶ policies at it ─▶ table, settings

Candidates are played by the real driver and policies on the machine of `tasks.simulation`; every
one with the same seeds, so that they differ in nothing but themselves. Leaves out policies that are
off-policy: what their staleness costs is no matter of seconds.
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tasks.simulation.machine import Machine
    from tasks.simulation.shapes import ModelShape
    from tasks.simulation.simulated_run import SimulatedRun

DESCRIPTION = """\
Play a model on simulated devices with every policy that keeps it on policy, and
say which one, which eta and which engine size make the shortest steps. Prints
the settings for rollflow train. Nothing is started.
"""
ETAS = (1.125, 1.25, 1.5)
LARGEST = 8  # devices of an engine
WORKLOADS = ("math", "code", "judge", "mixed", "no_tail")
WIDTH = 110  # characters of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What may be recommended."""

    size: int  # devices of an engine
    eta: float = 1.0  # on prompts and on responses; 1 is a synchronous step
    streams: bool = False  # whether the stream trainer frees devices

    @property
    def settings(self) -> Mapping[str, str]:
        """As `--set` takes them."""
        policy = {"scheduling.kind": "sync"}
        if self.eta > 1:
            policy = {
                "scheduling.kind": "tail_batching",
                "scheduling.prompt_overprovision": f"{self.eta:g}",
                "scheduling.response_overprovision": f"{self.eta:g}",
            }
        return {
            **policy,
            "engine.tensor_parallel_size": str(self.size),
            "stream_trainer.enabled": json.dumps(self.streams),
        }

    @property
    def label(self) -> str:
        name = "synchronous" if self.eta == 1 else f"tail batching, eta {self.eta:g}"
        return f"{name}, stream trainer" if self.streams else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a candidate takes, over its seeds."""

    candidate: Candidate
    step_s: tuple[float, ...]  # mean step of each seed
    rollout_share: float
    tokens_per_s: float

    @property
    def mean_s(self) -> float:
        return fmean(self.step_s)

    @property
    def spread_s(self) -> float:
        """Half of what lies between its best and its worst seed."""
        return (max(self.step_s) - min(self.step_s)) / 2


def parser() -> ArgumentParser:
    made = ArgumentParser(prog="rollflow recommend", description=DESCRIPTION)
    made.add_argument(
        "--model", default="qwen2.5-7b", help="a name, or a config.json (default: %(default)s)"
    )
    made.add_argument("--device", default="h800", help="kind of device (default: %(default)s)")
    made.add_argument("--devices", type=int, default=16, help="how many (default: %(default)s)")
    made.add_argument(
        "--prompts", type=int, default=128, help="of a step, P0 (default: %(default)s)"
    )
    made.add_argument(
        "--responses", type=int, default=8, help="of a prompt, R0 (default: %(default)s)"
    )
    made.add_argument(
        "--cap", type=int, default=8192, help="tokens of a response at most (default: %(default)s)"
    )
    made.add_argument(
        "--workload",
        default="mixed",
        choices=WORKLOADS,
        help="what is asked, with lengths like the published ones (default: %(default)s)",
    )
    made.add_argument("--seeds", type=int, default=2, help="that each plays (default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="where to write all of them")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        expected = [*played(options)]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    best = min(expected, key=lambda each: each.mean_s)
    if options.json is not None:
        options.json.write_text(json.dumps([row(each) for each in expected], indent=1))
    show(expected, best)
    return 0


def played(options: Namespace) -> Iterator[Expected]:
    """Engine sizes with synchronous steps first, then every policy at the best of them. ValueError
    where the model, the devices or the batch cannot be."""
    if min(options.devices, options.prompts, options.responses, options.cap, options.seeds) < 1:
        raise ValueError(f"devices, prompts, responses, cap and seeds must be >= 1, got {options}")
    machine = machine_of(options)
    sizes = machine.sizes(machine.num_devices, LARGEST)
    if not sizes:
        raise ValueError(
            f"{machine.model.name} must fit {LARGEST} devices of {machine.device.name}, its"
            " weights do not; choose a larger device or another model"
        )
    plain = [expect(Candidate(size=size), machine, options) for size in sizes]
    yield from plain
    best = min(plain, key=lambda each: each.mean_s).candidate
    for eta in (1.0, *ETAS):
        for streams in (False, True):
            candidate = replace(best, eta=eta, streams=streams)
            if candidate != best:
                yield expect(candidate, machine, options)


def machine_of(options: Namespace) -> Machine:
    """The devices with the model on them; the learner as RollPacker has it for models of its
    size."""
    from tasks.simulation.hardware import DEVICES
    from tasks.simulation.machine import Machine
    from tasks.simulation.shapes import MODELS
    from tasks.simulation.training_cost import ROLLPACKER, Training

    if options.device not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {options.device!r}")
    path = Path(options.model)
    if options.model in MODELS:
        model = MODELS[options.model]
    elif path.is_file():
        model = read_shape(path)
    else:
        names = ", ".join(MODELS)
        raise ValueError(f"--model must be one of {names} or a config.json, got {options.model!r}")
    training = ROLLPACKER.get(options.model, Training())
    if options.devices % training.group_size:
        training = Training()
    return Machine(
        model=model,
        device=DEVICES[options.device],
        num_devices=options.devices,
        training=training,
    )


def read_shape(path: Path) -> ModelShape:
    """Of a model's config.json. ValueError for what is none, or of a kind that is not modelled."""
    from tasks.simulation.shapes import ModelShape

    try:
        return ModelShape.from_config(path.parent.name or path.stem, json.loads(path.read_text()))
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(
            f"--model must be a config.json of transformers, {path}: {error}"
        ) from None


def expect(candidate: Candidate, machine: Machine, options: Namespace) -> Expected:
    """A period of it with each seed."""
    from tasks.simulation.steps import play

    runs = [
        play(run_of(candidate, machine, options, seed)).periods(skipped=0)
        for seed in range(options.seeds)
    ]
    seconds = sum(run.total("step_s") for run in runs)
    return Expected(
        candidate=candidate,
        step_s=tuple(run.mean("step_s") for run in runs),
        rollout_share=sum(run.total("rollout_s") for run in runs) / seconds,
        tokens_per_s=fmean(run.tokens_per_s for run in runs),
    )


def run_of(candidate: Candidate, machine: Machine, options: Namespace, seed: int) -> SimulatedRun:
    """A period of this candidate."""
    from pydantic import TypeAdapter

    from tasks.scheduling.batch import BatchConfig
    from tasks.scheduling.policies.registry import SchedulingConfig
    from tasks.scheduling.stream_training import StreamTrainerConfig
    from tasks.simulation.simulated_run import SimulatedRun
    from tasks.simulation.workloads import workload

    chosen = {
        name.removeprefix("scheduling."): value
        for name, value in candidate.settings.items()
        if name.startswith("scheduling.")
    }
    policy = TypeAdapter(SchedulingConfig).validate_python(chosen)
    batch = BatchConfig(prompts_per_step=options.prompts, responses_per_prompt=options.responses)
    return SimulatedRun(
        machine=machine,
        work=workload(options.workload, options.cap),
        policy=policy,
        batch=batch,
        num_steps=policy.algebra(batch).period_steps,
        tensor_parallel_size=candidate.size,
        stream_trainer=StreamTrainerConfig(enabled=candidate.streams),
        devices_per_rank=machine.training.group_size,
        seed=seed,
    )


def row(expected: Expected) -> dict[str, object]:
    """As JSON has it."""
    return {
        "settings": dict(expected.candidate.settings),
        "step_s": list(expected.step_s),
        "rollout_share": expected.rollout_share,
        "tokens_per_s": expected.tokens_per_s,
    }


def show(expected: Iterable[Expected], best: Expected) -> None:
    """All of them, the best one, and how to train with it."""
    ordered = sorted(expected, key=lambda each: each.mean_s)
    table = Table("policy", "devices an engine", "step s", "of the best", "rollout", "tokens/s")
    for each in ordered:
        table.add_row(
            each.candidate.label,
            str(each.candidate.size),
            f"{each.mean_s:.1f} +- {each.spread_s:.1f}",
            f"{each.mean_s / best.mean_s:.2f}",
            f"{each.rollout_share:.0%}",
            f"{each.tokens_per_s:,.0f}",
        )
    console = Console(width=WIDTH)
    console.print(table)
    console.print(why(ordered, best))
    words = (f"--set {name}={value}" for name, value in best.candidate.settings.items())
    print(f"rollflow train {shlex.join(' '.join(words).split())}")


def why(ordered: Sequence[Expected], best: Expected) -> str:
    """In a sentence."""
    plain = min(
        (each for each in ordered if each.candidate == Candidate(size=each.candidate.size)),
        key=lambda each: each.mean_s,
    )
    close = [each for each in ordered[1:] if each.mean_s - each.spread_s < best.mean_s]
    alike = f"; within their spread: {close[0].candidate.label}" if close else ""
    gain = plain.mean_s / best.mean_s
    return (
        f"{best.candidate.label}: {best.mean_s:.1f} s a step, {gain:.2f} times as fast as"
        f" synchronous steps, of which {plain.rollout_share:.0%} is rollout{alike}. Simulated;"
        " lengths like the published ones, so measure it before you rely on it."
    )


if __name__ == "__main__":
    sys.exit(main())
