"""Draws that belong to the response: what vLLM must be like for them, their noise, their tokens,
also where two ranks make an engine, whose weights are compared beside.

The engine runs in float32, so that a row's logits hardly depend on the batch that it is computed in
and equal noise gives equal tokens.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from listeners import listeners
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from artifacts.records import Generated, Request, WeightsRef
from artifacts.weights import digest, fingerprints, read_weights
from tasks.engines.vllm.core import VllmCore
from tasks.engines.vllm.engine import VllmEngine
from tasks.engines.vllm.llm_engine import agreed
from tasks.engines.vllm.worker_patches import SEED, ResponseDraws, own_draws, row_seeds
from tasks.rounds.migration import Migration
from tasks.scheduling.stream_training import ScaleDown
from tests.engine.conftest import NUM_GPUS, cores_only, generate, make_batch

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]

PROMPT = tuple(2 + (7 * place) % 90 for place in range(100))
BATCH = make_batch(12, prompt_tokens=PROMPT, max_new_tokens=60)

PROBES = ((5, 9, 30, 41, 7, 22), (3, 4, 5, 6))
Versions = dict[int, tuple[WeightsRef, LlamaForCausalLM]]
Noise = dict[tuple[int, int], set[int]]  # row seeds, by (seed of the response, position)


async def watch(engine: VllmEngine) -> Noise:
    """What the engine draws with from now on; on a GPU the second runner's kernel has its own."""
    noise: Noise = {}
    if NUM_GPUS:
        return noise

    def rig(core: VllmCore) -> None:
        runner = core._engine.model_executor.driver_worker.worker.model_runner
        draws = runner.sampler.topk_topp_sampler.forward
        drawn = draws._row_seeds

        def record(num_rows: int) -> Any:  # Any: an array of int64
            seeds = drawn(num_rows)
            for name, seed in zip(runner.input_batch.req_ids, seeds.tolist(), strict=True):
                state = runner.requests[name]
                key = (state.sampling_params.extra_args[SEED], state.num_tokens)
                noise.setdefault(key, set()).add(seed)
            return seeds

        draws._row_seeds = record

    await engine._thread.call("watch", rig, 10)
    return noise


def check_noise(noise: Noise, responses: dict[str, Generated]) -> None:
    """Every token of every response was drawn with the noise of its seed and position."""
    for request in BATCH if NUM_GPUS == 0 else ():
        for place in range(len(responses[request.response_id].token_ids)):
            position = len(PROMPT) + place
            (expected,) = row_seeds(
                np.array([request.seed], np.uint64), np.array([position], np.uint64)
            )
            assert noise[request.seed, position] == {int(expected)}


def tokens_of(responses: dict[str, Generated]) -> dict[str, tuple[int, ...]]:
    return {name: response.token_ids for name, response in responses.items()}


@pytest.fixture(scope="module")
def start(start_engine: Callable[..., VllmEngine]) -> Callable[..., VllmEngine]:
    return lambda name, **changes: start_engine(name, dtype="float32", **changes)


@pytest.fixture(scope="module")
def engine(start: Callable[..., VllmEngine]) -> VllmEngine:
    return start("draws-a")


@pytest.fixture(scope="module")
def alone(engine: VllmEngine) -> dict[str, Generated]:
    """Each response of the batch, drawn with nothing beside it."""

    async def draw() -> dict[str, Generated]:
        responses: dict[str, Generated] = {}
        for request in BATCH:
            responses |= await generate(engine, [request])
        return responses

    return asyncio.run(draw())


@pytest.fixture(scope="module")
def halves(engine: VllmEngine, alone: dict[str, Generated]) -> list[Request]:
    """The batch again, each response with the first tokens that it had when it was aborted."""

    def interrupt(core: VllmCore) -> list[Generated]:
        core.add(BATCH)
        done = [response for _ in range(9) for response in core.step()]
        return done + core.abort([request.response_id for request in BATCH])

    partial = asyncio.run(_call(engine, interrupt))
    migration = Migration()
    migration.leave(ScaleDown(engines=("draws-a",), learners=("learner-0",)), tokens_of(alone))
    migration.part(response for response in partial if response.finish_reason == "aborted")
    resumed = [migration.resume(request) for request in BATCH]
    return [request for request in resumed if request.kept_tokens]


async def _call(engine: VllmEngine, run: Callable[[VllmCore], Any]) -> Any:
    return await engine._thread.call("test", run, 60)


async def test_responses_differ_by_their_seed_alone(alone: dict[str, Generated]) -> None:
    """One prompt, so that without seeds of their own all would be one response."""
    assert len(set(tokens_of(alone).values())) == len(BATCH)


async def test_a_batch_in_any_order_draws_what_each_response_draws_alone(
    engine: VllmEngine,
    alone: dict[str, Generated],
) -> None:
    noise = await watch(engine)
    for batch in (BATCH, BATCH[::-1], BATCH[3:9]):
        responses = await generate(engine, batch)
        assert tokens_of(responses).items() <= tokens_of(alone).items()
    check_noise(noise, alone)


async def test_continued_responses_draw_on_where_they_were_stopped(
    engine: VllmEngine,
    alone: dict[str, Generated],
    halves: list[Request],
) -> None:
    assert len(halves) > 6
    responses = await generate(engine, halves)
    assert tokens_of(responses).items() <= tokens_of(alone).items()


async def test_another_engine_that_chunks_prefills_draws_and_continues_alike(
    start: Callable[..., VllmEngine],
    alone: dict[str, Generated],
    halves: list[Request],
) -> None:
    chunking = start("draws-b", max_batched_tokens=32, prefix_caching=False)
    noise = await watch(chunking)
    assert tokens_of(await generate(chunking, BATCH)) == tokens_of(alone)
    check_noise(noise, alone)
    responses = await generate(chunking, halves)
    assert tokens_of(responses).items() <= tokens_of(alone).items()
    check_noise(noise, alone)


async def test_preempted_responses_draw_alike(
    start: Callable[..., VllmEngine],
    alone: dict[str, Generated],
) -> None:
    cramped = start("draws-c", kv_cache_gb=0.0006)
    noise = await watch(cramped)
    assert tokens_of(await generate(cramped, BATCH)) == tokens_of(alone)
    assert (await cramped.stats()).num_preemptions > 0
    check_noise(noise, alone)


@pytest.fixture(scope="module")
def pair(start: Callable[..., VllmEngine], alone: dict[str, Generated]) -> VllmEngine:
    """Two ranks, each a process, which take long to start. After `alone`, whose engine they end."""
    if NUM_GPUS == 1:
        pytest.skip("two ranks need two GPUs")
    return start("draws-d", tensor_parallel_size=2)


async def test_tensor_parallel_ranks_draw_alike(
    pair: VllmEngine,
    alone: dict[str, Generated],
) -> None:
    """Ranks that drew different tokens would compute nonsense from the second token on."""
    assert tokens_of(await generate(pair, BATCH)) == tokens_of(alone)


async def test_a_tensor_parallel_shard_that_was_tampered_with_is_named(
    pair: VllmEngine,
    versions: Versions,
    tmp_path: Path,
) -> None:
    """The second rank's embedding and projections are spoilt. The weights are what the engine's
    type makes of them."""
    refs: dict[int, WeightsRef] = {}
    for version, (ref, _) in versions.items():
        path = tmp_path / f"{version}.safetensors"
        save_file({name: tensor.float() for name, tensor in read_weights(ref.path)}, path)
        refs[version] = replace(ref, path=str(path), digest=digest(read_weights(path)))

    def spoil(worker: Any) -> None:  # Any: vLLM's worker
        layer = worker.model_runner.get_model().model.layers[1]
        if worker.rank == 1:
            worker.model_runner.get_model().model.embed_tokens.weight.data[3] += 1
            for module in (layer.mlp.down_proj, layer.self_attn.qkv_proj):
                if not hasattr(module, "cpu_linear"):
                    module.weight.data *= 2
                    continue
                good = module.cpu_linear
                module.cpu_linear = lambda x, weight, bias, good=good: good(x, weight, bias) * 2

    def held(core: VllmCore) -> dict[str, int]:
        core._engine.collective_rpc(spoil)
        found = core._engine.collective_rpc("fingerprints_held", args=(refs[1].path, 1))
        return agreed(found)

    right = fingerprints(refs[1].path)
    for version in (1, 2, 1):
        attested = await pair.load_weights(refs[version], probes=PROBES)
        assert dict(attested.fingerprints) == fingerprints(refs[version].path)
    prints = await pair._thread.call("held", held, 60)
    wrong = {name for name in right if prints[name] != right[name]}
    layer = "model.layers.1."
    projections = {f"{layer}self_attn.{name}_proj.weight" for name in "qkv"}
    assert wrong == {"model.embed_tokens.weight", f"{layer}mlp.down_proj.weight", *projections}
    assert {address for address, _ in listeners(os.getpid())} == {"127.0.0.1"}


# --- exact samples ---


def draws_over(seeds: list[int], positions: list[int]) -> ResponseDraws:
    """The hook over a batch of such rows, without an engine."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    rows = {
        str(row): SimpleNamespace(
            sampling_params=SimpleNamespace(extra_args={SEED: seed}, temperature=1.0)
        )
        for row, seed in enumerate(seeds)
    }
    batch = SimpleNamespace(req_ids=list(rows), num_tokens_no_spec=np.array(positions))
    return ResponseDraws(SimpleNamespace(input_batch=batch, requests=rows))


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


NUM_ROWS = 40_000
ROWS = {
    "one response, all its positions": ([77] * NUM_ROWS, list(range(NUM_ROWS))),
    "one position of many responses": (list(range(NUM_ROWS)), [12] * NUM_ROWS),
}


@cores_only
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_draws_are_distributed_as_the_processed_logits_say(
    rows: tuple[list[int], list[int]],
) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -2.0])
    tokens, logprobs = draws_over(*rows)(logits.repeat(NUM_ROWS, 1), {}, None, None)
    probabilities = logits.softmax(-1)
    torch.testing.assert_close(logprobs[5], probabilities.log())
    counts = torch.bincount(tokens, minlength=8).float()
    assert chi_square(counts, NUM_ROWS * probabilities) < 24.3  # 0.1 % of exact samples exceed it

    neighbours = torch.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64).float()
    expected = (NUM_ROWS - 1) * torch.outer(probabilities, probabilities).flatten()
    assert chi_square(neighbours, expected) < 103.4  # 63 degrees of freedom, 0.1 %


@cores_only
def test_draws_over_a_large_vocabulary_are_exact_in_the_tail_too() -> None:
    num_rows, num_tokens = 4_000, 49_152
    logits = torch.linspace(4.0, -4.0, num_tokens)
    draws = draws_over([5] * num_rows, list(range(num_rows)))
    tokens, _ = draws(logits.repeat(num_rows, 1), {}, None, None)
    edges = torch.tensor([0, 64, 512, 4_096, 8_192, 16_384, 32_768, num_tokens])
    probabilities = torch.stack(
        [part.sum() for part in logits.softmax(-1).split((edges[1:] - edges[:-1]).tolist())]
    )
    counts = torch.histogram(tokens.float(), edges.float()).hist
    assert chi_square(counts, num_rows * probabilities) < 22.5  # 6 degrees of freedom, 0.1 %


@cores_only
def test_a_nucleus_is_kept_and_its_log_probabilities_are_renormalised() -> None:
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).repeat(500, 1)
    draws = draws_over([3] * 500, list(range(500)))
    tokens, logprobs = draws(logits, {}, None, torch.full((500,), 0.8))
    assert set(tokens.tolist()) == {0, 1}
    expected = torch.tensor([3.0, 2.0]).log_softmax(-1)
    torch.testing.assert_close(logprobs[0, :2], expected)


# --- what vLLM must be like; each failure names what to look at after an upgrade ---


def test_vllm_still_chooses_tokens_where_the_hook_sits() -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.sample.sampler import Sampler

    names = list(inspect.signature(TopKTopPSampler.forward_cpu).parameters)
    assert names == ["self", "logits", "generators", "k", "p"], (
        "TopKTopPSampler's arguments changed: adapt ResponseDraws.__call__"
    )
    assert "self.topk_topp_sampler(" in inspect.getsource(Sampler.sample), (
        "Sampler.sample no longer asks topk_topp_sampler: find where tokens are chosen now"
    )
    sampler = TopKTopPSampler("processed_logprobs")
    sampler.forward = lambda *arguments: arguments
    assert sampler(1, 2, 3, 4) == (1, 2, 3, 4), (
        "TopKTopPSampler.forward is no longer looked up on the instance: the hook is not called"
    )
    source = inspect.getsource(TopKTopPSampler.forward_cpu)
    for line in (
        "apply_top_k_top_p(logits, k, p)",
        "logits.log_softmax(dim=-1, dtype=torch.float32)",
        "torch.ops._C.fused_gumbel_argmax(logits_f32, seeds)",
    ):
        assert line in source, (
            f"forward_cpu no longer does {line}: compare it with ResponseDraws.__call__"
        )


@cores_only
def test_vllms_kernel_still_adds_noise_of_the_rows_seed_and_the_token_alone() -> None:
    draws = draws_over([1] * 64, list(range(64)))
    logits = torch.randn(64, 1_000, generator=torch.Generator().manual_seed(0))
    seeds = torch.arange(64) << 40
    tokens, order = draws._choose(logits, seeds), torch.randperm(64)
    assert torch.equal(draws._choose(logits[order], seeds[order]), tokens[order]), (
        "fused_gumbel_argmax's noise depends on the row: invariant 12 does not hold"
    )
    single = [int(draws._choose(logits[row : row + 1], seeds[row : row + 1])) for row in range(64)]
    assert single == tokens.tolist(), "fused_gumbel_argmax's noise depends on the batch"
    wider = torch.cat([logits, torch.full((64, 24), -torch.inf)], dim=1)
    assert torch.equal(draws._choose(wider, seeds), tokens), (
        "fused_gumbel_argmax's noise depends on the width of the vocabulary"
    )
    flat = torch.zeros(64, 1_000)
    assert len(set(draws._choose(flat, seeds).tolist())) > 50, (
        "fused_gumbel_argmax ignores the seeds' high bits: mix them into the low ones"
    )


def test_vllms_runner_still_says_which_request_a_row_is_and_how_long_it_is() -> None:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    assert isinstance(inspect.getattr_static(CachedRequestState, "num_tokens"), property)
    assert isinstance(inspect.getattr_static(InputBatch, "req_ids"), property)
    source = inspect.getsource(GPUModelRunner._bookkeeping_sync)
    assert "gen.set_offset(" in source, (
        "the runner no longer rewinds generators: vLLM's own seeds may work on CPUs now"
    )


def test_vllms_second_runner_still_hashes_seed_and_position() -> None:
    """Read in the source: this kernel runs on GPUs alone."""
    from vllm.v1.worker.gpu.sample import gumbel, sampler

    assert {"seed", "pos"} <= set(inspect.signature(gumbel.gumbel_sample).parameters)
    assert "input_batch.positions[input_batch.logits_indices]" in inspect.getsource(
        sampler.Sampler
    ), "the second runner's noise may no longer follow the position in the sequence"
    assert "murmur3_uniform32(seed, pos, keys)" in inspect.getsource(gumbel), (
        "the second runner's noise is no longer a hash of seed, position and token"
    )


# --- which of the two a worker gets ---


class Workers:
    """One vLLM worker, as far as taking over looks at it."""

    def __init__(self, device: str, *, second_runner: bool) -> None:
        self.sampler = SimpleNamespace(forward="vLLM's")
        self._worker = SimpleNamespace(
            vllm_config=SimpleNamespace(use_v2_model_runner=second_runner),
            model_runner=SimpleNamespace(
                device=torch.device(device),
                sampler=SimpleNamespace(topk_topp_sampler=self.sampler),
            ),
        )

    def collective_rpc(self, method: Callable[[Any], bool]) -> list[bool]:
        return [method(self._worker)]


def test_the_second_runner_takes_the_seed_itself() -> None:
    workers = Workers("cuda", second_runner=True)
    assert own_draws(workers)(9) == {"seed": 9}
    assert workers.sampler.forward == "vLLM's"


@cores_only
def test_the_first_runner_gets_the_hook_on_a_cpu_and_is_refused_elsewhere() -> None:
    workers = Workers("cpu", second_runner=False)
    assert own_draws(workers)(9) == {"extra_args": {SEED: 9}}
    assert isinstance(workers.sampler.forward, ResponseDraws)
    with pytest.raises(ValueError, match="install triton"):
        own_draws(Workers("cuda", second_runner=False))


@cores_only
def test_rows_that_are_not_one_a_request_are_refused() -> None:
    with pytest.raises(RuntimeError, match="3 rows of logits and 2 requests"):
        draws_over([1, 2], [5, 5])(torch.zeros(3, 8), {}, None, None)
