"""Expected step times of the candidates of `rollflow recommend`, from simulated steps.

    situation + candidate ─▶ RunConfig ─▶ a period of steps for each draw ─▶ Expected

All candidates see the same draws of lengths, so that they are compared draw by draw. Leaves out the
engines' limits (batch, memory), which belong to the machine, and a judge's share of a device."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from statistics import fmean, stdev

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flows.commands.candidates import Candidate, others, plain
from flows.commands.situation import Situation
from flows.config.overlay import overlay
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence
from flows.played_config import played_run
from tasks.cluster.devices import num_environment_workers, parse_role_map
from tasks.cluster.parent import end_with
from tasks.scheduling.policies.multilevel import levels_within
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.steps import play

MIN_STEPS = 3  # of a draw: a single step is one sample of its longest response
MAX_STEPS = 200  # of a draw: many levels with a small eta have endless periods
WARM_UP_STEPS = 2  # in which overlapping steps fill their pipeline
Draw = tuple[RunConfig, int]  # a configuration and the number of the draw


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawResult:
    """Seconds and throughput of the planned steps of one draw."""

    step_s: float  # mean of a step
    rollout_s: float  # sum over the steps
    total_s: float  # sum over the steps
    tokens_per_s: float  # trained tokens in a second


@contextmanager
def simulation_pool(situation: Situation) -> Iterator[ProcessPoolExecutor]:
    """Start processes that simulate draws; forked, as a situation cannot be pickled."""
    pool = ProcessPoolExecutor(
        os.cpu_count() or 1,
        get_context("fork"),
        initializer=_initialize,
        initargs=(situation, os.getpid()),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def simulate_all(pool: ProcessPoolExecutor, what: str, draws: Sequence[Draw]) -> list[DrawResult]:
    """Simulate all draws, in order. ValueError for a configuration that cannot be simulated."""
    futures = [pool.submit(_simulate, draw) for draw in draws]
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        for _ in progress.track(as_completed(futures), total=len(futures), description=what):
            pass
    return [future.result() for future in futures]


_situations: list[Situation] = []  # one in a process of the pool, none elsewhere


def _initialize(situation: Situation, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a traceback
    end_with(parent)
    _situations.append(situation)


def _simulate(draw: Draw) -> DrawResult:
    """Simulate one draw, without the steps that fill the pipeline or drain the queue."""
    run = simulated_run(*draw, _situations[-1])
    is_off_policy = run.policy.algebra(run.batch).is_off_policy
    played = play(run).planned.after(is_off_policy * WARM_UP_STEPS)
    return DrawResult(
        step_s=played.mean("step_s"),
        rollout_s=played.total("rollout_s"),
        total_s=played.total("step_s"),
        tokens_per_s=played.tokens_per_s,
    )


def simulated_run(config: RunConfig, draw: int, situation: Situation) -> SimulatedRun:
    """A run of at least MIN_STEPS in whole periods of the policy, cut at MAX_STEPS."""
    algebra = config.scheduling.algebra(config.batch)
    periods = math.ceil(MIN_STEPS / algebra.period_steps)
    num_steps = min(periods * algebra.period_steps, MAX_STEPS)
    return played_run(
        config,
        situation.machine,
        situation.work(draw),
        num_steps + algebra.is_off_policy * WARM_UP_STEPS,
        devices_per_rank=situation.group_size,
        seed=draw + 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Step time and throughput of a configuration over all draws."""

    candidate: Candidate | None  # None: the recorded run itself
    config: RunConfig
    step_s: tuple[float, ...]  # mean step of each draw
    rollout_share: float  # of the seconds of all steps
    tokens_per_s: float

    @property
    def mean_s(self) -> float:
        return fmean(self.step_s)

    @property
    def spread_s(self) -> float:
        """Standard deviation over the draws; 0 of a single draw."""
        return _spread(self.step_s)

    def lost_s(self, best: Expected) -> tuple[float, float]:
        """Seconds of a step beyond the best candidate's: mean and deviation over shared draws."""
        lost = [own - other for own, other in zip(self.step_s, best.step_s, strict=True)]
        return fmean(lost), _spread(lost)


def compare_candidates(
    situation: Situation, num_draws: int, is_off_policy: bool = False
) -> tuple[Expected, ...]:
    """Simulate all candidates, the shortest step first. ValueError if none can be simulated."""
    with simulation_pool(situation) as pool:
        sizes = _simulated(
            pool, "sizes of engines", _accepted(plain(situation.sizes), situation), num_draws
        )
        best = min(sizes, key=lambda each: each.mean_s)
        assert best.candidate is not None, "it was played as a candidate"
        more = others(
            best.candidate,
            situation.machine.num_devices,
            situation.group_size,
            levels_within(best.config.sampling.max_response_tokens),
            is_off_policy=is_off_policy,
        )
        accepted = _accepted(more, situation, known=(best.config,))
        found = _simulated(pool, "policies and placements", accepted, num_draws)
    return tuple(sorted((*sizes, *found), key=lambda each: each.mean_s))


def expect(config: RunConfig, situation: Situation, num_draws: int) -> Expected:
    with simulation_pool(situation) as pool:
        return _simulated(pool, "the recorded run", [(None, config)], num_draws)[0]


def _accepted(
    candidates: Iterable[Candidate], situation: Situation, known: Sequence[RunConfig] = ()
) -> list[tuple[Candidate, RunConfig]]:
    """Candidates with a valid configuration, one of each kind of steps; others are printed, by what
    is wrong with them."""
    seen = [_kind_of_steps(config) for config in known]
    found: list[tuple[Candidate, RunConfig]] = []
    left_out = defaultdict[str, list[str]](list)
    for candidate in candidates:
        try:
            config = config_of(candidate, situation)
        except ValueError as error:
            if candidate.is_plain:
                raise
            left_out[sentence(error)].append(candidate.label)
            continue
        if _kind_of_steps(config) not in seen:
            seen.append(_kind_of_steps(config))
            found.append((candidate, config))
    for why, labels in left_out.items():
        print(f"not tried: {'; '.join(labels)}: {why}", file=sys.stderr)
    return found


def _simulated(
    pool: ProcessPoolExecutor,
    what: str,
    configs: Sequence[tuple[Candidate | None, RunConfig]],
    num_draws: int,
) -> list[Expected]:
    draws = range(num_draws)
    results = iter(
        simulate_all(pool, what, [(config, draw) for _, config in configs for draw in draws])
    )
    found = []
    for candidate, config in configs:
        own = list(islice(results, num_draws))
        rollout_s, total_s = sum(each.rollout_s for each in own), sum(each.total_s for each in own)
        found.append(
            Expected(
                candidate=candidate,
                config=config,
                step_s=tuple(each.step_s for each in own),
                rollout_share=rollout_s / total_s,
                tokens_per_s=fmean(each.tokens_per_s for each in own),
            )
        )
    return found


def config_of(candidate: Candidate, situation: Situation) -> RunConfig:
    """The configuration of a candidate. ValueError for one that RunConfig refuses."""
    values = candidate.values(situation.machine.num_devices)
    if roles := situation.base.get("cluster", {}).get("roles", ""):
        judges = ",".join(map(str, parse_role_map(roles).get("judge", ())))
        workers = num_environment_workers(roles)
        values["cluster"]["roles"] += f", judge: {judges}" if judges else ""
        values["cluster"]["roles"] += f", environment: {workers}" if workers else ""
    sampling = situation.base.get("scheduling", {}).get("dynamic_sampling")
    if sampling is not None:
        values["scheduling"]["dynamic_sampling"] = sampling
    return RunConfig.model_validate(overlay(situation.base, values))


def _kind_of_steps(config: RunConfig) -> tuple[object, ...]:
    """A key that is equal for equal steps: in a small batch neighbouring etas launch the same."""
    algebra = config.scheduling.algebra(config.batch)
    size, roles = config.engine.tensor_parallel_size, config.cluster.roles
    return algebra, size, roles, config.stream_trainer.enabled


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
