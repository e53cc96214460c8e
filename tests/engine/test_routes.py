"""Responses say which experts computed their tokens, those of shared prefixes included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from artifacts.models.character_tokenizer import VOCABULARY_SIZE, character_tokenizer
from artifacts.new_tokens import one_span
from artifacts.records import Generated, Request
from research.benchmarks.tiny_architectures import save_tiny
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.routers import Routers
from tests.engine.conftest import Slot, cores_only

pytestmark = [
    pytest.mark.engine,
    cores_only,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]
LAYERS, TOP = 2, 2
PROMPT = tuple(5 + place % 40 for place in range(41))  # a block of 32 tokens and the begin of one


def asked(index: int, prompt: tuple[int, ...] = PROMPT, most: int = 40) -> Request:
    return Request(
        prompt_id="0/0", index=index, prompt_tokens=prompt, max_new_tokens=most, temperature=1.0,
        top_p=1.0, seed=index,
    )  # fmt: skip


def routes_of(generated: Generated) -> np.ndarray:
    """(tokens, layers, experts), the experts of a token in the order of their numbers."""
    routes = generated.routes
    assert routes is not None
    assert (routes.width, routes.num_bytes) == (LAYERS * TOP, 1)
    rows = np.frombuffer(routes.data, np.uint8).reshape(-1, LAYERS, TOP)
    return np.sort(rows, axis=-1)


async def answers(engine: VllmEngine, requests: list[Request]) -> list[Generated]:
    await engine.submit(requests)
    found: list[Generated] = []
    while len(found) < len(requests):
        found += [each for each in await engine.collect(30.0) if isinstance(each, Generated)]
    return sorted(found, key=lambda each: each.index)


@pytest.mark.parametrize(
    ("name", "kv_cache_gb"),
    [
        ("qwen3_moe", 0.02),
        ("qwen3_moe", 0.00011),
        ("mixtral", 0.02),
        ("glm4_moe", 0.02),
        ("deepseek_v3", 0.02),
    ],
)
async def test_routes_are_those_of_the_model_in_fp32(
    slot: Slot, tmp_path: Path, name: str, kv_cache_gb: float
) -> None:
    """Siblings copy a started block; later requests find whole blocks; in the small cache
    responses are preempted and computed again."""
    slot.take()
    path = save_tiny(name, tmp_path, VOCABULARY_SIZE, torch.float32, seed=1)
    character_tokenizer().save_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    routers = Routers(model)
    config = VllmEngineConfig(
        dtype="float32", max_num_seqs=4, max_model_len=128, max_batched_tokens=64,
        kv_cache_gb=kv_cache_gb, records_routes=True,
    )  # fmt: skip
    engine = VllmEngine(config=config, model_path=str(path), name="engine", cpu_ids=None, seed=1)
    try:
        engine.start()
        requests = [asked(index) for index in range(4)]
        first = await answers(engine, [*requests, asked(4, PROMPT[:7], 90)])
        kept = max(first[:4], key=lambda each: len(each.token_ids))
        continued = Request(
            prompt_id="0/0", index=7, prompt_tokens=PROMPT, max_new_tokens=30, temperature=1.0,
            top_p=1.0, seed=9, kept_tokens=kept.token_ids[:5], kept_logprobs=kept.logprobs[:5],
            kept_versions=one_span(0, 5),
        )  # fmt: skip
        later = await answers(engine, [asked(5), continued])
        stats = await engine.stats()
    finally:
        engine.close()
    assert bool(stats.num_preemptions) == (kv_cache_gb < 0.01)
    prompts = {4: PROMPT[:7]}
    for generated in (*first, *later):
        tokens = (*prompts.get(generated.index, PROMPT), *generated.token_ids)
        with torch.no_grad():
            model(torch.tensor([tokens]))
        wanted = routers.chosen.sort(-1).values.numpy()
        assert (routes_of(generated) == wanted[: len(tokens) - 1]).all()
