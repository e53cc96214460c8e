"""The seeding window of a step's round: given to the round in place of the stream trainer, which
decides as long as it is open, and recorded when the round is over.

PlannedWindow of the step ─▶ SeedingWindow ─▶ the round ─▶ WindowRecord
"""

from __future__ import annotations

from dataclasses import replace

from tasks.rounds.records import RoundInputs, RoundResult
from tasks.rounds.report import RolloutReport
from tasks.rounds.window_record import window_record
from tasks.run.plan import StepPlan
from tasks.run.run_context import RunContext
from tasks.scheduling.device_groups import DeviceGroup, separable_groups
from tasks.scheduling.seeding_window import SeedingWindow
from tasks.scheduling.stream_training import FreesDevices


def device_groups_of(run: RunContext, engines: tuple[str, ...]) -> tuple[DeviceGroup, ...]:
    """What these engines and the run's learners can be told apart into; a rank accumulates
    alone."""
    generating = {name: frozenset(run.devices_of(name)) for name in engines}
    training = {name: frozenset(run.devices_of(name)) for name in run.learners}
    return separable_groups(generating, training, [(name,) for name in run.learners])


def with_window(plan: StepPlan, alone: FreesDevices) -> FreesDevices:
    """Who frees devices in this step's round: the seeding window where it has one."""
    if plan.window is None:
        return alone
    groups = device_groups_of(plan.run, plan.run.engines)
    return SeedingWindow(plan.window.window_s, groups, alone)


def with_record(
    report: RolloutReport, inputs: RoundInputs, result: RoundResult, began_s: float
) -> RolloutReport:
    """The report with what became of the window, if the round had one. began_s: when it began, Unix
    seconds."""
    window = inputs.stream_trainer
    if not isinstance(window, SeedingWindow):
        return report
    return replace(report, window=window_record(window, result, began_s))
