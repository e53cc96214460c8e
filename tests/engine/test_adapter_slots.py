"""Several adapters in one vLLM: each request runs with its own, also beside requests of the same
prompt with another; and ways in which it would not, each of which is caught."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from artifacts.adapter_files import A, merged, named
from artifacts.prompt_ids import adapter_of
from artifacts.records import Request, WeightsRef
from artifacts.weights import fingerprints, write_weights
from tasks.engines.base import AdapterShape, Attestation, Probed
from tasks.engines.transports.base import FlatWeights, slots_of
from tasks.engines.transports.shared_memory import SharedMemoryTransport
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tasks.learner.lora_config import LAYERS
from tasks.learner.weight_check import WeightCheckFailed, check_weights
from tests.engine.conftest import generate, make_request
from tests.engine.test_adapters_engine import PROBES, drawn, manager_of
from tests.engine.test_vllm_engine import reference_logprobs

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

NAMES = ("one", "two")
SHAPE = AdapterShape(rank=4, scale=1.5, modules=LAYERS, names=NAMES)
Tensors = dict[str, torch.Tensor]


class Version:
    """A version of both adapters, and the plain model of each: weights with the adapter added."""

    def __init__(self, number: int, base: LlamaForCausalLM, path: str, folder: Path) -> None:
        self.number, self.models = number, dict[str, LlamaForCausalLM]()
        self.tensors: Tensors = {}
        for place, name in enumerate(NAMES):
            own = drawn(base, 10 * number + place)
            self.tensors |= {named(name, tensor): value for tensor, value in own.items()}
            model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
            with torch.no_grad():
                for weight_name, weight in model.named_parameters():
                    weight.copy_(merged(weight_name, weight, own, SHAPE.scale))
            self.models[name] = model
        target = folder / f"{number}.safetensors"
        self.file: WeightsRef = write_weights(self.tensors.items(), target, number)
        self.of_base = probed(base)

    @property
    def expected(self) -> Attestation:
        """What a learner with this version attests."""
        logprobs = tuple(values for name in NAMES for values in probed(self.models[name]))
        return Attestation(
            version=self.number,
            fingerprints=fingerprints(self.file.path),
            probe_logprobs=logprobs,
            base_logprobs=self.of_base,
            adapters=NAMES,
        )


def probed(model: LlamaForCausalLM) -> Probed:
    return tuple(tuple(reference_logprobs(model, each).tolist()) for each in PROBES)


@pytest.fixture(scope="module")
def versions(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Version]:
    base = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    folder = tmp_path_factory.mktemp("adapters")
    return [Version(number, base, model_path, folder) for number in (1, 2)]


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., VllmEngine]) -> VllmEngine:
    return start_engine("engine-a", adapter=SHAPE)


def mixed(num: int) -> list[Request]:
    """Responses to the same prompts with both adapters in turn, under the same noise."""
    return [
        make_request(f"0/{number // 3}@{name}", number % 3, seed=number, max_new_tokens=24)
        for number in range(num)
        for name in NAMES
    ]


async def test_every_request_runs_with_its_own_adapter(
    engine: VllmEngine, versions: Sequence[Version]
) -> None:
    """Each token has the log-probability that the model with its adapter gives it, and is far from
    what the other one gives; the base is as it was."""
    for version in versions:
        attested = await engine.load_weights(version.file, PROBES)
        difference = check_weights("engine-a", attested, version.expected, 0.15)
        assert difference is not None
        assert difference < 0.06
        done = await generate(engine, mixed(9))
        assert len(done) == 18
        far = 0.0
        for response in done.values():
            given = (*make_request(response.prompt_id).prompt_tokens, *response.token_ids)
            name = adapter_of(response.prompt_id)
            own, other = (
                reference_logprobs(version.models[each], given)[-len(response.token_ids) :]
                for each in (name, *(set(NAMES) - {name}))
            )
            found = torch.tensor(response.logprobs)
            torch.testing.assert_close(found, own, rtol=0, atol=0.35, msg=f"of {name}")
            far = max(far, float((found - other).abs().max()))
        assert far > 1.0, "the adapters differ"


async def test_all_come_without_a_file(engine: VllmEngine, versions: Sequence[Version]) -> None:
    tensors = versions[1].tensors
    slots = slots_of({name: tensor.shape for name, tensor in tensors.items()})
    values = torch.zeros(slots[-1].end, dtype=torch.bfloat16)
    for slot in slots:
        slot.of(values).copy_(tensors[slot.name])
    transport = SharedMemoryTransport(60.0)
    await engine.load_weights(versions[0].file, ())
    offered = transport.offer(FlatWeights(values=values, slots=slots), 2, "2", ("engine-a/0",))
    attested, _ = await asyncio.gather(
        engine.load_weights(offered, PROBES), asyncio.to_thread(transport.send)
    )
    transport.withdraw()
    check_weights("engine-a", attested, versions[1].expected, 0.15)


async def test_an_adapter_that_was_not_published_is_refused(
    engine: VllmEngine, versions: Sequence[Version], tmp_path: Path
) -> None:
    tensors = {name: each for name, each in versions[0].tensors.items() if name[:3] == "one"}
    half = write_weights(tensors.items(), tmp_path / "half.safetensors", 3)
    with pytest.raises(ValueError, match=r"half\.safetensors has two/none; vLLM adapts"):
        await engine.load_weights(half, ())
    more = {**versions[0].tensors, "three/model.layers.0.mlp.up_proj" + A: torch.zeros(4, 128)}
    strange = write_weights(more.items(), tmp_path / "more.safetensors", 3)
    with pytest.raises(ValueError, match=r"has three/model\.layers\.0\.mlp\.up_proj"):
        await engine.load_weights(strange, ())


# --- faults --------------------------------------------------------------------------------------

Spoil = Callable[[pytest.MonkeyPatch, VllmCore], None]


def loaded_into_each_other(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """The engine loads each adapter into the other's slot."""
    manager = manager_of(core)
    activate = manager.activate_adapter

    def exchanged(number: int) -> bool:
        adapters = manager._registered_adapters
        if number == 2:  # the last: both are there
            first, second = adapters.cache[1], adapters.cache[2]
            first.loras, second.loras = second.loras, first.loras
            for each in (1, 2):
                manager.deactivate_adapter(each)
            return bool(activate(1) and activate(2))
        return bool(activate(number))

    patch.setattr(manager, "activate_adapter", exchanged)


def asked_for_each_other(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """Requests name the other adapter."""
    from tasks.engines.vllm.adapter_slot import slot_requests

    def exchanged(shape: AdapterShape, path: str) -> dict[str, Any]:  # Any: vLLM's
        one, two = slot_requests(shape, path).values()
        return {"one": two, "two": one}

    patch.setattr("tasks.engines.vllm.core.slot_requests", exchanged)


def found_in_each_other(patch: pytest.MonkeyPatch, core: VllmCore) -> None:
    """The engine holds both right, and looks for each in the other's slot."""
    manager = manager_of(core)
    load = core._engine.collective_rpc

    def then_swap(name: str, args: tuple[object, ...] = ()) -> object:
        answer = load(name, args=args)
        manager.lora_index_to_id.reverse()
        return answer

    patch.setattr(core._engine, "collective_rpc", then_swap)


FAULTS: list[tuple[Spoil, str]] = [
    (loaded_into_each_other, r"must hold the learner's one/model.layers.*lora_A.* of version 2"),
    (asked_for_each_other, r"the first that differs asks for and has \('one', 'two'\)"),
    (found_in_each_other, r"give the probes the learner's log-probabilities with adapter one"),
]


@pytest.mark.parametrize(
    ("spoil", "sentence"), FAULTS, ids=lambda given: getattr(given, "__name__", "")
)
async def test_a_request_that_would_run_with_another_adapter_is_caught(
    start_engine: Callable[..., VllmEngine],
    versions: Sequence[Version],
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    sentence: str,
) -> None:
    engine = start_engine("engine-a", adapter=SHAPE)
    await engine.load_weights(versions[0].file, PROBES)
    await engine._thread.call("spoil", lambda core: spoil(monkeypatch, core), 10)

    async def publish() -> None:
        attested = await engine.load_weights(versions[1].file, PROBES)
        check_weights("engine-a", attested, versions[1].expected, 0.15)

    with pytest.raises((WeightCheckFailed, RuntimeError), match=sentence):
        await publish()
