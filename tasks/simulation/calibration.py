"""The constants of a simulated machine, fitted to one recorded run of a real one.

    responses (submitted, first token, finished, tokens) ──▶ decode step against batch, prefill
    metrics of steps                                     ──▶ training by the computed token, update,
                                                             publish
                                                         ──▶ `PlainMachine`

A response of n tokens takes n decode steps of `step_s + step_s_per_sequence x others ^ exponent`
each, and the prefill that its engine does meanwhile, of a prompt once where the engine keeps
prefixes: linear in the three constants, which are those of least squares over all responses, for
every exponent of a list, of which the one that fits best stays. How many others there were comes
from the engine's own record, every interval weighted by the steps that fit into it, which takes a
few rounds because the weights depend on the constants. Leaves out preemption, the length of
contexts, and what a first step costs beyond others (compilation, caches): it is left out of the
fit.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from artifacts.commit import seconds_added
from artifacts.tables import ResponseRow
from tasks.cluster.devices import parse_role_map
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.simulation.plain import PlainMachine
from tasks.simulation.recorded import RecordedRun, RecordedStep

LEARNER_STAGES = ("train", "update", "publish")
ROUNDS = 8  # of weighting: the constants no longer change in their fourth digit
# of the others of a batch; a processor's matrix products are the better used the larger it is
EXPONENTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePace:
    """The cost of decoding and prefilling on a replica."""

    step_s: float  # of a decode step of one sequence
    step_s_per_sequence: float  # that the first further sequence adds
    sequence_exponent: float  # and the others as a power of their number
    prefill_s_per_token: float  # that prefilling a prompt token holds up the batch
    residual: float  # mean absolute error of a response's seconds, as a share of their mean
    shares_prompts: bool = False  # whether the responses to a prompt prefill it once


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A response on its engine."""

    begins_s: float  # its submission
    decodes_s: float  # its first token
    ends_s: float
    num_tokens: int
    prompt_tokens: int


def calibrated(run: RecordedRun) -> PlainMachine:
    """Fit the machine that recorded the run. ValueError where the record cannot tell it."""
    steps = counted(run)
    placed = parse_role_map(run.config["cluster"]["roles"])
    num_devices = len({*placed["rollout"], *placed["learner"]})
    pace = pace_of(run)
    engine = run.config["engine"]
    max_batch, _ = _batching(engine)
    if engine["tensor_parallel_size"] != 1:
        raise ValueError(
            "a machine is calibrated by replicas of one device, got engine.tensor_parallel_size"
            f" {engine['tensor_parallel_size']}; record a run with 1"
        )
    if pace.step_s == 0:
        raise ValueError(
            "a machine is calibrated by responses that take the longer the more tokens they have,"
            " those of this run do not; record a run with longer responses, or name a --device"
        )
    return PlainMachine(
        num_devices=num_devices,
        devices_per_host=num_devices,
        fixed_s=pace.step_s,
        weights_s=0.0,
        exchange_s=0.0,
        step_s_per_sequence=pace.step_s_per_sequence,
        sequence_exponent=pace.sequence_exponent,
        prefill_s_per_token=pace.prefill_s_per_token,
        shares_prompts=pace.shares_prompts,
        device_tokens=engine["max_model_len"] * max_batch,
        weights_tokens=0,
        max_batch=max_batch,
        token_s=train_s_per_token(steps),
        updating_s=typical(steps, "time/update_s") + median(_overheads_s(run)[-len(steps) :]),
        publishing_s=typical(steps, "time/publish_s"),
    )


def _batching(engine: Mapping[str, Any]) -> tuple[int, bool]:  # Any: parsed JSON
    """The most sequences of a batch, and whether they share prompts, by an engine's settings."""
    if "max_num_seqs" in engine:
        return int(engine["max_num_seqs"]), bool(engine.get("prefix_caching", False))
    simulated = SimulatedEngineConfig.model_validate(engine)
    return simulated.max_batch, simulated.shares_prompts


def pace_of(run: RecordedRun) -> EnginePace:
    """Fit the cost of decoding and prefilling on a run's engines."""
    _, shares_prompts = _batching(run.config["engine"])
    pace = engine_pace(busy_periods(counted(run), shares_prompts))
    return replace(pace, shares_prompts=shares_prompts)


def counted(run: RecordedRun) -> Sequence[RecordedStep]:
    """The steps that are counted: all but the first, unless there is only one."""
    return run.steps[1:] or run.steps


def engine_pace(periods: Sequence[Sequence[Decoded]]) -> EnginePace:
    """The constants of a replica from what it decoded, each period together. ValueError for
    nothing."""
    if not any(periods):
        raise ValueError("a pace needs responses that ended by themselves, got none")
    fits = [_fit(exponent, periods) for exponent in EXPONENTS]
    return min(fits, key=itemgetter(0))[1]


def busy_periods(steps: Sequence[RecordedStep], shares_prompts: bool) -> list[list[Decoded]]:
    """What every engine decoded in every step; aborted responses count as long as they were there.
    shares_prompts: whether only the first response of a prompt has its tokens to prefill."""
    return [
        _decoded([row for row in step.rows if _is_of(engine, row)], shares_prompts)
        for step in steps
        for engine in engines_of([step])
    ]


def engines_of(steps: Sequence[RecordedStep]) -> list[str]:
    """Names of the engines that generated."""
    return sorted({row.response.generated.engine for step in steps for row in step.rows})


def decode_drift(pace: EnginePace, steps: Sequence[RecordedStep]) -> float:
    """Seconds that the responses of these steps took, over those that the pace predicts in the
    company they had: how much slower the machine decoded than when the pace was recorded."""
    periods = busy_periods(steps, pace.shares_prompts)
    return float(_seconds(periods).sum() / _told(pace, periods).sum())


def train_s_per_token(steps: Sequence[RecordedStep]) -> float:
    """Seconds of one rank for a token that it computed. Prompts that are shared are computed once,
    groups without a gradient as a rule not at all, so trained tokens would not tell."""
    busy_s, computed = (
        sum(_values(steps, figure)) for figure in ("train/busy_s", "train/tokens_computed")
    )
    return busy_s / max(1.0, computed)


def _overheads_s(run: RecordedRun) -> list[float]:
    """Orchestration of every step, as far as it added to the run: where steps overlap one waits
    for its turn while others train, which is none."""
    added = seconds_added([step.commit for step in run.steps])
    stages = zip(*(_values(run.steps, f"time/{name}_s") for name in LEARNER_STAGES), strict=True)
    overheads = _values(run.steps, "time/orchestration_s")
    return [
        min(overhead_s, max(0.0, added_s - sum(stages_s)))
        for overhead_s, added_s, stages_s in zip(overheads, added, stages, strict=True)
    ]


def typical(steps: Sequence[RecordedStep], figure: str) -> float:
    """The median of a figure of steps. ValueError where one has none."""
    return median(_values(steps, figure))


def _values(steps: Sequence[RecordedStep], figure: str) -> list[float]:
    """A figure of every step. ValueError where another version wrote a step without it."""
    for step in steps:
        if figure not in step.metrics:
            raise ValueError(
                f"a machine is calibrated by steps that have {figure}, step {step.commit.step} of"
                " this run has none; record a run with this version, or name a --device"
            )
    return [step.metrics[figure] for step in steps]


def _is_of(engine: str, row: ResponseRow) -> bool:
    generated = row.response.generated
    return generated.engine == engine and bool(generated.token_ids)


def _decoded(rows: Sequence[ResponseRow], shares_prompts: bool) -> list[Decoded]:
    """Of one engine in one step."""
    prefilled: set[str] = set()
    found: list[Decoded] = []
    for row in sorted(rows, key=lambda row: row.response.generated.submitted_s):
        generated, prompt = row.response.generated, row.prompt
        is_kept = shares_prompts and prompt.prompt_id in prefilled
        prefilled.add(prompt.prompt_id)
        found.append(
            Decoded(
                begins_s=generated.submitted_s,
                decodes_s=generated.first_token_s,
                ends_s=generated.finished_s,
                num_tokens=generated.num_sampled,
                prompt_tokens=0 if is_kept else len(prompt.token_ids),
            )
        )
    return found


def _fit(exponent: float, periods: Sequence[Sequence[Decoded]]) -> tuple[float, EnginePace]:
    """The pace of least squares with this exponent, and their sum before it."""
    seconds = _seconds(periods)
    constants = np.array([1.0, 0.0, 0.0])
    for _ in range(ROUNDS):
        rows = _rows(periods, constants, exponent)
        constants = _least_squares(rows, seconds)
    errors = np.abs(rows @ constants - seconds)
    pace = EnginePace(
        step_s=float(constants[0]),
        step_s_per_sequence=float(constants[1]),
        sequence_exponent=exponent,
        prefill_s_per_token=float(constants[2]),
        residual=float(errors.mean() / seconds.mean()),
    )
    return float((errors**2).sum()), pace


def _told(pace: EnginePace, periods: Sequence[Sequence[Decoded]]) -> Floats:
    """Seconds of every sequence, by the pace."""
    constants = np.array([pace.step_s, pace.step_s_per_sequence, pace.prefill_s_per_token])
    told: Floats = _rows(periods, constants, pace.sequence_exponent) @ constants
    return told


def _seconds(periods: Sequence[Sequence[Decoded]]) -> Floats:
    """Of every sequence, as recorded."""
    return np.array([one.ends_s - one.begins_s for period in periods for one in period])


def _rows(periods: Sequence[Sequence[Decoded]], constants: Floats, exponent: float) -> Floats:
    return np.array([row for period in periods for row in _work(period, constants, exponent)])


def _work(
    period: Sequence[Decoded], pace: Floats, exponent: float
) -> list[tuple[float, float, float]]:
    """Of every sequence: its steps, the others of each to the exponent, and the prompt tokens that
    its engine prefilled while it was there."""
    changes = sorted({when for one in period for when in (one.decodes_s, one.ends_s)})
    others = _others(period, changes) ** exponent
    step_s = np.maximum(1e-9, pace[0] + pace[1] * others)
    steps = np.diff(changes) / step_s
    steps_before = np.concatenate([[0.0], np.cumsum(steps)])
    others_before = np.concatenate([[0.0], np.cumsum(steps * others)])
    begins = sorted((one.begins_s, one.prompt_tokens) for one in period)
    times = [begin_s for begin_s, _ in begins]
    prefilled = np.concatenate([[0.0], np.cumsum([tokens for _, tokens in begins])])
    found: list[tuple[float, float, float]] = []
    for one in period:
        first, last = (bisect.bisect_left(changes, when) for when in (one.decodes_s, one.ends_s))
        num_steps = steps_before[last] - steps_before[first]
        mean = (others_before[last] - others_before[first]) / num_steps if num_steps else 0.0
        until = bisect.bisect_left(times, one.ends_s)
        since = bisect.bisect_left(times, one.begins_s)
        found.append(
            (one.num_tokens, one.num_tokens * mean, float(prefilled[until] - prefilled[since]))
        )
    return found


def _others(period: Sequence[Decoded], changes: Sequence[float]) -> Floats:
    """How many sequences decode beside another one, between neighbouring changes."""
    counts = np.zeros(len(changes))
    for one in period:
        counts[bisect.bisect_left(changes, one.decodes_s)] += 1
        counts[bisect.bisect_left(changes, one.ends_s)] -= 1
    return np.maximum(0.0, np.cumsum(counts)[:-1] - 1)


def _least_squares(rows: Floats, seconds: Floats) -> Floats:
    """The solution without negative parts: what would be negative is 0, and the rest solved
    again."""
    kept = list(range(rows.shape[1]))
    while True:
        solution = np.zeros(rows.shape[1])
        solution[kept] = np.linalg.lstsq(rows[:, kept], seconds, rcond=None)[0]
        positive = [column for column in kept if solution[column] >= 0]
        if len(positive) == len(kept):
            return solution
        kept = positive
