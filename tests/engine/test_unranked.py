"""Log-probabilities without ranks: what is gathered is what vLLM gathers, and nothing is
compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tasks.engines.vllm.engine import VllmEngine
from tasks.engines.vllm.worker_patches import gather_unranked
from tests.engine.conftest import cores_only, generate, make_batch

pytestmark = [
    pytest.mark.engine,
    cores_only,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]


@pytest.mark.parametrize("num_logprobs", [0, 3])
def test_tokens_and_log_probabilities_are_those_that_vllm_gathers(num_logprobs: int) -> None:
    from vllm.v1.sample.sampler import Sampler

    torch.manual_seed(0)
    logprobs = torch.randn(5, 40).log_softmax(dim=-1)
    tokens = torch.tensor([3, 0, 39, 7, 7])
    ours = gather_unranked(logprobs, num_logprobs, tokens)
    with torch.compiler.set_stance("force_eager"):
        theirs = Sampler.gather_logprobs(logprobs, num_logprobs, tokens)
    assert torch.equal(ours.logprob_token_ids, theirs.logprob_token_ids)
    assert ours.logprob_token_ids.dtype == theirs.logprob_token_ids.dtype
    assert torch.equal(ours.logprobs, theirs.logprobs)
    assert ours.selected_token_ranks.shape == theirs.selected_token_ranks.shape


async def test_an_engine_compiles_nothing_between_its_start_and_its_last_token(
    start_engine: Callable[..., VllmEngine],
) -> None:
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    responses = await generate(start_engine("unranked"), make_batch(3, max_new_tokens=6))
    assert all(len(response.logprobs) == 6 for response in responses.values())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
