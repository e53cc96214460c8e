"""What the planner reads of the real engine: preemptions and the peak of KV use, both of the round
that the weights were loaded for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import LlamaForCausalLM

from artifacts.records import WeightsRef
from tasks.engines.vllm.engine import VllmEngine
from tests.engine.conftest import generate, make_batch

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

ROOM_GB = 0.0008  # some 1,600 tokens of the tiny model: sixteen responses of 220 tokens do not fit


async def test_a_full_cache_preempts_and_the_next_weights_begin_a_new_count(
    start_engine: Callable[..., VllmEngine],
    versions: dict[int, tuple[WeightsRef, LlamaForCausalLM]],
) -> None:
    engine = start_engine("engine-small", kv_cache_gb=ROOM_GB)
    before = await engine.stats()
    assert (before.num_preemptions, before.kv_usage_max) == (0, 0.0)
    assert 256 < before.kv_tokens < 16 * 220
    done = await generate(engine, make_batch(16, max_new_tokens=200, temperature=0.0))
    full = await engine.stats()
    assert len(done) == 16
    assert full.num_preemptions > 0
    assert 0.9 < full.kv_usage_max <= 1
    assert full.progress == {}, "the peak is what tells"
    await engine.load_weights(versions[1][0], probes=())
    loaded = await engine.stats()
    assert (loaded.num_preemptions, loaded.kv_usage_max) == (0, 0.0)
