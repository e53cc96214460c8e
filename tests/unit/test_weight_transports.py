"""Every transport between processes: a learner that offers and engines that load, of which some
die, are late, or hold other weights than they were offered.

A learner and one or two engines are processes of their own; files of a folder carry the offers and
what became of each. The engines' side is `WeightReader` on a model of toy layers.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from rank_processes import exit_codes
from toy_engine import SHAPES, Reader, Toy

from artifacts.records import WeightsRef
from artifacts.weights import fingerprint, write_weights
from tasks.cluster.devices import ClusterConfig
from tasks.cluster.ports import LOOPBACK, reach_ranks_by
from tasks.engines.base import Attestation, TransferLost
from tasks.engines.transports.base import (
    FlatWeights,
    ParameterSlot,
    WeightTransport,
    buckets_of,
    slots_of,
)
from tasks.engines.transports.broadcast import BroadcastTransport
from tasks.engines.transports.registry import opened, placed_transport, transport_of
from tasks.engines.transports.shared_memory import SharedMemoryTransport
from tasks.learner.weight_check import WeightCheckFailed, check_tensors

WAIT_S = 60.0  # of the harness, for a file of another process
LATE_S = 1.0  # the transports' deadline where somebody is to miss it
KINDS = ("file", "ipc", "broadcast")
SIZES = {name: torch.Size(shape) for name, shape in SHAPES.items()}
ONE, TWO = ("engine-0/0",), ("engine-0/0", "engine-1/0")
# what a process does wrong, and with which version
Faults = Mapping[tuple[str, int], str]


def weights_of(version: int) -> FlatWeights:
    """The learner's weights, other ones in each version; NaN where there is no parameter."""
    slots = slots_of(SIZES)
    values = torch.full((slots[-1].end + 7,), float("nan"), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(version)
    for slot in slots:
        slot.of(values).copy_(torch.randn(slot.shape, generator=generator))
    return FlatWeights(values=values, slots=slots)


def prints_of(weights: FlatWeights) -> dict[str, int]:
    return {slot.name: fingerprint(slot.of(weights.values)) for slot in weights.slots}


def write(folder: Path, name: str, record: object) -> None:
    aside = folder / f".{name}"
    aside.write_bytes(pickle.dumps(record))
    aside.rename(folder / name)


def read(folder: Path, name: str) -> object:
    ends = time.monotonic() + WAIT_S
    while not (folder / name).exists():
        assert time.monotonic() < ends, f"nobody wrote {name}"
        time.sleep(0.005)
    return pickle.loads((folder / name).read_bytes())


def name_of(member: str) -> str:
    return member.replace("/", "-")


@contextmanager
def kept(folder: Path, name: str) -> Iterator[None]:
    """Write how the block went: nothing, or the sentence of the transfer that was lost."""
    try:
        yield
    except TransferLost as error:
        write(folder, name, str(error))


def play(
    who: str, kind: str, folder: Path, members: tuple[str, ...], versions: int, faults: Faults
) -> None:
    """One process: the learner, or the worker of an engine."""
    reach_ranks_by(LOOPBACK)
    torch.set_num_threads(1)
    if who == "learner":
        play_learner(kind, folder, members, versions, faults)
    else:
        play_engine(who, folder, versions, faults)


def play_learner(
    kind: str, folder: Path, members: tuple[str, ...], versions: int, faults: Faults
) -> None:
    deadline_s = LATE_S if "late" in faults.values() else WAIT_S
    transport: WeightTransport | None = None
    if kind == "broadcast":  # a bucket for each family of parameters
        transport = BroadcastTransport(LOOPBACK, deadline_s, bucket_elements=1)
    elif kind == "ipc":
        transport = transport_of("ipc", deadline_s)
    buffer = weights_of(0).values  # of all versions, as a learner has one
    for version in range(1, versions + 1):
        weights = weights_of(version)
        buffer.copy_(weights.values)
        held, fault = (
            FlatWeights(values=buffer, slots=weights.slots),
            faults.get(("learner", version)),
        )
        expected = Attestation(version=version, fingerprints=prints_of(held), probe_logprobs=None)
        if transport is None:
            tensors = ((slot.name, slot.of(buffer)) for slot in held.slots)
            offered = write_weights(tensors, folder / f"{version}.safetensors", version)
        else:
            offered = transport.offer(held, version, "", members)
        if fault == "spoils":  # after the fingerprints were taken: a write is half done
            next(slot for slot in held.slots if "k_proj" in slot.name).of(buffer)[1:] = 0.5
        write(folder, f"expected-{version}", expected)
        write(folder, f"offer-{version}", offered)
        if fault == "dies before":
            write(folder, "dying", os.getpid())
            os._exit(9)
        if transport is not None:
            with kept(folder, f"learner-{version}"), dying(transport, fault):
                transport.send()
        for member in members:
            read(folder, f"{name_of(member)}-{version}")
        if transport is not None:
            transport.withdraw()


@contextmanager
def dying(transport: WeightTransport, fault: str | None) -> Iterator[None]:
    """End the process when it sends its second bucket."""
    if fault == "dies":
        assert isinstance(transport, BroadcastTransport)
        send, sent = transport._broadcast, [0]

        def once(values: torch.Tensor) -> object:
            sent[0] += 1
            return os._exit(9) if sent[0] > 1 else send(values)

        transport._broadcast = once  # type: ignore[assignment,method-assign]  # the fault
    yield


def play_engine(member: str, folder: Path, versions: int, faults: Faults) -> None:
    reader = Reader(Toy())
    for version in range(1, versions + 1):
        offered, fault = read(folder, f"offer-{version}"), faults.get((member, version))
        assert isinstance(offered, WeightsRef)
        if faults.get(("learner", version)) == "dies before":
            await_end(f"/proc/{read(folder, 'dying')}/fd")
        if fault == "replaced":  # a new process, as far as the others see
            reader = Reader(Toy())
        if fault == "late":
            read(folder, f"learner-{version}")
        if fault == "dies":
            transports = reader._transports or {}
            with opened(offered, torch.device("cpu"), member, transports) as stream:
                next(stream.buckets)
                write(folder, f"{name_of(member)}-{version}", "it dies")
                os._exit(9)
        name = f"{name_of(member)}-{version}"
        with kept(folder, name):
            write(folder, name, reader.load_version(offered, member.partition("/")[0]))


def await_end(files: str) -> None:
    """Wait until a process that ends has closed its files."""
    ends = time.monotonic() + WAIT_S
    with suppress(OSError):
        while os.listdir(files):
            assert time.monotonic() < ends, "it does not end"
            time.sleep(0.005)


def played(
    kind: str,
    folder: Path,
    members: tuple[str, ...] = ONE,
    versions: int = 3,
    faults: Faults | None = None,
) -> list[int | None]:
    arguments = [
        (who, kind, folder, members, versions, faults or {}) for who in ("learner", *members)
    ]
    return exit_codes(play, arguments)


def check(folder: Path, member: str, version: int) -> None:
    """Compare an engine as the weight check does. Raises WeightCheckFailed."""
    expected, prints = (
        read(folder, f"expected-{version}"),
        read(folder, f"{name_of(member)}-{version}"),
    )
    assert isinstance(expected, Attestation)
    assert isinstance(prints, dict), prints
    held = Attestation(version=version, fingerprints=prints, probe_logprobs=None)
    check_tensors(member, held, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_engines_hold_every_version(kind: str, tmp_path: Path) -> None:
    """The first by vLLM's own rules, later ones directly; tied, fused and padded tensors among."""
    assert played(kind, tmp_path, TWO) == [0, 0, 0]
    for member in TWO:
        for version in (1, 2, 3):
            check(tmp_path, member, version)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_was_replaced_gets_the_next_version(kind: str, tmp_path: Path) -> None:
    assert played(kind, tmp_path, TWO, faults={(TWO[1], 2): "replaced"}) == [0, 0, 0]
    for member in TWO:
        check(tmp_path, member, 3)


@pytest.mark.parametrize("kind", ["ipc", "broadcast"])
def test_an_engine_that_dies_in_mid_transfer_stops_nobody(kind: str, tmp_path: Path) -> None:
    """Where others wait for it, learner and engines say so; the next version reaches the others."""
    assert played(kind, tmp_path, TWO, versions=2, faults={(TWO[1], 2): "dies"}) == [0, 0, 9]
    check(tmp_path, TWO[0], 1)
    if kind == "ipc":
        check(tmp_path, TWO[0], 2)
    else:
        lost = read(tmp_path, "learner-2")
        assert str(lost).startswith(
            "the weights did not reach all of engine-0/0, engine-1/0; gone or late: engine-1/0 ("
        )
        there = read(tmp_path, "engine-0-0-2")
        assert isinstance(there, dict) or "engine-0/0 lost the learner, or another of" in str(there)


def test_an_engine_that_does_not_come_is_named_to_all(tmp_path: Path) -> None:
    assert played("broadcast", tmp_path, TWO, 2, {(TWO[1], 2): "late"}) == [0, 0, 0]
    sentence = "engine-1/0 did not come for the weights within 1 s; 1 of 2"
    assert read(tmp_path, "learner-2") == sentence
    assert read(tmp_path, "engine-0-0-2") == sentence
    assert read(tmp_path, "engine-1-0-2") == sentence  # too late, but told


def test_a_send_that_waits_ends_when_the_weights_are_withdrawn() -> None:
    """The publication has failed: the learner has other calls to answer."""
    transport = BroadcastTransport(LOOPBACK, WAIT_S)
    transport.offer(weights_of(1), 1, "", ONE)
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(transport.send)
        transport.withdraw()
        with pytest.raises(TransferLost, match=r"engine-0/0 did not come .* 0 s|were withdrawn"):
            sending.result(WAIT_S / 2)


@pytest.mark.parametrize("kind", ["ipc", "broadcast"])
def test_engines_say_that_the_learner_is_gone(kind: str, tmp_path: Path) -> None:
    assert played(kind, tmp_path, TWO, 2, {("learner", 2): "dies before"}) == [9, 0, 0]
    for member in TWO:
        assert "the learner" in str(read(tmp_path, f"{name_of(member)}-2"))
        assert "is gone" in str(read(tmp_path, f"{name_of(member)}-2"))


def test_engines_say_that_the_learner_died_in_mid_transfer(tmp_path: Path) -> None:
    assert played("broadcast", tmp_path, TWO, 2, {("learner", 2): "dies"}) == [9, 0, 0]
    for member in TWO:
        assert (
            f"{member} lost the learner, or another of engine-0/0, engine-1/0, while version 2"
            in (str(read(tmp_path, f"{name_of(member)}-2")))
        )


@pytest.mark.parametrize("kind", ["ipc", "broadcast"])
def test_a_half_written_tensor_is_named(kind: str, tmp_path: Path) -> None:
    """A buffer that changes after the learner has attested to it."""
    assert played(kind, tmp_path, faults={("learner", 3): "spoils"}) == [0, 0]
    check(tmp_path, ONE[0], 2)
    with pytest.raises(WeightCheckFailed, match=r"must hold the learner's attn\.k_proj\.weight of"):
        check(tmp_path, ONE[0], 3)


def test_siblings_come_in_one_bucket_whatever_its_size() -> None:
    """What an engine fuses are siblings; the tensors around them come in other buckets."""
    shapes = {
        f"model.layers.{layer}.{name}.weight": torch.Size((3, 5))
        for layer in range(2)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj", "norm")
    }
    slots = slots_of(shapes)
    small = [[slot.name for slot in bucket] for bucket in buckets_of(slots, 1)]
    assert [len(bucket) for bucket in small] == [2, 2, 1] * 2
    assert [name for bucket in small for name in bucket] == list(shapes)
    assert [len(bucket) for bucket in buckets_of(slots, 64 * 4)] == [4, 3, 3]
    assert all(slot.start % 64 == 0 for slot in slots)


def test_tensors_of_other_names_or_shapes_are_refused_before_anything_is_changed() -> None:
    transport, weights = SharedMemoryTransport(1.0), weights_of(1)
    reader = Reader(Toy())
    reader.load_version(transport.offer(weights, 1, "", ONE), "engine-0")
    before = reader.model_runner.model.norm.weight.clone()
    later = weights_of(2)
    renamed = [
        ParameterSlot(name=slot.name.replace("k_proj", "kk"), shape=slot.shape, start=slot.start,
                      end=slot.end)
        for slot in later.slots
    ]  # fmt: skip
    offered = transport.offer(FlatWeights(values=later.values, slots=renamed), 2, "", ONE)
    with pytest.raises(ValueError, match=r"lacks \['attn\.k_proj\.weight'\]"):
        reader.load_version(offered, "engine-0")
    assert reader.model_runner.model.norm.weight.equal(before)


def test_mapped_memory_is_the_learners_own_and_is_not_changed() -> None:
    """No copy is made on the learner's side, whose views follow the buffer into shared memory."""
    weights = weights_of(1)
    view, before = weights.slots[0].of(weights.values), weights.values.clone()
    transport = SharedMemoryTransport(1.0)
    offered = transport.offer(weights, 1, "", ONE)
    with transport.open(offered, torch.device("cpu"), ONE[0]) as stream:
        (bucket,) = stream.buckets
        view[0, 0] = 3.0
        assert bucket[weights.slots[0].name][0, 0] == 3.0
        view[0, 0] = before[0]
    reader = Reader(Toy())
    for _ in range(2):
        reader.load_version(offered, "engine-0")
    assert torch.equal(weights.values.nan_to_num(), before.nan_to_num())


def test_ipc_without_a_learner_on_the_device_says_what_to_do() -> None:
    offered = SharedMemoryTransport(1.0).offer(weights_of(1), 1, "", ONE)
    with (
        pytest.raises(
            ValueError, match=r"needs a learner rank on the device of engine-0/0 \(meta\)"
        ),
        SharedMemoryTransport(1.0).open(offered, torch.device("meta"), ONE[0]),
    ):
        pass


@pytest.mark.parametrize(
    ("roles", "devices_per_host", "kind"),
    [
        ("rollout: 0-3, learner: 0-3", 8, "ipc"),
        ("rollout: 0-1, learner: 0-3", 8, "ipc"),
        ("rollout: 0-3, learner: 0-3", 2, "ipc"),  # each engine beside a rank of its own machine
        ("rollout: 2-3, learner: 0-1", 8, "broadcast"),
        ("rollout: 1-3, learner: 0-1", 8, "broadcast"),
        ("rollout: 0-3, learner: 0-1", 8, "file"),  # rank 0 has an engine beside it
        ("rollout: 2-3, learner: 0-1", 2, "file"),  # another machine
    ],
)
def test_the_roles_choose_the_way(roles: str, devices_per_host: int, kind: str) -> None:
    gpus = ClusterConfig(
        device_kind="cuda", num_devices=4, devices_per_host=devices_per_host, roles=roles
    )
    assert placed_transport(gpus) == kind
    assert placed_transport(gpus.model_copy(update={"device_kind": "cpu"})) == "file"
