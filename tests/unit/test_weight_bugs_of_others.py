"""Six ways in which engines of other projects have sampled from wrong weights without a word, each
made here by a fault in the path of a version, each caught and named by the weight check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from toy_engine import SHAPES, Reader, Toy

from artifacts.records import WeightsRef
from artifacts.weights import fingerprint
from tasks.engines.base import Attestation
from tasks.engines.transports.base import FlatWeights, OfferedWeights, WeightStream, slots_of
from tasks.engines.transports.shared_memory import SharedMemoryTransport
from tasks.engines.vllm import worker
from tasks.engines.vllm.model_parts import TensorPart, load_parameter, parts_of
from tasks.learner.weight_check import WeightCheckFailed, check_tensors

Fault = Callable[[pytest.MonkeyPatch, FlatWeights], None]


def loads_nothing(patch: pytest.MonkeyPatch, weights: FlatWeights) -> None:
    """The trained tensors never reach the engine, which goes on with the base model's."""
    patch.setattr(worker, "load_parameter", lambda *args, **kwargs: None)


def swaps_fused_parts(patch: pytest.MonkeyPatch, weights: FlatWeights) -> None:
    """Parts of a fused parameter are written in another order than the engine computes with."""

    def load(
        module: nn.Module, parameter: Tensor, parts: Sequence[TensorPart], *, is_tied: bool
    ) -> None:
        order = (0, 2, 1) if len(parts) == 3 else range(len(parts))
        load_parameter(module, parameter, [parts[place] for place in order], is_tied=is_tied)

    patch.setattr(worker, "load_parameter", load)


def forgets_the_tied_head(patch: pytest.MonkeyPatch, weights: FlatWeights) -> None:
    """The embedding is renewed, the head's own copy of it is not."""

    def load(
        module: nn.Module, parameter: Tensor, parts: Sequence[TensorPart], *, is_tied: bool
    ) -> None:
        if not is_tied:
            load_parameter(module, parameter, parts, is_tied=False)

    patch.setattr(worker, "load_parameter", load)


def writes_over_a_bucket_in_use(patch: pytest.MonkeyPatch, weights: FlatWeights) -> None:
    """The sender goes on in its buffer while the engine still reads the bucket before."""
    attention = next(slot for slot in weights.slots if "v_proj" in slot.name)

    def parts(module: nn.Module, names: list[str], stream: Mapping[str, Tensor]) -> object:
        found = parts_of(module, names, stream)
        if attention.name in names:
            attention.of(weights.values)[-1] = 7.0
        return found

    patch.setattr(worker, "parts_of", parts)


def loses_the_last_bucket(patch: pytest.MonkeyPatch, weights: FlatWeights) -> None:
    """The loop that fills buckets ends before the last one is sent."""
    opened = worker.opened

    @contextmanager
    def cut(offered: OfferedWeights, *rest: object) -> Iterator[WeightStream]:
        with opened(offered, *rest) as stream:  # type: ignore[arg-type]  # as it is called
            (bucket,) = stream.buckets
            kept = {name: tensor for name, tensor in bucket.items() if "attn" not in name}
            yield WeightStream(shapes=stream.shapes, buckets=iter([kept]))

    patch.setattr(worker, "opened", cut)


FAULTS: tuple[tuple[Fault, str], ...] = (
    (loads_nothing, r"the learner's embed_tokens\.weight of version 2, .* that differ: 5"),
    (swaps_fused_parts, r"the learner's attn\.k_proj\.weight of version 2, .* that differ: 2"),
    (forgets_the_tied_head, r"the learner's embed_tokens\.weight of version 2, .* differ: 1"),
    (writes_over_a_bucket_in_use, r"the learner's attn\.v_proj\.weight of version 2, .*differ: 1"),
    (loses_the_last_bucket, r"attn\.k_proj\.weight never reached it"),
)


def weights_of(version: int) -> FlatWeights:
    slots = slots_of({name: torch.Size(shape) for name, shape in SHAPES.items()})
    generator = torch.Generator().manual_seed(version)
    values = torch.randn(slots[-1].end, generator=generator).bfloat16()
    return FlatWeights(values=values, slots=slots)


def attested(version: int, prints: Mapping[str, int]) -> Attestation:
    return Attestation(version=version, fingerprints=prints, probe_logprobs=None)


def expected_of(version: int, weights: FlatWeights) -> Attestation:
    prints = {slot.name: fingerprint(slot.of(weights.values)) for slot in weights.slots}
    return attested(version, prints)


def offer(weights: FlatWeights, version: int) -> WeightsRef:
    return SharedMemoryTransport(1.0).offer(weights, version, "", ("engine-0/0",))


@pytest.mark.parametrize(("fault", "sentence"), FAULTS)
def test_a_fault_is_named(fault: Fault, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, first, second = Reader(Toy()), weights_of(1), weights_of(2)
    held = reader.load_version(offer(first, 1), "engine-0")
    check_tensors("engine-0", attested(1, held), expected_of(1, first))
    expected = expected_of(2, second)
    fault(monkeypatch, second)
    held = reader.load_version(offer(second, 2), "engine-0")
    with pytest.raises(WeightCheckFailed, match=sentence):
        check_tensors("engine-0", attested(2, held), expected)


def test_a_version_that_is_never_loaded_is_named() -> None:
    """The engine takes the offer before: a publication was skipped, or came late."""
    reader, first, second = Reader(Toy()), weights_of(1), weights_of(2)
    offered = offer(first, 1)
    held = reader.load_version(offered, "engine-0")
    with pytest.raises(WeightCheckFailed, match="must hold version 2, it holds 1"):
        check_tensors("engine-0", attested(offered.version, held), expected_of(2, second))
