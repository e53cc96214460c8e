"""Which acceptance is fair to long answers: the trained responses of whole runs, drain included,
against what they are drawn from."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from round_factories import ENGINE, make_engines, simulate_run

from research.benchmarks.acceptance_simulated import AcceptanceVariant, Simulation, main, measure
from tasks.engines.simulation.lengths import LengthModel
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.simulation.virtual_time import run_virtual
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.seeds import derive_seed

LONGEST = 2000
SMALL = Simulation(
    num_replicas=4,
    batch=BatchConfig(prompts_per_step=16, responses_per_prompt=8),
    num_steps=8,
    engine=SimulatedEngineConfig(lengths=LengthModel(median_tokens=60, prompt_share=0.2)),
    max_response_tokens=LONGEST,
    seed=1,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    prompts_per_step=st.integers(1, 5),
    over=st.sampled_from([1.0, 1.25, 1.5, 2.0]),
    num_steps=st.integers(1, 6),
    lengths=st.builds(
        LengthModel,
        median_tokens=st.just(60),
        sigma=st.floats(0, 1.5),
        prompt_share=st.floats(0, 1),
        seed=st.integers(0, 999),
    ),
)
def test_speculation_on_prompts_alone_trains_on_the_draws_of_a_synchronous_run(
    prompts_per_step: int, over: float, num_steps: int, lengths: LengthModel
) -> None:
    """The engines take seeds and the law stays the same; then the order of prompts is all that tail
    batching changes."""
    batch = BatchConfig(prompts_per_step=prompts_per_step, responses_per_prompt=3)
    scheduling = (
        TailBatchingConfig(prompt_overprovision=over, response_overprovision=1)
        if over > 1
        else SyncConfig()
    )
    engines = make_engines(2, ENGINE.model_copy(update={"lengths": lengths}))
    rounds = run_virtual(
        simulate_run(
            batch, scheduling, num_steps=num_steps, engines=engines, domains=("a", "b") * 20
        )
    )
    groups = [group for one in rounds for group in one.result.groups]
    assert (
        len({group.prompt.prompt_id for group in groups})
        == len(groups)
        == rounds[-1].state.num_drawn
    )
    for group in groups:
        name = group.prompt.prompt_id
        draws = [
            min(lengths.tokens(name, index, derive_seed(0, name, index)), LONGEST)
            for index in range(3)
        ]
        assert [len(response.generated.token_ids) for response in group.responses] == draws


@pytest.mark.parametrize(
    "variant",
    [
        AcceptanceVariant(prompt_overprovision=1.25, response_overprovision=1.25),
        AcceptanceVariant(prompt_overprovision=1, response_overprovision=1.25),
        AcceptanceVariant(prompt_overprovision=1.5, response_overprovision=1, takes_seeds=False),
    ],
    ids=["both", "responses alone", "prompts alone, drawn anew"],
)
def test_the_other_variants_train_on_short_answers(variant: AcceptanceVariant) -> None:
    assert measure(SMALL, variant).bias.high < 0


def test_the_comparison_prints_a_row_per_variant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert (
        main(
            [
                "--replicas",
                "2",
                "--prompts",
                "4",
                "--responses",
                "2",
                "--steps",
                "2",
                "--max-tokens",
                "500",
            ]
        )
        == 0
    )
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 13
    assert told[1].split()[:5] == ["1", "1", "yes", told[1].split()[3], "1.00"]
