"""What a candidate of `rollflow recommend` takes: its very configuration, played in virtual time.

    situation + candidate ─▶ RunConfig ─▶ a period of steps for each draw ─▶ Expected

Every candidate is played with the same draws, so that two differ in nothing but themselves, and
differences are taken draw by draw. What is played is what is written: policy, batch, stream trainer
and placement come from the configuration. Leaves out the limits of its engines (batch, memory),
which are the machine's, and a judge's share of a device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from flows.commands.candidates import Candidate, others, plain
from flows.commands.command_line import sentence
from flows.commands.situation import Situation
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig
from tasks.cluster.devices import device_map
from tasks.cluster.roles import num_environment_workers, parse_role_map
from tasks.scheduling.policies.multilevel import levels_within
from tasks.simulation.figures import PlayedRun
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.steps import play

FEWEST_STEPS = 3  # of a draw: a single step is one draw of its longest response
WARM_UP = 2  # steps in which those that overlap fill their pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a configuration takes, over the draws."""

    candidate: Candidate | None  # None: the recorded run itself
    config: RunConfig
    step_s: tuple[float, ...]  # mean step of each draw
    rollout_share: float
    tokens_per_s: float

    @property
    def mean_s(self) -> float:
        return fmean(self.step_s)

    @property
    def spread_s(self) -> float:
        """Standard deviation over the draws; 0 of a single one."""
        return _spread(self.step_s)

    def lost_s(self, best: Expected) -> tuple[float, float]:
        """Seconds of a step that it takes longer than the best, with their standard deviation over
        the draws, which both share."""
        lost = [own - other for own, other in zip(self.step_s, best.step_s, strict=True)]
        return fmean(lost), _spread(lost)


def compared(place: Situation, num_draws: int, is_off_policy: bool = False) -> tuple[Expected, ...]:
    """All that were played, the shortest step first. ValueError where none can be."""
    sizes = _played(plain(place.sizes), place, num_draws)
    best = min(sizes, key=lambda each: each.mean_s)
    assert best.candidate is not None, "it was played as a candidate"
    more = others(
        best.candidate,
        place.machine.num_devices,
        place.group_size,
        levels_within(best.config.sampling.max_response_tokens),
        is_off_policy=is_off_policy,
    )
    found = _played(more, place, num_draws, (best.config,))
    return tuple(sorted((*sizes, *found), key=lambda each: each.mean_s))


def _played(
    candidates: Iterable[Candidate],
    place: Situation,
    num_draws: int,
    known: Sequence[RunConfig] = (),
) -> list[Expected]:
    """Those that a configuration accepts, each kind of steps once; what it says of others goes to
    standard error."""
    seen = [_steps_of(config) for config in known]
    found: list[Expected] = []
    for candidate in candidates:
        try:
            config = config_of(candidate, place)
        except ValueError as error:
            if candidate.is_plain:
                raise
            print(f"not tried: {candidate.label}: {sentence(error)}", file=sys.stderr)
            continue
        if _steps_of(config) not in seen:
            seen.append(_steps_of(config))
            found.append(expect(config, place, num_draws, candidate))
    return found


def config_of(candidate: Candidate, place: Situation) -> RunConfig:
    """The configuration that a candidate makes. ValueError for what RunConfig refuses."""
    values = candidate.values(place.machine.num_devices)
    roles = place.base.get("cluster", {}).get("roles", "")
    values["cluster"]["roles"] += _other_roles(roles)
    sampling = place.base.get("scheduling", {}).get("dynamic_sampling")
    if sampling is not None:
        values["scheduling"]["dynamic_sampling"] = sampling
    return RunConfig.model_validate(overlay(place.base, values))


def _steps_of(config: RunConfig) -> tuple[object, ...]:
    """What its steps consist of: of a small batch, neighbouring etas launch the same."""
    algebra = config.scheduling.algebra(config.batch)
    size, roles = config.engine.tensor_parallel_size, config.cluster.roles
    return algebra, size, roles, config.stream_trainer.enabled


def expect(
    config: RunConfig, place: Situation, num_draws: int, candidate: Candidate | None = None
) -> Expected:
    """What a configuration takes in so many draws."""
    runs = [_counted(_run(config, place, draw)) for draw in range(num_draws)]
    rollout_s = sum(run.total("rollout_s") for run in runs)
    return Expected(
        candidate=candidate,
        config=config,
        step_s=tuple(run.mean("step_s") for run in runs),
        rollout_share=rollout_s / sum(run.total("step_s") for run in runs),
        tokens_per_s=fmean(run.tokens_per_s for run in runs),
    )


def _run(config: RunConfig, place: Situation, draw: int) -> SimulatedRun:
    """Whole periods of it."""
    algebra = config.scheduling.algebra(config.batch)
    periods = math.ceil(FEWEST_STEPS / algebra.period_steps)
    placed = device_map(config.cluster)
    is_apart = set(placed["learner"]).isdisjoint(placed["rollout"])
    return SimulatedRun(
        machine=place.machine,
        work=place.work(draw),
        policy=config.scheduling,
        batch=config.batch,
        num_steps=periods * algebra.period_steps + algebra.overlaps * WARM_UP,
        tensor_parallel_size=config.engine.tensor_parallel_size,
        knows_profile=False,
        stream_trainer=config.stream_trainer,
        learner_devices=len(placed["learner"]) if is_apart else 0,
        devices_per_rank=place.group_size,
        seed=draw + 1,
    )


def _counted(run: SimulatedRun) -> PlayedRun:
    """Without steps that fill a pipeline, and those that drain what is left."""
    return play(run).planned.after(run.overlaps * WARM_UP)


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _other_roles(roles: str) -> str:
    """What a role map has beside rollout and learner, to be appended to another one."""
    if not roles:
        return ""
    judges = parse_role_map(roles).get("judge", ())
    judge = f", judge: {','.join(map(str, judges))}" if judges else ""
    workers = num_environment_workers(roles)
    return f"{judge}, environment: {workers}" if workers else judge
