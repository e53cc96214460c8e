"""The adapter of a vLLM worker: written into the one slot that vLLM has for it, and read back.

    stream ─▶ B times the scale ─▶ vLLM's manager ─▶ slot of every adapted layer ─▶ read back

A version replaces the one before it in place, under one id: what runs goes on with the new one, as
with whole weights. vLLM applies an adapter to those requests that name it, and lets all others run
on the base without a word; so from the first version on no batch may contain such a request.

Relied on, in vLLM 0.32: `LRUCacheWorkerLoRAManager` loads nothing for a request whose id it has;
layers keep A and B, padded with zeros, in `lora_a_stacked` and `lora_b_stacked`, fused ones a pair
for each part; `slice_lora_a` and `slice_lora_b` cut them for a rank of tensor parallelism; every
batch passes `set_active_adapters`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from artifacts.adapter_files import A, B, stem_of
from artifacts.models.size import ModelSize
from tasks.engines.base import AdapterShape

if TYPE_CHECKING:  # configurations name the slot, and are read without torch
    from torch import Tensor

SLOT_ID = 1  # vLLM's id of the adapter; 0 is the base
NAME = "policy"
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


def arguments_of(shape: AdapterShape | None) -> dict[str, Any]:  # Any: vLLM's EngineArgs
    """The arguments of vLLM's EngineArgs that make room for an adapter; none without one."""
    if shape is None:
        return {}
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": min(rank for rank in _RANKS if rank >= shape.rank),
        "lora_target_modules": list(shape.modules),
    }


def slot_request(path: str) -> Any:  # Any: vLLM's LoRARequest
    """What a request carries to run with the adapter. path: of its version, which vLLM never
    reads."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(NAME, SLOT_ID, path)


def slot_parameters(shape: AdapterShape | None, size: ModelSize) -> int:
    """The numbers that vLLM holds for adapters of a model: its slots, padded to a rank that it has,
    and beside them what was loaded. Of a rank of tensor parallelism the most: it cuts A or B."""
    if shape is None:
        return 0
    arguments = arguments_of(shape)
    of_layer = sum(ins + outs for name, ins, outs in size.linear if name in shape.modules)
    ranks = arguments["max_loras"] * (arguments["max_lora_rank"] + shape.rank)
    return int(ranks) * size.num_layers * of_layer


def load_adapter(
    runner: Any,  # Any: vLLM's model runner, and what it consists of
    tensors: Mapping[str, Tensor],
    shape: AdapterShape,
    path: str,
) -> dict[str, int]:
    """Replace the adapter by these tensors; returns the fingerprint of each as the worker's layers
    hold it, by name. Raises ValueError, before anything is changed, for tensors that fit no layer
    of the model."""
    import torch
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.lora_weights import LoRALayerWeights

    manager = runner.lora_manager._adapter_manager
    parts = {stem for stem, _, _ in _parts(manager)}
    stems = sorted(set(map(stem_of, tensors)))
    unknown = [stem for stem in stems if stem not in parts or {stem + A, stem + B} - tensors.keys()]
    if unknown or not stems:
        known = ", ".join(sorted({_leaf(stem) for stem in parts}))
        raise ValueError(
            f"an adapter must consist of matrices A and B of the model's layers, {path} has"
            f" {(unknown or ['none'])[0]}; vLLM adapts {known}"
        )
    scaled = {stem: tensors[stem + B] * shape.scale for stem in stems}
    # a copy of A: vLLM keeps both, and what comes without a file lies in the learner's memory
    loras = {
        stem: LoRALayerWeights(
            stem, shape.rank, shape.rank, tensors[stem + A].clone(), scaled[stem]
        )
        for stem in stems
    }
    with torch.no_grad():
        manager.remove_adapter(SLOT_ID)
        manager.add_adapter(LoRAModel(SLOT_ID, shape.rank, loras))
        manager.activate_adapter(SLOT_ID)
        _guard(runner.lora_manager)
        return _held(manager, tensors, scaled)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _parts(manager: Any) -> Iterator[tuple[str, Any, int]]:
    """(name in the checkpoint, layer, place among its parts) of all that can be adapted."""
    for name, layer in manager.modules.items():
        for place, part in enumerate(manager.packed_modules.get(name, [name])):
            yield part, layer, place


def _held(
    manager: Any, tensors: Mapping[str, Tensor], scaled: Mapping[str, Tensor]
) -> dict[str, int]:
    """A tensor's fingerprint where the layer holds exactly what loading it would give, and nothing
    beside it; else that of what it holds."""
    import torch

    from artifacts.weights import fingerprint

    slot = manager.lora_index_to_id.index(SLOT_ID)
    prints: dict[str, int] = {}
    for stem, layer, place in _parts(manager):
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


def _guard(worker_manager: Any) -> None:
    """Refuse every batch from now on in which a request would run without the adapter."""
    if hasattr(worker_manager, "unguarded"):
        return
    worker_manager.unguarded = worker_manager.set_active_adapters

    def set_active_adapters(requests: set[Any], mapping: Any | None) -> None:
        others = set(mapping.prompt_mapping) - {SLOT_ID} if mapping else set()
        held = worker_manager.list_adapters()
        if others or held != {SLOT_ID}:
            raise RuntimeError(
                "every request must run with the adapter of its weight version, this batch has"
                f" requests with adapters {sorted(map(int, others)) or [SLOT_ID]} (0: the base) and"
                f" the engine holds {sorted(held)}; resume the run, which loads it again"
            )
        worker_manager.unguarded(requests, mapping)

    worker_manager.set_active_adapters = set_active_adapters
