"""The engines' layout in a run: before a round begins, engines are rebuilt in the tensor-parallel
size that the parallelism planner wants for the round.

    planner state ─ size of this layout ──▶ same as now? ── yes ─────────────────▶ round ──▶ observe
                                                └── no: tear down, rebuild, publish ──┘"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

from artifacts.records import Span
from flows.config.engine_sizes import sizes_of
from flows.config.run_config import RunConfig
from flows.run import OpenRun
from tasks.cluster.devices import device_map, engine_members
from tasks.engines.model_files import read_head_counts
from tasks.metrics.report import StepReport
from tasks.run.fleet import Fleet
from tasks.scheduling.layout_planner import (
    Demand,
    LayoutPlanner,
    ThroughputProfile,
    expected_demand,
    seen_demand,
)
from tasks.scheduling.parallelism import PlannerState, RoundReading
from tasks.train import publish

logger = logging.getLogger(__name__)


class EngineLayouts:
    """Applies the planner in one run; does nothing when the planner is off."""

    def __init__(self, run: OpenRun) -> None:
        """Raises ValueError for an unreadable profile or an impossible tensor-parallel size."""
        self._config = run.config
        self._planner = LayoutPlanner(
            sizes=sizes_of(run.config, read_head_counts(run.context.model_path)),
            num_devices=len(device_map(run.config.cluster)["rollout"]),
            first_size=run.config.engine.tensor_parallel_size,
            profile=read_profile(run.config.planner.profile),
            by_lengths=run.config.planner.rule == "lengths",
        )
        self.state = (
            PlannerState.from_json(run.commits[-1].planner) if run.commits else PlannerState()
        )

    async def arrange(self, fleet: Fleet, layout: str) -> tuple[Span, ...]:
        """Bring the engines into a round's layout; returns spans of the rebuild, if any."""
        if not self._config.planner.enabled or not layout:
            return ()
        self.state = self._planner.begun(self.state, layout, demand_of(self._config, layout))
        size = self.state.layouts[layout].size
        members = engine_members(self._config.cluster, size)
        if members == fleet.run.members:
            return ()
        began_s = time.time()
        logger.info(
            "relayout layout=%s tensor_parallel_size=%d engines=%d", layout, size, len(members)
        )
        await fleet.relayout(members)
        if fleet.run.learners:  # else they keep the first model's weights
            await publish(fleet.run)
        ended_s = time.time()
        run = fleet.run
        return tuple(
            Span(device=device, actor=engine, kind="wake", start_s=began_s, end_s=ended_s)
            for engine in run.engines
            for device in run.devices_of(engine)
        )

    def observe(self, report: StepReport) -> PlannerState:
        """Return the planner's state after a step, which is committed with the step."""
        layout, rollout = report.plan.round.layout, report.rollout
        if self._config.planner.enabled and layout:
            reading = RoundReading(
                layout=layout,
                num_preemptions=rollout.num_preemptions,
                kv_usage_max=rollout.kv_usage_max,
            )
            planned = report.plan.round
            demand = seen_demand(
                len(planned.prompts) * planned.launch_per_prompt,
                _prompt_tokens(self._config),
                sum(rollout.tokens.values()),
                rollout.held_tokens,
            )
            self.state = self._planner.after(self.state, reading, demand)
        return self.state


def read_profile(path: str) -> ThroughputProfile | None:
    """Read a throughput profile; None for an empty path. Raises ValueError for an unusable file."""
    if not path:
        return None
    try:
        return ThroughputProfile.from_json(Path(path).read_text())
    except OSError as error:
        raise ValueError(
            f"planner.profile must be a readable file, got {path!r} ({error.strerror}); make one"
            " with 'rollflow calibrate'"
        ) from error


def demand_of(config: RunConfig, layout: str) -> Demand:
    """Estimate the load of a round with this layout, before any of its responses is known."""
    shape = config.scheduling.algebra(config.batch).shape_of(layout)
    return expected_demand(shape, _prompt_tokens(config), config.sampling.max_response_tokens)


def _prompt_tokens(config: RunConfig) -> int:
    return config.engine.max_model_len - config.sampling.max_response_tokens


def with_relayout(report: StepReport, relayout: tuple[Span, ...]) -> StepReport:
    """Return the report of a step that begins with this rebuild of engines, if there was one."""
    if not relayout:
        return report
    return replace(report, relayout=relayout, started_s=min(span.start_s for span in relayout))
