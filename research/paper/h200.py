"""A recorded run on one H200, played again: on a machine that is fitted to two of its five steps,
and on the roofline of an H200.

`fitted` predicts the steps that it was not fitted to. How fast the host decoded changed by a third
from step to step, with equal batches; `at_pace` is the same machine, its decoding slowed or sped up
by what the step's own responses say of that (`calibration.decode_drift`). `roofline` has its
constants from `tasks.simulation.hardware`, two of which were measured on this run. The first step
compiles its training, so that only its rollout is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from artifacts.store import Store
from flows.config.run_config import RunConfig
from flows.played_config import played_run
from research.paper.experiment import Experiment, FigurePart, Observed, Played, Scale, mean
from research.paper.published import H200_COMPARED
from tasks.simulation.calibration import calibrated, decode_drift, pace_of
from tasks.simulation.hardware import DEVICES
from tasks.simulation.machine import Machine, TrainingCost
from tasks.simulation.protocols import MachineCosts
from tasks.simulation.recorded import RecordedRun, read_run, recorded_work
from tasks.simulation.shapes import ModelShape
from tasks.simulation.steps import play

RUN = Path(__file__).parents[1] / "results" / "h200_run"
FITTED = (2, 5)  # the first short step that compiles nothing, and the long one
LONG_TAIL = ModelShape(  # of random weights; its responses end with a probability of 1/250
    name="long-tail-0.95b",
    num_layers=12,
    hidden_size=2048,
    num_heads=16,
    num_kv_heads=8,
    head_size=128,
    intermediate_size=8192,
    vocabulary_size=49_152,
    is_tied=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCase:
    """One step of the recorded run on a machine."""

    machine: str  # fitted, at_pace or roofline
    step: int

    @property
    def label(self) -> str:
        return f"H200, step {self.step} of the recorded run, {self.machine}"

    @property
    def weight(self) -> float:
        return 1.0

    def play(self) -> tuple[Observed, ...]:
        run = recorded()
        config = RunConfig.model_validate(run.config)
        simulated = played_run(config, machine_of(self.machine, self.step), work(), self.step)
        played = play(simulated).planned.steps[self.step - 1]
        figures = {name: getattr(played, name) for name in ("step_s", "rollout_s", "train_s")}
        return (Observed(kind=played.kind, figures=figures),)


@cache
def recorded() -> RecordedRun:
    """Read the run, which is kept without its texts."""
    return read_run(Store.open(str(RUN)))


work = cache(lambda: recorded_work(recorded()))


@cache
def fitted_run() -> RecordedRun:
    """The run as if it had had its first step, which no calibration counts, and the fitted ones."""
    run = recorded()
    return replace(run, steps=tuple(run.steps[number - 1] for number in (1, *FITTED)))


def machine_of(name: str, step: int) -> MachineCosts:
    """Returns the machine on which a step is played."""
    if name == "roofline":
        return Machine(
            model=LONG_TAIL,
            device=DEVICES["h200"],
            num_devices=1,
            training=TrainingCost(num_logprob_models=0),
            context_tokens=250,
            is_eager=True,
        )
    machine = calibrated(fitted_run())
    if name == "fitted":
        return machine
    drift = decode_drift(pace_of(fitted_run()), [recorded().steps[step - 1]])
    return replace(
        machine,
        fixed_s=drift * machine.fixed_s,
        step_s_per_sequence=drift * machine.step_s_per_sequence,
        prefill_s_per_token=drift * machine.prefill_s_per_token,
    )


def h200(scale: Scale) -> Experiment:
    """The steps of the recorded run that a machine was not fitted to."""
    return Experiment(
        name="h200",
        about="Steps of a recorded run on one H200, simulated beside measured",
        unit="seconds",
        parts=tuple(_parts()),
    )


def _parts() -> Iterator[FigurePart]:
    for machine, compared in H200_COMPARED.items():
        for figure, steps in compared.items():
            for step in steps:
                name = f"h200/{machine}/{step}/{figure}"
                case = ReplayCase(machine=machine, step=step)
                figures = partial(_figure, name, figure)
                yield FigurePart(name=name, cases={"step": case}, figures=figures)


def _figure(name: str, figure: str, played: Played) -> dict[str, float]:
    return {name: mean(played["step"], figure)}
