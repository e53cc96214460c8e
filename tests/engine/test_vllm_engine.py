"""The real engine on a tiny random model: what a response carries, aborts, resumption, weights,
reproducibility, death."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from artifacts.records import Generated, VersionSpan, WeightsRef
from artifacts.weights import fingerprints
from tasks.engines.base import EngineLost, EngineStats
from tasks.engines.transports.base import FlatWeights, slots_of
from tasks.engines.transports.shared_memory import SharedMemoryTransport
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tasks.rounds.migration import Migration
from tasks.scheduling.stream_training import ScaleDown
from tests.engine.conftest import (
    FLOAT32_ATOL,
    collect_all,
    cores_only,
    double,
    generate,
    gpus_only,
    make_batch,
    make_request,
)

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

PROBES = ((5, 9, 30, 41, 7, 22), (3, 4, 5, 6))
KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 32 * 2  # layers, keys and values, heads, head_dim, bytes of bf16
Versions = dict[int, tuple[WeightsRef, LlamaForCausalLM]]


@pytest.fixture(scope="module")
def engine(start_engine: Callable[[str], VllmEngine]) -> VllmEngine:
    return start_engine("engine-a")


def reference_logprobs(
    model: LlamaForCausalLM, tokens: tuple[int, ...], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probability of each token after the first under a transformers forward."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


async def test_every_response_is_whole(engine: VllmEngine) -> None:
    done = await generate(engine, make_batch(12, max_new_tokens=60))
    assert {generated.finish_reason for generated in done.values()} <= {"stop", "length"}
    for generated in done.values():
        assert 1 <= len(generated.token_ids) == len(generated.logprobs) <= 60
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in generated.logprobs)
        assert sum(span.num_tokens for span in generated.versions) == len(generated.token_ids)
        assert (generated.finish_reason == "stop") == (generated.token_ids[-1] == 0)
        assert generated.submitted_s <= generated.first_token_s <= generated.finished_s
        assert "<eos>" not in generated.text
        assert generated.engine == "engine-a"


async def test_a_group_gets_different_responses(engine: VllmEngine) -> None:
    done = await generate(engine, [make_request("0/0", index, seed=index) for index in range(4)])
    assert len({generated.token_ids for generated in done.values()}) == 4


@pytest.mark.parametrize(("temperature", "bound"), [(1.0, 0.1), (0.6, 0.15)])
async def test_logprobs_are_those_of_the_sampled_distribution(
    engine: VllmEngine, versions: Versions, temperature: float, bound: float
) -> None:
    weights, model = versions[1]
    await engine.load_weights(weights, probes=())
    requests = make_batch(8, max_new_tokens=40, temperature=temperature)
    done = await generate(engine, requests)
    differences = []
    for request in requests:
        generated = done[request.response_id]
        reference = reference_logprobs(
            model, request.prompt_tokens + generated.token_ids, temperature
        )
        differences.append(
            (reference[len(request.prompt_tokens) - 1 :] - torch.tensor(generated.logprobs)).abs()
        )
    assert torch.cat(differences).mean() < bound


async def test_nucleus_logprobs_are_renormalised(engine: VllmEngine) -> None:
    done = await generate(engine, make_batch(8, max_new_tokens=40, top_p=0.05))
    assert max(max(generated.logprobs) for generated in done.values()) == 0.0


async def test_greedy_repeats_itself(engine: VllmEngine) -> None:
    first, second = [await generate(engine, [make_request(temperature=0.0)]) for _ in range(2)]
    assert first["0/0:0"].token_ids == second["0/0:0"].token_ids


async def test_abort_brings_partial_responses_back_once(engine: VllmEngine) -> None:
    requests = make_batch(4, max_new_tokens=230, prompt_tokens=(9, 8, 7))
    await engine.submit(requests)
    first = [
        generated for generated in await engine.collect(0.05) if generated.finish_reason == "stop"
    ]
    await engine.abort([request.response_id for request in requests] + ["9/9:9"])
    await engine.abort([request.response_id for request in requests])
    rest = await engine.collect(0.05)
    assert sorted(generated.response_id for generated in first + rest) == sorted(
        request.response_id for request in requests
    )
    partial = [generated for generated in rest if generated.finish_reason == "aborted"]
    assert partial
    assert all(len(generated.token_ids) == len(generated.logprobs) < 230 for generated in partial)
    assert (await engine.stats()).progress == {}


async def test_a_request_aborted_before_its_first_step_comes_back_empty(engine: VllmEngine) -> None:
    def submit_and_abort(core: VllmCore) -> tuple[int, ...]:
        core.add([make_request()])
        return core.abort(["0/0:0"])[0].token_ids

    assert await engine._thread.call("test", submit_and_abort, 10) == ()


async def test_kept_tokens_are_continued_greedily_as_if_never_interrupted(
    engine: VllmEngine, versions: Versions
) -> None:
    await engine.load_weights(versions[1][0], probes=())
    request = make_request("0/1", temperature=0.0, max_new_tokens=16)
    whole = (await generate(engine, [request]))["0/1:0"]
    kept = 6
    resumed_request = replace(
        request,
        kept_tokens=whole.token_ids[:kept],
        kept_logprobs=whole.logprobs[:kept],
        kept_versions=(VersionSpan(version=1, num_tokens=kept),),
    )
    await engine.load_weights(replace(versions[1][0], version=7), probes=())
    resumed = (await generate(engine, [resumed_request]))["0/1:0"]
    assert resumed.token_ids == whole.token_ids
    assert resumed.logprobs[:kept] == whole.logprobs[:kept]
    assert resumed.logprobs == pytest.approx(whole.logprobs, abs=0.2)
    rest = len(whole.token_ids) - kept
    assert resumed.versions == (
        VersionSpan(version=1, num_tokens=kept),
        VersionSpan(version=7, num_tokens=rest),
    )


async def test_a_migrated_response_is_what_it_would_have_been(
    engine: VllmEngine, versions: Versions
) -> None:
    await engine.load_weights(versions[1][0], probes=())
    request = make_request("0/1", temperature=0.0, max_new_tokens=24)

    def interrupt(core: VllmCore) -> tuple[EngineStats, Generated]:
        core.add([request])
        for _ in range(8):
            core.step()
        return core.stats(), core.abort([request.response_id])[0]

    whole = (await generate(engine, [request]))["0/1:0"]
    stats, partial = await engine._thread.call("test", interrupt, 10)
    assert stats.progress == {"0/1:0": len(partial.token_ids)}
    assert 0 < len(partial.token_ids) < len(whole.token_ids)
    migration = Migration()
    migration.leave(
        ScaleDown(engines=("engine-a",), learners=("learner-0",)), [request.response_id]
    )
    migration.part([partial])
    joined = (await generate(engine, [migration.resume(request)]))["0/1:0"]
    assert joined.token_ids == whole.token_ids
    assert joined.logprobs[: len(partial.token_ids)] == partial.logprobs
    assert joined.logprobs == pytest.approx(whole.logprobs, abs=0.2)
    assert joined.versions == whole.versions


async def test_loading_changes_what_is_sampled_and_attested(
    engine: VllmEngine, versions: Versions
) -> None:
    seen = {}
    for version, (weights, model) in versions.items():
        attestation = await engine.load_weights(weights, probes=PROBES)
        assert attestation.version == version
        assert dict(attestation.fingerprints) == fingerprints(weights.path)
        for probe, logprobs in zip(PROBES, attestation.probe_logprobs, strict=True):
            assert logprobs == pytest.approx(reference_logprobs(model, probe).tolist(), abs=0.3)
        seen[version] = (attestation, await generate(engine, make_batch(4)))
    changed = {
        name
        for name, print_1 in seen[1][0].fingerprints.items()
        if print_1 != seen[2][0].fingerprints[name]
    }
    assert changed == {
        name for name in seen[1][0].fingerprints if not name.endswith("norm.weight")
    }  # norms start as ones
    assert seen[1][0].probe_logprobs != seen[2][0].probe_logprobs
    assert {generated.token_ids for generated in seen[1][1].values()} != {
        generated.token_ids for generated in seen[2][1].values()
    }


async def test_attestation_names_a_tensor_that_was_tampered_with(
    engine: VllmEngine, versions: Versions
) -> None:
    def tamper(core: VllmCore) -> None:
        layer = (
            core._engine.model_executor.driver_worker.worker.model_runner.get_model().model.layers[
                1
            ]
        )
        layer.input_layernorm.weight.data[3] += 1
        double(layer.mlp.gate_up_proj)

    def held(core: VllmCore) -> dict[str, int]:
        (prints,) = core._engine.collective_rpc("fingerprints_held", args=(versions[1][0].path, 1))
        return prints

    await engine.load_weights(versions[1][0], probes=())
    await engine._thread.call("tamper", tamper, 10)
    prints, right = await engine._thread.call("held", held, 10), fingerprints(versions[1][0].path)
    wrong = {name for name in right if prints[name] != right[name]}
    layer = "model.layers.1."
    assert wrong == {
        f"{layer}input_layernorm.weight",
        f"{layer}mlp.gate_proj.weight",
        f"{layer}mlp.up_proj.weight",
    }


async def test_loading_drops_what_is_left(engine: VllmEngine, versions: Versions) -> None:
    """One response has finished, one runs, nobody has collected: neither comes back."""
    long = make_request(max_new_tokens=230, prompt_tokens=(9, 8, 7))
    await engine.submit([make_request("0/1", max_new_tokens=1), long])
    while len((await engine.stats()).progress) > 1:
        await asyncio.sleep(0)
    await engine.load_weights(versions[1][0], probes=())
    assert (await engine.stats()).progress == {}
    again = await generate(engine, [make_request(max_new_tokens=3)])
    assert [span.version for span in again["0/0:0"].versions] == [versions[1][0].version]


async def test_loading_refuses_a_file_of_another_model(
    engine: VllmEngine, versions: Versions, tmp_path: Path
) -> None:
    before = await engine.load_weights(versions[1][0], probes=PROBES)
    save_file(
        {"model.norm.weight": torch.ones(128, dtype=torch.bfloat16)}, tmp_path / "part.safetensors"
    )
    with pytest.raises(ValueError, match="lacks"):
        await engine.load_weights(
            WeightsRef(version=9, path=str(tmp_path / "part.safetensors"), digest=""),
            probes=(),
        )
    after = await engine.load_weights(versions[1][0], probes=PROBES)
    assert before == after


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"max_new_tokens": 250}, "max_model_len 256"),
        ({"prompt_tokens": ()}, "max_model_len 256"),
        ({"prompt_tokens": (1, 128)}, "token ids"),
        ({"kept_tokens": (1,)}, "kept tokens need"),
        ({"kept_tokens": (1,) * 12}, "exceed the kept"),
        ({"prompt_id": "0/0"}, "once at a time"),
    ],
)
async def test_an_unfit_request_is_refused_with_its_whole_batch(
    engine: VllmEngine, changes: dict[str, object], rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        await engine.submit([make_request("0/0"), make_request(**({"prompt_id": "0/1"} | changes))])
    assert (await engine.stats()).progress == {}


async def test_collect_returns_empty_after_its_wait(engine: VllmEngine) -> None:
    assert await engine.collect(wait_s=0.01) == []


async def test_stats_count(engine: VllmEngine) -> None:
    before = await engine.stats()
    done = await generate(engine, make_batch(4))
    after = await engine.stats()
    assert after.tokens_generated - before.tokens_generated == sum(
        len(generated.token_ids) for generated in done.values()
    )
    assert after.engine == "engine-a"
    assert after.kv_tokens * KV_BYTES_PER_TOKEN == pytest.approx(0.05 * 2**30, rel=0.05)
    assert after.progress == {}


async def test_same_seed_and_order_give_the_same_tokens_in_a_used_and_a_fresh_engine(
    engine: VllmEngine, start_engine: Callable[[str], VllmEngine], versions: Versions
) -> None:
    async def reload_and_generate(
        engine: VllmEngine,
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        await engine.load_weights(versions[2][0], probes=PROBES)
        done = await generate(engine, make_batch(24, max_new_tokens=40))
        return [(generated.token_ids, generated.logprobs) for _, generated in sorted(done.items())]

    await generate(engine, make_batch(9, max_new_tokens=33))
    used = await reload_and_generate(engine)
    assert await reload_and_generate(engine) == used
    fresh_engine = start_engine("engine-b")
    assert await reload_and_generate(fresh_engine) == used


@pytest.mark.parametrize("is_first", [True, False])
async def test_weights_in_mapped_memory_are_loaded_as_those_in_a_file(
    start_engine: Callable[[str], VllmEngine], versions: Versions, is_first: bool
) -> None:
    """As the first version, which vLLM loads by its own rules, and as a later one."""
    engine = start_engine("mapped")
    if not is_first:
        await engine.load_weights(versions[1][0], probes=())
    weights, model = versions[2]
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    slots = slots_of(shapes)
    values = torch.zeros(slots[-1].end, dtype=torch.bfloat16)
    for slot in slots:
        slot.of(values).copy_(model.get_parameter(slot.name))
    held = FlatWeights(values=values, slots=slots)
    offered = SharedMemoryTransport(30.0).offer(held, 2, "", ("mapped/0",))
    mapped = await engine.load_weights(offered, probes=PROBES)
    assert dict(mapped.fingerprints) == fingerprints(weights.path)
    answers = await generate(engine, make_batch(2))
    assert replace(await engine.load_weights(weights, probes=PROBES), drained_s=0.0) == mapped
    again = await generate(engine, make_batch(2))
    assert [answers[name].token_ids for name in answers] == [
        again[name].token_ids for name in answers
    ]


@gpus_only
async def test_a_sleeping_engine_gives_its_memory_back_and_wakes_as_it_was(
    start_engine: Callable[..., VllmEngine], versions: Versions
) -> None:
    engine = start_engine("engine-s", sleep_mode=True)
    attested = await engine.load_weights(versions[1][0], PROBES)
    before = await generate(engine, make_batch(4))
    awake_bytes = torch.cuda.mem_get_info()[0]
    await engine.sleep()
    assert torch.cuda.mem_get_info()[0] - awake_bytes > 0.9 * 0.05 * 2**30, "of its KV cache"
    assert await engine.load_weights(versions[1][0], PROBES) == attested
    after = await generate(engine, make_batch(4))
    assert {name: response.token_ids for name, response in after.items()} == {
        name: response.token_ids for name, response in before.items()
    }


@cores_only
async def test_a_resting_engine_wakes_for_the_next_request_or_load_and_only_then(
    start_engine: Callable[..., VllmEngine], versions: Versions
) -> None:
    """As far as it goes without a GPU: the CPU backend cannot sleep, so that its two methods are
    told of only."""
    engine = start_engine("engine-s", sleep_mode=True)
    told: list[str] = []

    def rig(core: VllmCore) -> None:
        core._engine.sleep = lambda level: told.append(f"sleep {level}")
        core._engine.wake_up = lambda: told.append("wake")

    await engine._thread.call("rig", rig, 10)
    await engine.sleep()
    await engine.sleep()
    assert told == ["sleep 1"]
    await generate(engine, make_batch(2))
    await generate(engine, make_batch(2))
    await engine.sleep()
    await engine.load_weights(versions[1][0], probes=())
    await engine.load_weights(versions[2][0], probes=())
    assert told == ["sleep 1", "wake"] * 2
    await engine.submit([make_request(max_new_tokens=230, prompt_tokens=(9, 8, 7))])
    await engine.sleep()
    assert told == ["sleep 1", "wake"] * 2, "an engine at work goes on with it"
    await engine.abort(["0/0:0"])
    await collect_all(engine, 1)


async def test_a_dead_stepping_thread_is_engine_lost_with_the_cause(
    start_engine: Callable[[str], VllmEngine],
) -> None:
    engine = start_engine("engine-c")

    def explode() -> None:
        raise RuntimeError("the device fell off")

    await engine._thread.call("rig", lambda core: setattr(core._engine, "step", explode), 10)
    await engine.submit([make_request()])
    with pytest.raises(EngineLost, match=r"(?s)engine-c.*the device fell off.*Traceback"):
        await engine.collect(wait_s=10)
    with pytest.raises(EngineLost, match="the device fell off"):
        await engine.submit([make_request()])


async def test_an_engine_in_fp32_holds_the_same_numbers(
    start_engine: Callable[..., VllmEngine], versions: Versions
) -> None:
    """Loaded by vLLM's own rules first, then directly, and read back from repacked weights."""
    engine = start_engine("engine-f", dtype="float32")
    for version in (1, 2, 1):
        weights, model = versions[version]
        attestation = await engine.load_weights(weights, probes=PROBES)
        assert dict(attestation.fingerprints) == fingerprints(weights.path)
        for probe, logprobs in zip(PROBES, attestation.probe_logprobs, strict=True):
            wanted = reference_logprobs(copy.deepcopy(model).float(), probe).tolist()
            assert logprobs == pytest.approx(wanted, abs=10 * FLOAT32_ATOL)
