"""Which acceptance is fair to long answers: the trained responses of whole runs, drain included,
against what they are drawn from."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from round_factories import ENGINE, make_engines, simulate_run

from tasks.engines.simulation.virtual_time import run_virtual
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig
from tasks.scheduling.prompt_stream import derive_seed

LONGEST = 2000


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
