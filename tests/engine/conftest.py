"""A tiny random Llama with a character tokenizer, and factories for engines, requests and weight
versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from artifacts.records import Generated, Request, WeightsRef
from artifacts.weights import write_weights
from tasks.cluster.gpus import found_gpus
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig

NUM_GPUS = len(found_gpus().names)
cores_only = pytest.mark.skipif(NUM_GPUS > 0, reason="about vLLM's backend for CPUs")
gpus_only = pytest.mark.skipif(NUM_GPUS == 0, reason="needs a CUDA device")
FLOAT32_ATOL = 1e-4 if NUM_GPUS == 0 else 2e-2  # attention on GPUs multiplies in TF32
CHARACTERS = (
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;!?'-+*/=()[]{}<>#$%&@_|~^0123456789\""
)


def save_tiny_model(directory: Path, seed: int) -> LlamaForCausalLM:
    """A two-layer bf16 Llama with tied embeddings, saved with its tokenizer. Its logits are spread
    enough to matter."""
    vocabulary = {token: index for index, token in enumerate(["<eos>", "<unk>", *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=characters, eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(directory)
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True,
        initializer_range=0.15,
        eos_token_id=0, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).to(torch.bfloat16)
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny")
    save_tiny_model(directory, seed=0)
    return str(directory)


@pytest.fixture(scope="session")
def versions(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, tuple[WeightsRef, LlamaForCausalLM]]:
    """Weight versions 1 and 2 (different random models) with the transformers model of each."""
    directory = tmp_path_factory.mktemp("weights")
    made = {}
    for version in (1, 2):
        model = save_tiny_model(directory / f"model-{version}", seed=version)
        ref = write_weights(model.named_parameters(), directory / f"{version}.safetensors", version)
        made[version] = (ref, model)
    return made


class SmallEngineConfig(VllmEngineConfig):
    """An engine whose KV cache has the given size on a GPU, too, beside what else runs there."""

    def vllm_arguments(
        self, model_path: str, seed: int, on_cpu: bool
    ) -> dict[str, Any]:  # Any: vLLM's EngineArgs are of many types
        given = super().vllm_arguments(model_path, seed, on_cpu)
        if on_cpu:
            return given
        cache_bytes = int(self.kv_cache_gb * 2**30)
        return given | {"kv_cache_memory_bytes": cache_bytes, "gpu_memory_utilization": 0.1}


def double(linear: Any) -> None:  # Any: vLLM's layer
    """Spoil a projection: the CPU backend computes with a repacked copy of the weights."""
    if hasattr(linear, "cpu_linear"):
        good = linear.cpu_linear
        linear.cpu_linear = lambda x, weight, bias: good(x, weight, bias) * 2
    else:
        linear.weight.data *= 2


class Closable(Protocol):
    """Something that holds a vLLM."""

    def close(self) -> None: ...


class Slot:
    """A process holds one vLLM at a time: who takes the slot ends the one before it."""

    def __init__(self) -> None:
        self._holder: Closable | None = None

    def take(self) -> None:
        if self._holder is not None:
            self._holder.close()
        self._holder = None

    def hold(self, engine: Closable) -> None:
        self._holder = engine


@pytest.fixture(scope="session")
def slot() -> Iterator[Slot]:
    slot = Slot()
    yield slot
    slot.take()


@pytest.fixture(scope="module", autouse=True)
def freed_slot(slot: Slot) -> Iterator[None]:
    """No engine outlives its file: what runs next, or beside it, has its memory."""
    yield
    slot.take()


@pytest.fixture(scope="session")
def start_engine(model_path: str, slot: Slot) -> Callable[..., VllmEngine]:
    """Starts a named engine and frees the one before it."""

    def start(name: str, **changes: object) -> VllmEngine:
        slot.take()
        fields: dict[str, object] = {
            "max_num_seqs": 16,
            "max_model_len": 256,
            "max_batched_tokens": 512,
            "kv_cache_gb": 0.05,
        }
        config = SmallEngineConfig(call_deadline_s=60, **(fields | changes))  # type: ignore[arg-type]
        engine = VllmEngine(config=config, model_path=model_path, name=name, cpu_ids=None, seed=1)
        engine.start()
        slot.hold(engine)
        return engine

    return start


def make_request(prompt_id: str = "0/0", index: int = 0, **changes: object) -> Request:
    fields: dict[str, object] = {
        "prompt_tokens": tuple(2 + (7 * step + len(prompt_id)) % 90 for step in range(20)),
        "max_new_tokens": 12,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
    }
    return Request(prompt_id=prompt_id, index=index, **(fields | changes))  # type: ignore[arg-type]


def make_batch(num: int, **changes: object) -> list[Request]:
    """Requests of four a prompt, each with a seed of its own."""
    return [
        make_request(f"0/{number // 4}", number % 4, **({"seed": number} | changes))
        for number in range(num)
    ]


async def generate(engine: VllmEngine, requests: Sequence[Request]) -> dict[str, Generated]:
    await engine.submit(requests)
    return await collect_all(engine, len(requests))


async def collect_all(engine: VllmEngine, num: int) -> dict[str, Generated]:
    done: dict[str, Generated] = {}
    async with asyncio.timeout(60):
        while len(done) < num:
            done |= {
                generated.response_id: generated for generated in await engine.collect(wait_s=5)
            }
    return done
