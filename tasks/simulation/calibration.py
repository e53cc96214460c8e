"""The constants of a simulated machine, fitted to one recorded run of a real one.

    responses (submitted, first token, finished, tokens) ──▶ decode step against batch, prefill
    metrics of steps                                     ──▶ training by the computed token, update,
                                                             publish
                                                         ──▶ `PlainMachine`

A response of n tokens takes n decode steps of `step_s + step_s_per_sequence x others ^ exponent`
each, and the prefill that its engine does meanwhile (once per prompt where the engine keeps
prefixes). The three constants are fitted by least squares over all responses, once for each
exponent of a list; the exponent with the smallest error is kept. Each interval of an engine's
record counts by the steps that fit into it, which depend on the constants: the fit is repeated a
few times. The first step of the run also pays for compilation and cold caches, and is left out;
preemption and the length of contexts are, too.
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
# of the number of other sequences: a CPU's matrix products are used better in larger batches
EXPONENTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePace:
    """Fitted seconds of decoding and prefilling on a replica."""

    step_s: float  # of a decode step of one sequence
    step_s_per_sequence: float  # that the first further sequence adds
    sequence_exponent: float  # and the others as a power of their number
    prefill_s_per_token: float  # that prefilling a prompt token holds up the batch
    residual: float  # mean absolute error of a response's seconds, as a share of their mean
    shares_prompts: bool = False  # whether the responses to a prompt prefill it once


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Times and token counts of one response on its engine."""

    begins_s: float  # its submission
    decodes_s: float  # its first token
    ends_s: float
    num_tokens: int
    prompt_tokens: int


def calibrated(run: RecordedRun) -> PlainMachine:
    """Fit a `PlainMachine` to a recorded run. Raises ValueError if the record does not determine
    its constants."""
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
    """Fit the seconds of decoding and prefilling on a run's engines."""
    _, shares_prompts = _batching(run.config["engine"])
    pace = engine_pace(busy_periods(counted(run), shares_prompts))
    return replace(pace, shares_prompts=shares_prompts)


def counted(run: RecordedRun) -> Sequence[RecordedStep]:
    """Returns the steps that are fitted: all but the first, or the first if it is the only one."""
    return run.steps[1:] or run.steps


def engine_pace(periods: Sequence[Sequence[Decoded]]) -> EnginePace:
    """Fit the constants of a replica to the responses of its busy periods. Raises ValueError if no
    period has a response."""
    if not any(periods):
        raise ValueError("a pace needs responses that ended by themselves, got none")
    fits = [_fit(exponent, periods) for exponent in EXPONENTS]
    return min(fits, key=itemgetter(0))[1]


def busy_periods(steps: Sequence[RecordedStep], shares_prompts: bool) -> list[list[Decoded]]:
    """Returns the responses of every engine in every step; an aborted response counts up to its
    abort. shares_prompts: whether only the first response to a prompt prefills the prompt's tokens.
    """
    periods: list[list[Decoded]] = []
    for step in steps:
        rows: dict[str, list[ResponseRow]] = {}
        for row in step.rows:
            rows.setdefault(row.response.generated.engine, []).append(row)
        periods += [_decoded(rows[engine], shares_prompts) for engine in sorted(rows)]
    return periods


def decode_drift(pace: EnginePace, steps: Sequence[RecordedStep]) -> float:
    """Returns how much slower the machine decoded in these steps than when the pace was recorded:
    the measured seconds of all responses over the seconds that the pace predicts for the same
    batches."""
    periods = busy_periods(steps, pace.shares_prompts)
    constants = np.array([pace.step_s, pace.step_s_per_sequence, pace.prefill_s_per_token])
    predicted_s = _rows(periods, constants, pace.sequence_exponent) @ constants
    return float(_seconds(periods).sum() / predicted_s.sum())


def train_s_per_token(steps: Sequence[RecordedStep]) -> float:
    """Returns the seconds that one rank takes per computed token. Trained tokens would be the wrong
    measure: a shared prompt is computed once, a group without a gradient usually not at all."""
    busy_s, computed = (
        sum(_values(steps, figure)) for figure in ("train/busy_s", "train/tokens_computed")
    )
    return busy_s / max(1.0, computed)


def _overheads_s(run: RecordedRun) -> list[float]:
    """Returns the orchestration seconds of every step that lengthened the run. Where steps overlap,
    the wait of a step for its turn while others train is not counted."""
    added = seconds_added([step.commit for step in run.steps])
    stages = zip(*(_values(run.steps, f"time/{name}_s") for name in LEARNER_STAGES), strict=True)
    overheads = _values(run.steps, "time/orchestration_s")
    return [
        min(overhead_s, max(0.0, added_s - sum(stages_s)))
        for overhead_s, added_s, stages_s in zip(overheads, added, stages, strict=True)
    ]


def typical(steps: Sequence[RecordedStep], figure: str) -> float:
    """Returns the median of a figure over the steps. Raises ValueError if one lacks it."""
    return median(_values(steps, figure))


def _values(steps: Sequence[RecordedStep], figure: str) -> list[float]:
    """Returns a figure of every step. Raises ValueError if another version wrote none."""
    for step in steps:
        if figure not in step.metrics:
            raise ValueError(
                f"a machine is calibrated by steps that have {figure}, step {step.commit.step} of"
                " this run has none; record a run with this version, or name a --device"
            )
    return [step.metrics[figure] for step in steps]


def _decoded(rows: Sequence[ResponseRow], shares_prompts: bool) -> list[Decoded]:
    """Returns the responses of one engine in one step, in the order of submission."""
    prefilled: set[str] = set()
    found: list[Decoded] = []
    for row in sorted(rows, key=lambda row: row.response.generated.submitted_s):
        generated, prompt = row.response.generated, row.prompt
        if not generated.token_ids:
            continue
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
    """Least-squares fit for one exponent; returns (sum of squared errors, pace)."""
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


def _seconds(periods: Sequence[Sequence[Decoded]]) -> Floats:
    """Returns the recorded seconds of every response."""
    return np.array([one.ends_s - one.begins_s for period in periods for one in period])


def _rows(periods: Sequence[Sequence[Decoded]], constants: Floats, exponent: float) -> Floats:
    return np.array([row for period in periods for row in _work(period, constants, exponent)])


def _work(
    period: Sequence[Decoded], pace: Floats, exponent: float
) -> list[tuple[float, float, float]]:
    """Returns one row for every response: its decode steps, the sum over them of the number of
    other sequences to the exponent, and the prompt tokens that its engine prefilled meanwhile."""
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
    """Returns how many sequences decode beside another one, between neighbouring changes."""
    counts = np.zeros(len(changes))
    for one in period:
        counts[bisect.bisect_left(changes, one.decodes_s)] += 1
        counts[bisect.bisect_left(changes, one.ends_s)] -= 1
    return np.maximum(0.0, np.cumsum(counts)[:-1] - 1)


def _least_squares(rows: Floats, seconds: Floats) -> Floats:
    """Least-squares solution without negative constants: a negative one is set to 0 and the others
    are solved again."""
    kept = list(range(rows.shape[1]))
    while True:
        solution = np.zeros(rows.shape[1])
        solution[kept] = np.linalg.lstsq(rows[:, kept], seconds, rcond=None)[0]
        positive = [column for column in kept if solution[column] >= 0]
        if len(positive) == len(kept):
            return solution
        kept = positive
