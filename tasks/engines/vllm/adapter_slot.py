"""The adapters of a vLLM worker: each written into the slot that vLLM has for it, and read back.

    stream ─▶ B times the scale ─▶ vLLM's manager ─▶ slot of every adapted layer ─▶ read back

A version replaces the one before it in place, under the same ids: what runs goes on with the new
one, as with whole weights. vLLM applies an adapter to those requests that name it, and lets all
others run on the base without a word; so from the first version on no batch may contain such a
request, nor one that runs with another adapter than its own.

Relied on, in vLLM 0.32: `LRUCacheWorkerLoRAManager` loads nothing for a request whose id it has;
layers keep A and B, padded with zeros, in `lora_a_stacked` and `lora_b_stacked`, fused ones a pair
for each part; `slice_lora_a` and `slice_lora_b` cut them for a rank of tensor parallelism; every
batch passes `set_active_adapters`, with a mapping in the order of the runner's `input_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from artifacts.adapter_files import A, B, named, part_of, stem_of
from artifacts.models.size import ModelSize
from artifacts.prompt_ids import adapter_of
from artifacts.records import prompt_of
from tasks.engines.base import AdapterShape
from tasks.engines.vllm.adapter_products import multiply_by_adapter

if TYPE_CHECKING:  # configurations name the slot, and are read without torch
    from torch import Tensor

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


def arguments_of(shape: AdapterShape | None) -> dict[str, Any]:  # Any: vLLM's EngineArgs
    """The arguments of vLLM's EngineArgs that make room for adapters; none without one."""
    if shape is None:
        return {}
    return {
        "enable_lora": True,
        "max_loras": len(shape.names),
        "max_lora_rank": min(rank for rank in _RANKS if rank >= shape.rank),
        "lora_target_modules": list(shape.modules),
    }


def slot_ids(shape: AdapterShape) -> dict[str, int]:
    """vLLM's id of each adapter; 0 is the base."""
    return {name: number for number, name in enumerate(shape.names, 1)}


def slot_requests(shape: AdapterShape, path: str) -> dict[str, Any]:  # Any: vLLM's LoRARequest
    """What a request carries to run with an adapter, by the adapter's name. path: of its version,
    which vLLM never reads."""
    from vllm.lora.request import LoRARequest

    return {
        name: LoRARequest(name or "policy", number, path)
        for name, number in slot_ids(shape).items()
    }


def slot_parameters(shape: AdapterShape | None, size: ModelSize) -> int:
    """The numbers that vLLM holds for adapters of a model: its slots, padded to a rank that it has,
    and beside them what was loaded. Of a rank of tensor parallelism the most: it cuts A or B."""
    if shape is None:
        return 0
    arguments = arguments_of(shape)
    of_layer = sum(ins + outs for name, ins, outs in size.linear if name in shape.modules)
    ranks = arguments["max_loras"] * (arguments["max_lora_rank"] + shape.rank)
    return int(ranks) * size.num_layers * of_layer


def load_adapters(
    runner: Any,  # Any: vLLM's model runner, and what it consists of
    tensors: Mapping[str, Tensor],
    shape: AdapterShape,
    path: str,
) -> dict[str, int]:
    """Replace the adapters by these tensors; returns the fingerprint of each as the worker's layers
    hold it, by name. Raises ValueError, before anything is changed, for tensors that fit no layer
    of the model."""
    import torch
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.lora_weights import LoRALayerWeights

    manager, ids = runner.lora_manager._adapter_manager, slot_ids(shape)
    parts = {part.stem: part.name for part in _parts(manager)}
    owned = {name: part_of(tensors, name) for name in ids}
    stems = {name: sorted(set(map(stem_of, own))) for name, own in owned.items()}
    _check_stems(tensors, shape, path, parts)
    scaled = {
        name: {stem: own[stem + B] * shape.scale for stem in stems[name]}
        for name, own in owned.items()
    }
    prints: dict[str, int] = {}
    with torch.no_grad():
        for name, number in ids.items():
            # a copy of A: vLLM keeps both, and what comes without a file lies in the learner's
            # memory
            loras = {
                parts[stem]: LoRALayerWeights(
                    parts[stem],
                    shape.rank,
                    shape.rank,
                    owned[name][stem + A].clone(),
                    scaled[name][stem],
                )
                for stem in stems[name]
            }
            manager.remove_adapter(number)
            manager.add_adapter(LoRAModel(number, shape.rank, loras))
            manager.activate_adapter(number)
        _guard(runner, ids)
        multiply_by_adapter(manager)
        for name, number in ids.items():
            held = _held(manager, number, owned[name], scaled[name])
            prints |= {named(name, tensor): each for tensor, each in held.items()}
    return prints


def _check_stems(
    tensors: Mapping[str, Tensor], shape: AdapterShape, path: str, known: Collection[str]
) -> None:
    """Raises ValueError unless the tensors are pairs of these matrices, for every adapter, and
    nothing beside them."""
    owned = {name: part_of(tensors, name) for name in shape.names}
    unknown = [
        named(name, stem)
        for name, own in owned.items()
        for stem in sorted(set(map(stem_of, own))) or ["none"]
        if stem not in known or {stem + A, stem + B} - own.keys()
    ]
    if unknown or sum(map(len, owned.values())) != len(tensors):
        strange = unknown or sorted(
            name for name in tensors if name.partition("/")[0] not in shape.names
        )
        raise ValueError(
            f"an adapter must consist of matrices A and B of the model's layers, {path} has"
            f" {strange[0]}; vLLM adapts {', '.join(sorted({_leaf(stem) for stem in known}))}"
        )


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


class _AdaptedPart(NamedTuple):
    stem: str  # its name in the checkpoint
    name: str  # in vLLM
    layer: Any  # vLLM's, of no useful type
    place: int  # among the parts of the layer


def _parts(manager: Any) -> Iterator[_AdaptedPart]:
    """All that can be adapted."""
    from tasks.engines.vllm.model_parts import in_checkpoint

    for name, layer in manager.modules.items():
        for place, part in enumerate(manager.packed_modules.get(name, [name])):
            yield _AdaptedPart(in_checkpoint(manager.model, part), part, layer, place)


def _held(
    manager: Any, number: int, tensors: Mapping[str, Tensor], scaled: Mapping[str, Tensor]
) -> dict[str, int]:
    """A tensor's fingerprint where the layer's slot of this adapter holds exactly what loading it
    would give, and nothing beside it; else that of what it holds."""
    import torch

    from artifacts.weights import fingerprint

    slot = manager.lora_index_to_id.index(number)
    prints: dict[str, int] = {}
    for stem, _, layer, place in _parts(manager):
        pair = layer.lora_a_stacked[place][slot, 0], layer.lora_b_stacked[place][slot, 0]
        if stem not in scaled:
            if any(held.any() for held in pair):
                raise RuntimeError(f"vLLM holds an adapter of {stem}, which this version has not")
            continue
        wanted = _cut(layer, place, tensors[stem + A], scaled[stem])
        for end, held, part in zip((A, B), pair, wanted, strict=True):
            rows, columns = part.shape
            same = torch.equal(held[:rows, :columns], part.to(held))
            is_alone = not (held[rows:].any() or held[:, columns:].any())
            given = tensors[stem + end]
            prints[stem + end] = fingerprint(given if same and is_alone else held.clone())
    return prints


def _cut(layer: Any, place: int, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """What this rank's layer is to hold of A, and of B with its scale."""
    if layer.tp_size == 1:
        return first, second
    if layer.n_slices == 1:
        return layer.slice_lora_a(first), layer.slice_lora_b(second)
    firsts: list[Tensor | None] = [None] * layer.n_slices
    seconds = [*firsts]
    firsts[place], seconds[place] = first, second
    return layer.slice_lora_a(firsts)[place], layer.slice_lora_b(seconds)[place]


def _guard(runner: Any, ids: Mapping[str, int]) -> None:
    """Refuse every batch from now on in which a request would run without an adapter, or with
    another than the one that its id names."""
    manager, own = runner.lora_manager, {number: name for name, number in ids.items()}
    if hasattr(manager, "unguarded"):
        return
    manager.unguarded, in_batch = manager.set_active_adapters, _requests_of_batch(runner)

    def set_active_adapters(requests: set[Any], mapping: Any | None) -> None:
        given = mapping.prompt_mapping if mapping else ()
        held, others = manager.list_adapters(), set(given) - set(own)
        if others or held != set(own):
            told = sorted(map(int, others)) or sorted(own)
            raise RuntimeError(
                "every request must run with the adapter of its weight version, this batch has"
                f" requests with adapters {told} (0: the base) and"
                f" the engine holds {sorted(held)}; resume the run, which loads it again"
            )
        if mapping and len(own) > 1:
            _check_own(in_batch(), [own[number] for number in given])
        manager.unguarded(requests, mapping)

    manager.set_active_adapters = set_active_adapters


def _check_own(request_ids: Sequence[str], found: Sequence[str]) -> None:
    """Raises RuntimeError unless these adapters are those that the requests of a batch name."""
    asked = [adapter_of(prompt_of(name)) for name in request_ids]
    if asked != found:
        wrong = next((pair for pair in zip(asked, found, strict=False) if len({*pair}) > 1), "none")
        raise RuntimeError(
            "every request must run with the adapter that its id names, this batch has"
            f" {len(asked)} requests and {len(found)} adapters, and the first that differs asks for"
            f" and has {wrong}; resume the run, which loads them again"
        )


def _requests_of_batch(runner: Any) -> Callable[[], Sequence[str]]:
    """Where to read vLLM's ids of the requests of a batch, in the mapping's order. Its second model
    runner makes the mapping of ids that it keeps nowhere else."""
    if not hasattr(runner, "lora_state"):
        return lambda: tuple(runner.input_batch.req_ids)
    noted: list[str] = []
    make = runner.lora_state.make_lora_inputs

    def make_lora_inputs(request_ids: list[str], *rest: Any) -> Any:
        noted[:] = request_ids
        return make(request_ids, *rest)

    runner.lora_state.make_lora_inputs = make_lora_inputs
    return lambda: noted
