"""Adapters in vLLM: what an engine holds and computes, loads while responses run, and ways in which
an adapter did not reach the requests of other systems, each of which is caught here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from artifacts.adapter_files import A, B, merged
from artifacts.records import Running, WeightsRef
from artifacts.weights import fingerprints, write_weights
from tasks.cluster.ports import LOOPBACK
from tasks.engines.base import AdapterShape, Attestation
from tasks.engines.transports.base import FlatWeights, WeightTransport, slots_of
from tasks.engines.transports.broadcast import BroadcastTransport
from tasks.engines.transports.shared_memory import SharedMemoryTransport
from tasks.engines.vllm import adapter_slot
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tasks.engines.vllm.llm_engine import on_cpu
from tasks.learner.lora_config import LAYERS
from tasks.learner.weight_check import WeightCheckFailed, check_weights
from tests.engine.conftest import NUM_GPUS, generate, make_batch, make_request
from tests.engine.test_load_while_running import interrupted
from tests.engine.test_vllm_engine import reference_logprobs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

SHAPE = AdapterShape(rank=4, scale=1.5, modules=LAYERS)
(SLOT_ID,) = adapter_slot.slot_ids(SHAPE).values()
PROBES = ((5, 9, 30, 41, 7, 22), (3, 4, 5, 6))
Versions = dict[int, tuple[WeightsRef, LlamaForCausalLM]]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def base(model_path: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)


def drawn(base: LlamaForCausalLM, seed: int) -> Tensors:
    """A random adapter of all matrices of the layers, in bf16."""
    chance, made = torch.Generator().manual_seed(seed), {}
    for name, module in base.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            rows, columns = module.weight.shape
            for end, shape in ((A, (4, columns)), (B, (rows, 4))):
                made[name + end] = (0.15 * torch.randn(shape, generator=chance)).bfloat16()
    return made


@pytest.fixture(scope="module")
def adapters(
    base: LlamaForCausalLM, model_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Versions:
    """Versions 1 and 2 with the plain model of each: fp32 weights with the adapter added."""
    folder, made = tmp_path_factory.mktemp("adapters"), {}
    for version in (1, 2):
        tensors = drawn(base, version)
        file = write_weights(tensors.items(), folder / f"{version}.safetensors", version)
        model = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(merged(name, weight, tensors, SHAPE.scale))
        made[version] = (file, model)
    return made


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., VllmEngine]) -> VllmEngine:
    return start_engine("engine-a", adapter=SHAPE)


def expected(adapters: Versions, version: int) -> Attestation:
    """What a learner with this version attests."""
    weights, model = adapters[version]
    return Attestation(
        version=version,
        fingerprints=fingerprints(weights.path),
        probe_logprobs=tuple(tuple(reference_logprobs(model, each).tolist()) for each in PROBES),
    )


async def test_an_engine_computes_with_the_adapter_that_it_holds(
    engine: VllmEngine, adapters: Versions, base: LlamaForCausalLM
) -> None:
    seen = {}
    for version, (weights, model) in adapters.items():
        attested = await engine.load_weights(weights, PROBES)
        learner = expected(adapters, version)
        assert attested.fingerprints == learner.fingerprints
        difference = check_weights("engine-a", attested, learner, 0.15)
        assert difference is not None
        assert difference < 0.06
        alone = tuple(tuple(reference_logprobs(base, each).tolist()) for each in PROBES)
        assert abs(alone[0][0] - learner.probe_logprobs[0][0]) > 0.3, "the adapter is not small"
        assert attested.base_logprobs is not None
        for held, wanted in zip(attested.base_logprobs, alone, strict=True):
            assert held == pytest.approx(wanted, abs=0.3)
        check_weights("engine-a", attested, replace(learner, base_logprobs=alone), 0.15)
        done = await generate(engine, make_batch(8, max_new_tokens=30))
        for response in done.values():
            given = (*make_request(response.prompt_id).prompt_tokens, *response.token_ids)
            wanted = reference_logprobs(model, given)[-len(response.token_ids) :]
            torch.testing.assert_close(
                torch.tensor(response.logprobs), wanted, rtol=0, atol=0.35, msg="of the adapter"
            )
        seen[version] = {name: response.token_ids for name, response in done.items()}
    assert seen[1] != seen[2]


async def test_all_layers_of_a_cpu_engine_multiply_by_adapter(
    engine: VllmEngine, adapters: Versions
) -> None:
    await engine.load_weights(adapters[1][0], ())

    def products(core: VllmCore) -> set[str]:
        wrappers = [layer.punica_wrapper for layer in manager_of(core).modules.values()]
        return {type(wrapper.add_lora_linear.__self__).__name__ for wrapper in wrappers}

    found = await engine._thread.call("look", products, 10)
    assert found == {"Products" if on_cpu() else "PunicaWrapperGPU"}


@pytest.mark.parametrize("running", [Running.INTERRUPT, Running.KEEP])
async def test_running_responses_go_on_with_the_next_adapter(
    engine: VllmEngine, adapters: Versions, running: Running
) -> None:
    await engine.load_weights(adapters[1][0], ())
    requests = make_batch(20, max_new_tokens=40)
    attested, done = await interrupted(engine, requests, adapters[2][0], running)
    check_weights("engine-a", attested, expected(adapters, 2), 0.15)
    spans = {tuple(span.version for span in response.versions) for response in done.values()}
    assert (1, 2) in spans
    mixed = next(each for each in done.values() if len(each.versions) == 2)
    num_old = mixed.versions[0].num_tokens
    if running is Running.INTERRUPT:  # then its cache is of the new adapter, too
        given = (*make_request(mixed.prompt_id).prompt_tokens, *mixed.token_ids)
        wanted = reference_logprobs(adapters[2][1], given)[-len(mixed.token_ids) :]
        torch.testing.assert_close(
            torch.tensor(mixed.logprobs)[num_old:], wanted[num_old:], rtol=0, atol=0.35, msg=""
        )
    fresh = await generate(engine, make_batch(4, max_new_tokens=12))
    await engine.load_weights(replace(adapters[2][0], version=3), ())
    again = await generate(engine, make_batch(4, max_new_tokens=12))
    assert [fresh[name].token_ids for name in sorted(fresh)] == [
        again[name].token_ids for name in sorted(again)
    ], "no block of the older adapter's cache was taken"


async def test_tensors_of_no_layer_are_refused_and_change_nothing(
    engine: VllmEngine, adapters: Versions, base: LlamaForCausalLM, tmp_path: Path
) -> None:
    before = await engine.load_weights(adapters[1][0], PROBES)
    tensors = drawn(base, 1)
    tensors["model.layers.9.mlp.up_proj" + A] = torch.zeros(4, 128)
    file = write_weights(tensors.items(), tmp_path / "other.safetensors", 7)
    with pytest.raises(ValueError, match=r"has model\.layers\.9\.mlp\.up_proj; vLLM adapts down"):
        await engine.load_weights(file, ())
    assert await engine.load_weights(adapters[1][0], PROBES) == before


@pytest.mark.parametrize("kind", ["ipc", "broadcast"])
async def test_an_adapter_comes_without_a_file(
    engine: VllmEngine, adapters: Versions, base: LlamaForCausalLM, kind: str
) -> None:
    """In a bucket for each module where it is sent; afterwards the learner's memory is its own."""
    tensors, deadline_s = drawn(base, 2), 60.0
    slots = slots_of({name: tensor.shape for name, tensor in tensors.items()})
    values = torch.zeros(slots[-1].end, dtype=torch.bfloat16)
    for slot in slots:
        slot.of(values).copy_(tensors[slot.name])
    transport: WeightTransport = SharedMemoryTransport(deadline_s)
    if kind == "broadcast":
        transport = BroadcastTransport(LOOPBACK, deadline_s, bucket_elements=1)
    await engine.load_weights(adapters[1][0], ())
    weights = FlatWeights(values=values, slots=slots)
    offered = transport.offer(weights, 2, "2.safetensors", ("engine-a/0",))
    attested, _ = await asyncio.gather(
        engine.load_weights(offered, PROBES), asyncio.to_thread(transport.send)
    )
    transport.withdraw()
    check_weights("engine-a", attested, expected(adapters, 2), 0.15)
    before = await generate(engine, make_batch(4, max_new_tokens=12))
    values.zero_()  # as if it were updated

    def activate_again(core: VllmCore) -> None:
        manager = manager_of(core)
        manager.deactivate_adapter(SLOT_ID)
        manager.activate_adapter(SLOT_ID)

    await engine._thread.call("activate", activate_again, 10)
    after = await generate(engine, make_batch(4, max_new_tokens=12))
    assert [before[name].token_ids for name in sorted(before)] == [
        after[name].token_ids for name in sorted(after)
    ]


# --- what went wrong elsewhere -------------------------------------------------------------------

Spoil = Callable[[pytest.MonkeyPatch, VllmCore], None]


def manager_of(core: VllmCore) -> Any:  # Any: vLLM's
    runner = core._engine.model_executor.driver_worker.worker.model_runner
    return runner.lora_manager._adapter_manager


def never_activated(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """The engine takes the adapter and never moves it to where layers read it."""
    manager = manager_of(core)

    def forget(number: int) -> None:
        manager._active_adapters[number] = None
        manager.lora_index_to_id[0] = number

    patch.setattr(manager, "activate_adapter", forget)


def stale(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """An id that the engine knows is not loaded again: the first version stays."""
    manager = manager_of(core)
    patch.setattr(manager, "remove_adapter", lambda number: False)
    patch.setattr(manager, "add_adapter", lambda adapter: False)
    patch.setattr(manager, "activate_adapter", lambda number: False)


def scale_lost(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """The adapter works with a scale of 1."""
    of_parts = adapter_slot._held

    def held(manager: Any, number: int, tensors: Any, scaled: Any) -> dict[str, int]:  # Any: above
        for layer in manager.modules.values():
            for stacked in layer.lora_b_stacked:
                stacked /= SHAPE.scale
        return of_parts(manager, number, tensors, scaled)

    patch.setattr(adapter_slot, "_held", held)


def module_left_out(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """One part of a fused layer is skipped, because its name is mapped to another."""
    manager = manager_of(core)
    add = manager.add_adapter

    def without_keys(adapter: Any) -> bool:  # Any: as above
        del adapter.loras["model.layers.1.self_attn.k_proj"]
        return bool(add(adapter))

    patch.setattr(manager, "add_adapter", without_keys)


def parts_exchanged(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """Keys and values of a layer change places: their shapes are the same."""
    manager = manager_of(core)
    add = manager.add_adapter

    def exchanged(adapter: Any) -> bool:  # Any: as above
        first, second = (f"model.layers.0.self_attn.{each}_proj" for each in "kv")
        loras = adapter.loras
        loras[first], loras[second] = loras[second], loras[first]
        return bool(add(adapter))

    patch.setattr(manager, "add_adapter", exchanged)


def not_asked_for(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """Requests do not name the adapter, so that they run on the base."""
    patch.setattr("tasks.engines.vllm.core.slot_requests", lambda shape, path: {})


def evicted(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """The engine drops the adapter after it was loaded."""
    manager = manager_of(core)
    load = core._engine.collective_rpc

    def then_drop(name: str, args: tuple[object, ...] = ()) -> object:
        answer = load(name, args=args)
        manager.remove_adapter(SLOT_ID)
        return answer

    patch.setattr(core._engine, "collective_rpc", then_drop)


def left_out_of_the_product(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """The engine holds all tensors, and its layers compute without them."""
    for layer in manager_of(core).modules.values():
        patch.setattr(layer, "_apply_lora_to_output", lambda inputs, output: output)


LAYER_0, LAYER_1 = ("model.layers.0.", "model.layers.1.")
FAULTS: list[tuple[Spoil, str]] = [
    (never_activated, rf"the learner's {LAYER_0}.*lora_A.weight of version 2.*: 28$"),
    (stale, rf"engine-a must hold the learner's {LAYER_0}.*lora_A.* of version 2"),
    (scale_lost, rf"engine-a must hold the learner's {LAYER_0}.*lora_B.* of version 2"),
    (module_left_out, rf"the learner's {LAYER_1}self_attn.k_proj.lora_A.weight of version 2.*: 2$"),
    (parts_exchanged, rf"learner's {LAYER_0}self_attn.k_proj.lora_A.weight of version 2.*: 4$"),
    (not_asked_for, r"requests with adapters \[0\] \(0: the base\)"),
    (evicted, r"the engine holds \[\]"),
    (left_out_of_the_product, "engine-a must give the probes the learner's log-probabilities"),
]


async def published(engine: VllmEngine, adapters: Versions) -> None:
    attested = await engine.load_weights(adapters[2][0], PROBES)
    check_weights("engine-a", attested, expected(adapters, 2), 0.15)


@pytest.mark.parametrize(
    ("spoil", "sentence"), FAULTS, ids=lambda given: getattr(given, "__name__", "")
)
async def test_an_adapter_that_does_not_reach_its_requests_is_caught(
    start_engine: Callable[..., VllmEngine],
    adapters: Versions,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    sentence: str,
) -> None:
    engine = start_engine("engine-a", adapter=SHAPE)
    await engine.load_weights(adapters[1][0], PROBES)

    def spoilt(core: VllmCore) -> None:
        spoil(monkeypatch, core)

    await engine._thread.call("spoil", spoilt, 10)
    with pytest.raises((WeightCheckFailed, RuntimeError), match=sentence):
        await published(engine, adapters)


@pytest.mark.skipif(NUM_GPUS == 1, reason="two ranks need two GPUs")
async def test_ranks_of_tensor_parallelism_hold_their_parts_of_an_adapter(
    start_engine: Callable[..., VllmEngine], adapters: Versions
) -> None:
    """Each is a process. Afterwards the second one's parts of a fused layer, and of one that is
    cut by its inputs, are spoilt."""
    pair = start_engine("engine-a", adapter=SHAPE, tensor_parallel_size=2)
    for version in (1, 2):
        attested = await pair.load_weights(adapters[version][0], PROBES)
        check_weights("engine-a", attested, expected(adapters, version), 0.15)

    def spoil(worker: Any) -> None:  # Any: vLLM's worker
        modules = worker.model_runner.lora_manager._adapter_manager.modules
        for name in ("self_attn.qkv_proj", "mlp.down_proj") if worker.rank else ():
            layer = modules[f"model.layers.1.{name}"]
            layer.set_lora = lambda *given, layer=layer: layer.reset_lora(0)

    await pair._thread.call("spoil", lambda core: core._engine.collective_rpc(spoil), 60)
    attested = await pair.load_weights(adapters[1][0], PROBES)
    right = expected(adapters, 1).fingerprints
    wrong = {name for name in right if attested.fingerprints[name] != right[name]}
    leaves = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
    assert wrong == {f"model.layers.1.{leaf}{end}" for leaf in leaves for end in (A, B)}


def test_an_engine_makes_room_for_a_rank_that_vllm_has() -> None:
    shape = AdapterShape(rank=12, scale=2.0, modules=("q_proj",))
    assert adapter_slot.arguments_of(shape) == {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": 16,
        "lora_target_modules": ["q_proj"],
    }
    assert adapter_slot.arguments_of(None) == {}
