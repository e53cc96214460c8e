"""The engines' layout of a run: what the parallelism planner wants for a round, made true before
the round begins.

    planner state ─ size of this layout ──▶ same as now? ── yes ─────────────────▶ round ──▶ observe
                                                └── no: tear down, rebuild, publish ──┘
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

from artifacts.records import Span
from flows.config.run_config import RunConfig
from flows.run import OpenRun
from tasks.cluster.devices import device_map, engine_members
from tasks.engines.model_files import read_head_counts
from tasks.fleet import Fleet
from tasks.report import StepReport
from tasks.scheduling.parallelism import (
    LayoutState,
    PlannerState,
    RoundReading,
    observe,
    possible_sizes,
)
from tasks.scheduling.throughput import Demand, ThroughputProfile, best_size, not_slower
from tasks.train import publish

logger = logging.getLogger(__name__)

# tokens that a response may have over those it has on average: 16 in the paper's tasks, 7 to 14 in
# tiny-mix
BOUND_PER_MEAN = 8


class EngineLayouts:
    """The planner of one run; it does nothing when it is off."""

    def __init__(self, run: OpenRun) -> None:
        """Raises ValueError when the profile is unreadable or the configured size cannot be."""
        self._config = run.config
        self._profile = read_profile(run.config.planner.profile)
        self._sizes = sizes_of(run.config, run.context.model_path)
        self._num_devices = len(device_map(run.config.cluster)["rollout"])
        self.state = (
            PlannerState.from_json(run.commits[-1].planner) if run.commits else PlannerState()
        )

    async def arrange(self, fleet: Fleet, layout: str) -> tuple[Span, ...]:
        """Bring the engines into the layout of a round; what that cost every device, nothing if
        nothing changed."""
        if not self._config.planner.enabled or not layout:
            return ()
        if layout not in self.state.layouts:
            self.state = self.state.having(layout, LayoutState(size=self._first_size(layout)))
        size = self.state.layouts[layout].size
        members = engine_members(self._config.cluster, size)
        if members == fleet.run.members:
            return ()
        began_s = time.time()
        logger.info(
            "relayout layout=%s tensor_parallel_size=%d engines=%d", layout, size, len(members)
        )
        await fleet.relayout(members)
        await publish(fleet.run)
        ended_s = time.time()
        run = fleet.run
        return tuple(
            Span(device=device, actor=engine, kind="wake", start_s=began_s, end_s=ended_s)
            for engine in run.engines
            for device in run.devices_of(engine)
        )

    def observe(self, report: StepReport) -> PlannerState:
        """The state after the step, to be committed with it; the state to go on with, too."""
        layout, rollout = report.plan.round.layout, report.rollout
        if self._config.planner.enabled and layout:
            reading = RoundReading(
                layout=layout,
                num_preemptions=rollout.num_preemptions,
                kv_usage_max=rollout.kv_usage_max,
            )
            sizes = self._sizes_for(self.state.layouts[layout].size, report)
            self.state = observe(
                self.state, reading, sizes, self._profile.kv_tokens if self._profile else {}
            )
        return self.state

    def _sizes_for(self, now: int, report: StepReport) -> tuple[int, ...]:
        """The possible sizes; with a profile, without those that would be slower for a round such
        as this one was."""
        if self._profile is None:
            return self._sizes
        num_responses = len(report.plan.round.prompts) * report.plan.round.launch_per_prompt
        mean = max(1, sum(report.rollout.tokens.values()) // num_responses)
        demand = Demand(
            num_responses=num_responses,
            prompt_tokens=_prompt_tokens(self._config),
            response_tokens=mean,
        )
        return not_slower(self._profile, self._sizes, now, self._num_devices, demand)

    def _first_size(self, layout: str) -> int:
        """The tensor-parallel size of a layout's first engines, by the profile if there is one."""
        if self._profile is None:
            return self._config.engine.tensor_parallel_size
        return best_size(
            self._profile, self._sizes, self._num_devices, demand_of(self._config, layout)
        )


def read_profile(path: str) -> ThroughputProfile | None:
    """The profile of this file; None for an empty path. Raises ValueError when it cannot be
    used."""
    if not path:
        return None
    try:
        return ThroughputProfile.from_json(Path(path).read_text())
    except OSError as error:
        raise ValueError(
            f"planner.profile must be a readable file, got {path!r} ({error.strerror}); make one"
            " with 'rollflow calibrate'"
        ) from error


def sizes_of(config: RunConfig, model_path: str) -> tuple[int, ...]:
    """The sizes that the planner may choose from. ValueError when the one it begins with is not
    among them."""
    heads, kv_heads = read_head_counts(model_path)
    devices, largest = (
        device_map(config.cluster)["rollout"],
        config.planner.max_tensor_parallel_size,
    )
    sizes = possible_sizes(devices, config.cluster.devices_per_host, heads, kv_heads, largest)
    first = config.engine.tensor_parallel_size
    if config.planner.enabled and first not in sizes:
        raise ValueError(
            f"engine.tensor_parallel_size must be one of {', '.join(map(str, sizes))} for the"
            f" planner (of {heads} heads and {kv_heads} KV heads, on {len(devices)} rollout"
            f" devices), got {first}; change it"
        )
    return sizes


def demand_of(config: RunConfig, layout: str) -> Demand:
    """What a round of this layout asks of the engines, before anything is known of its
    responses."""
    shape = config.scheduling.algebra(config.batch).shape_of(layout)
    mean = max(1, config.sampling.max_response_tokens // BOUND_PER_MEAN)
    return Demand(
        num_responses=shape.launch_responses,
        prompt_tokens=_prompt_tokens(config),
        response_tokens=mean,
    )


def _prompt_tokens(config: RunConfig) -> int:
    """The longest prompt that there is room for."""
    return config.engine.max_model_len - config.sampling.max_response_tokens


def with_relayout(report: StepReport, relayout: tuple[Span, ...]) -> StepReport:
    """The report of a step that begins with the rebuilding of its engines."""
    if not relayout:
        return report
    return replace(report, relayout=relayout, started_s=min(span.start_s for span in relayout))
