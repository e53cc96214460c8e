"""A machine that is calibrated on what another one recorded is that machine: from engines whose
speed is known, and from recorded steps."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from record_factories import make_generated, make_request

from artifacts.commit import StepCommit
from artifacts.records import Fate, Generated, Prompt, Request, Response, WeightsRef
from artifacts.tables import ResponseRow
from tasks.engines.simulation.replica import SimulatedEngine, SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import BlankWriter, LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.simulation.calibration import Decoded, calibrated, engine_pace
from tasks.simulation.figures import PlayedRun
from tasks.simulation.length_law import LengthLaw
from tasks.simulation.plain import PlainMachine
from tasks.simulation.recorded import RecordedRun, RecordedStep, recorded_work
from tasks.simulation.simulated_run import SimulatedRun
from tasks.simulation.steps import play
from tasks.simulation.workloads import MATH, Workload

SUMS = replace(
    MATH, lengths=LengthLaw(median_tokens=60, p75_tokens=90, longest_ratio=6, endless_share=0.0)
)
KNOWN = SimulatedEngineConfig(
    step_s=0.04,
    step_s_per_sequence=0.002,
    prefill_s_per_token=0.0005,
    max_batch=64,
    max_model_len=4096,
    lengths=LengthModel(median_tokens=60, sigma=0.9),
)
CONFIG: dict[str, dict[str, Any]] = {
    "sampling": {"max_response_tokens": 400},
    "engine": {"tensor_parallel_size": 1, "max_model_len": 4096, "max_num_seqs": 64},
    "cluster": {"num_devices": 2, "roles": "rollout: 0-1, learner: 0-1"},
    "learner": {},
}
TIMES = {
    "time/update_s": 0.4,
    "time/orchestration_s": 0.6,
    "time/publish_s": 0.3,
    "time/train_s": 5.0,
    "train/busy_s": 9.0,
    "train/tokens_computed": 3000.0,
}


async def decoded(
    waves: int, seed: int = 0, num_requests: int = 24, known: SimulatedEngineConfig = KNOWN
) -> list[Decoded]:
    """What an engine of known speed makes of requests that come in waves."""
    engine = SimulatedEngine("engine-0", known, writer=BlankWriter(known.lengths))
    draws, done = random.Random(seed), list[Generated]()
    asked_tokens: dict[str, int] = {}
    for wave in range(waves):
        requests = [
            _request(f"{seed}/{wave}-{number}", draws.randrange(20, 200))
            for number in range(num_requests // waves)
        ]
        asked_tokens |= {request.prompt_id: len(request.prompt_tokens) for request in requests}
        await engine.submit(requests)
        await asyncio.sleep(1.0)
    while len(done) < len(asked_tokens):
        done += [news for news in await engine.collect(60.0) if isinstance(news, Generated)]
    return [
        Decoded(
            begins_s=response.submitted_s,
            decodes_s=response.first_token_s,
            ends_s=response.finished_s,
            num_tokens=response.num_sampled,
            prompt_tokens=asked_tokens[response.prompt_id],
        )
        for response in done
    ]


def _request(prompt_id: str, num_tokens: int) -> Request:
    return make_request(prompt_id, prompt_tokens=(1,) * num_tokens)


@pytest.mark.parametrize("waves", [1, 3])
def test_the_pace_of_a_known_engine_is_found(waves: int) -> None:
    periods = [run_virtual(decoded(waves, seed)) for seed in range(6)]
    pace = engine_pace(periods)
    assert pace.step_s == pytest.approx(KNOWN.step_s, rel=0.03)
    assert pace.step_s_per_sequence == pytest.approx(KNOWN.step_s_per_sequence, rel=0.05)
    assert pace.prefill_s_per_token == pytest.approx(KNOWN.prefill_s_per_token, rel=0.1)
    assert pace.residual < 0.02


@pytest.mark.parametrize("exponent", [0.6, 0.8])
def test_a_batch_that_adds_less_the_larger_it_is_is_told_as_that(exponent: float) -> None:
    known = KNOWN.model_copy(update={"step_s_per_sequence": 0.01, "sequence_exponent": exponent})
    pace = engine_pace([run_virtual(decoded(1, seed, known=known)) for seed in range(6)])
    assert pace.sequence_exponent == exponent
    assert pace.step_s == pytest.approx(known.step_s, rel=0.05)
    assert pace.step_s_per_sequence == pytest.approx(0.01, rel=0.05)


def test_a_prompt_that_an_engine_keeps_is_prefilled_once() -> None:
    """Its responses after the first take as long as if it had no token."""
    engine = CONFIG["engine"]
    steps = tuple(map(recorded_step, range(1, 4)))
    alone, kept = (
        calibrated(RecordedRun(config=CONFIG | {"engine": engine | says}, steps=steps))
        for says in ({}, {"prefix_caching": True})
    )
    assert not alone.engine(1).shares_prompts
    assert kept.engine(1).shares_prompts
    assert kept.prefill_s_per_token > 2 * alone.prefill_s_per_token


def test_responses_that_never_share_an_engine_tell_nothing_of_others() -> None:
    alone = [
        Decoded(begins_s=0.0, decodes_s=0.0, ends_s=0.1 * n, num_tokens=n, prompt_tokens=0)
        for n in (10, 20, 50)
    ]
    pace = engine_pace([[one] for one in alone])
    assert pace.step_s == pytest.approx(0.1)
    assert pace.step_s_per_sequence == 0.0
    with pytest.raises(ValueError, match="needs responses"):
        engine_pace([])


def recorded_step(step: int, num_prompts: int = 8) -> RecordedStep:
    """Two engines' decoding, written down as a run does it."""
    rows: list[ResponseRow] = []
    for engine in range(2):
        for number, one in enumerate(run_virtual(decoded(1, seed=10 * step + engine))):
            name = f"0/{step * 100 + engine * num_prompts + number % num_prompts}"
            generated = make_generated(
                token_ids=(1,) * one.num_tokens,
                prompt_id=name,
                index=number // num_prompts,
                engine=f"engine-{engine}",
                submitted_s=one.begins_s,
                first_token_s=one.decodes_s,
                finished_s=one.ends_s,
                finish_reason="stop",
            )
            tokens = (1,) * one.prompt_tokens
            rows.append(
                ResponseRow(
                    step=step,
                    kind="sync",
                    prompt=Prompt(prompt_id=name, domain="a", token_ids=tokens, gold="", text=""),
                    response=Response(generated=generated, score=None),
                    fate=Fate.TRAINED,
                )
            )
    commit = StepCommit(
        step=step,
        kind="sync",
        weights=WeightsRef(version=step, path="", digest=""),
        queue={},
        seeds={},
        counters={},
        metrics=TIMES,
        timings={"started_s": 20.0 * step, "finished_s": 20.0 * step + 15.0},
        checkpoint=None,
    )
    return RecordedStep(commit=commit, rows=tuple(rows))


def test_a_calibrated_machine_has_the_constants_of_its_run() -> None:
    run = RecordedRun(config=CONFIG, steps=tuple(map(recorded_step, range(1, 6))))
    machine = calibrated(run)
    assert machine.num_devices == 2
    assert machine.engine(1).step_s == pytest.approx(KNOWN.step_s, rel=0.05)
    assert machine.updating_s == pytest.approx(1.0)
    assert machine.publishing_s == pytest.approx(0.3)
    assert machine.token_s == pytest.approx(9.0 / 3000)


def test_what_a_step_waits_for_its_turn_is_no_part_of_an_update() -> None:
    """Each begins 6 s before the one before it is over."""
    figures = TIMES | {"time/orchestration_s": 7.0}
    steps = [
        replace(
            recorded,
            commit=replace(
                recorded.commit,
                metrics=figures,
                timings={"started_s": 8.0 * step, "finished_s": 8.0 * step + 14.0},
            ),
        )
        for step, recorded in enumerate(map(recorded_step, range(1, 4)))
    ]
    machine = calibrated(RecordedRun(config=CONFIG, steps=tuple(steps)))
    # of the 8 s that it adds, 5.7 s are training, update and publication
    assert machine.updating_s == pytest.approx(0.4 + 2.3)


def test_devices_that_train_alone_are_devices_of_the_machine() -> None:
    steps = tuple(map(recorded_step, range(1, 4)))
    apart = {"num_devices": 3, "roles": "rollout: 0-1, learner: 2"}
    simulated = {"tensor_parallel_size": 1, "max_model_len": 4096, "max_batch": 64}
    both = calibrated(RecordedRun(config=CONFIG, steps=steps))
    alone = calibrated(
        RecordedRun(config=CONFIG | {"cluster": apart, "engine": simulated}, steps=steps)
    )
    assert alone.num_devices == 3
    assert alone.token_s == both.token_s
    assert alone.max_batch == both.max_batch


def test_replicas_of_several_devices_are_refused() -> None:
    config = CONFIG | {"engine": {**CONFIG["engine"], "tensor_parallel_size": 2}}
    with pytest.raises(ValueError, match="record a run with 1"):
        calibrated(RecordedRun(config=config, steps=(recorded_step(1),)))


@pytest.mark.parametrize(
    "figure", ["train/busy_s", "train/tokens_computed", "time/update_s", "time/orchestration_s"]
)
def test_a_run_whose_steps_lack_a_figure_is_refused(figure: str) -> None:
    """Another version wrote it."""
    step = recorded_step(3)
    metrics = {name: value for name, value in TIMES.items() if name != figure}
    older = replace(step, commit=replace(step.commit, metrics=metrics))
    with pytest.raises(ValueError, match=f"have {figure}, step 3 of this run has none; record"):
        calibrated(RecordedRun(config=CONFIG, steps=(older,)))


def test_a_run_whose_tokens_take_no_time_is_refused() -> None:
    """Of one or two tokens each, that take as long as their prompts."""
    step = recorded_step(1)
    rows = tuple(
        replace(row, response=replace(row.response, generated=_as_long(row.response.generated)))
        for row in step.rows
    )
    with pytest.raises(ValueError, match="record a run with longer responses"):
        calibrated(RecordedRun(config=CONFIG, steps=(replace(step, rows=rows),)))


def _as_long(generated: Generated) -> Generated:
    num_tokens = 1 + generated.index % 2
    return replace(
        generated,
        token_ids=(1,) * num_tokens,
        logprobs=(0.0,) * num_tokens,
        submitted_s=0.0,
        first_token_s=0.1 / num_tokens,
        finished_s=0.1 / num_tokens,
    )


def test_a_replayed_run_predicts_what_another_policy_takes_on_the_same_machine() -> None:
    """Reality is a simulation here: a record of its responses predicts what tail batching takes,
    which launches more."""
    work = Workload(name="sums", longest_tokens=400, parts=(SUMS,))
    machine = PlainMachine(num_devices=2, token_s=0.001)
    batch = BatchConfig(prompts_per_step=16, responses_per_prompt=4)
    real = simulated(work, machine, batch, TailBatchingConfig(response_overprovision=1.25))
    replayed = replace_lengths(work, num_prompts=100, num_responses=4)
    predicted = simulated(replayed, machine, batch, TailBatchingConfig(response_overprovision=1.25))
    assert predicted.mean("step_s") == pytest.approx(real.mean("step_s"), rel=0.1)
    assert simulated(replayed, machine, batch, SyncConfig()).mean("step_s") > 0


def simulated(work: object, machine: PlainMachine, batch: BatchConfig, policy: object) -> PlayedRun:
    return play(
        SimulatedRun(
            machine=machine,
            work=work,  # type: ignore[arg-type]  # either sort
            policy=policy,  # type: ignore[arg-type]
            batch=batch,
            num_steps=5,
            knows_profile=False,
        )
    ).planned


def replace_lengths(work: Workload, num_prompts: int, num_responses: int) -> object:
    """The same prompts, replayed from a record of fewer responses than are launched."""
    writer = work.writer(1, seed=0)
    rows = [
        ResponseRow(
            step=1,
            kind="sync",
            prompt=Prompt(
                prompt_id=f"0/{row}",
                domain=work.part_of(f"0/{row}").name,
                token_ids=(2 + row, *(1,) * (work.prompt_tokens(f"0/{row}") - 1)),
                gold="",
                text="",
            ),
            response=Response(
                generated=make_generated(
                    # no two of a prompt's begin alike
                    token_ids=(index, *(1,) * (writer.tokens(f"0/{row}", index) - 1)),
                    prompt_id=f"0/{row}",
                    index=index,
                ),
                score=None,
            ),
        )
        for row in range(num_prompts)
        for index in range(num_responses)
    ]
    step = RecordedStep(commit=recorded_step(1).commit, rows=tuple(rows))
    trains_all = CONFIG | {"learner": {"kl_coefficient": 0.1}}  # as the simulated learner does
    return recorded_work(RecordedRun(config=trains_all, steps=(step,)))
