"""What router replay does to the distance between engine and learner, on a tiny mixture.

    python -m research.benchmarks.router_replay       # a minute on CPU cores

A Qwen3-MoE of random weights (8 experts, 2 of them a token, 4 layers) generates; a learner of the
same weights scores the responses with its own routes and with the engine's, in bf16 and in fp32.
Prints a row of the table in research/results/parts.md for each.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from artifacts.models.character_tokenizer import VOCABULARY_SIZE, character_tokenizer
from artifacts.records import Generated, Request
from research.benchmarks.tiny_architectures import save_tiny
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.learner_config import ComputeDtype
from tasks.learner.log_ratios import k3
from tasks.learner.packing import Sample, pack_samples
from tasks.learner.policy import load_policy
from tasks.learner.ranks import Ranks
from tasks.learner.rows import DeviceRow, row_of
from tasks.learner.samples import routes_of

MIXTURE: Mapping[str, Any] = {  # Any: values of a configuration
    "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
NUM_PROMPTS, NUM_RESPONSES, PROMPT_TOKENS, RESPONSE_TOKENS = 8, 8, 24, 64
DTYPES: Mapping[str, ComputeDtype] = {"bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far the learner is from the engine, with one kind of routes."""

    k3: float  # estimate of KL(engine || learner) a token
    mean: float  # absolute difference of log-probabilities
    largest: float


async def generated(model: Path, dtype: str) -> list[tuple[Request, Generated]]:
    """Responses of the engine, with their routes."""
    config = VllmEngineConfig.model_validate(
        {
            "dtype": dtype, "max_num_seqs": 32, "max_model_len": 128, "max_batched_tokens": 512,
            "kv_cache_gb": 0.05, "records_routes": True,
        }
    )  # fmt: skip
    rng = np.random.default_rng(0)
    prompts = rng.integers(5, VOCABULARY_SIZE, (NUM_PROMPTS, PROMPT_TOKENS)).tolist()
    asked = {
        (number, index): Request(
            prompt_id=f"0/{number}", index=index, prompt_tokens=tuple(prompt), temperature=1.0,
            max_new_tokens=RESPONSE_TOKENS, top_p=1.0, seed=number * NUM_RESPONSES + index,
        )
        for number, prompt in enumerate(prompts)
        for index in range(NUM_RESPONSES)
    }  # fmt: skip
    engine = VllmEngine(config=config, model_path=str(model), name="engine", cpu_ids=None, seed=1)
    try:
        engine.start()
        await engine.submit([*asked.values()])
        found: list[tuple[Request, Generated]] = []
        while len(found) < len(asked):
            ended = [each for each in await engine.collect(30.0) if isinstance(each, Generated)]
            found += [(asked[int(each.prompt_id[2:]), each.index], each) for each in ended]
        return found
    finally:
        engine.close()


def sample_of(request: Request, response: Generated) -> Sample:
    return Sample(
        prompt=np.array(request.prompt_tokens),
        response=np.array(response.token_ids),
        sampled=response.sampled,
        sampling_logp=np.array(response.logprobs, dtype=np.float32),
        advantages=(1.0,),
        reward=1.0,
        weight=1.0,
        routes=routes_of(response.routes),
    )


def row_of_responses(responses: Sequence[tuple[Request, Generated]]) -> DeviceRow:
    """The responses as one row, with their routes."""
    return row_of(pack_samples([sample_of(*each) for each in responses]), torch.device("cpu"))


def distance(row: DeviceRow, logp: Tensor) -> Distance:
    sampling = row.columns.sampling_logp
    differences = (logp - sampling).abs()
    return Distance(
        k3=float(k3(sampling, logp).double().mean()),
        mean=float(differences.mean()),
        largest=float(differences.max()),
    )


def measured(model: Path, dtype: str) -> str:
    """One row of the table."""
    row = row_of_responses(asyncio.run(generated(model, dtype)))
    policy = load_policy(str(model), DTYPES[dtype], Ranks(0, 1, torch.device("cpu")))
    assert row.routes is not None
    own = distance(row, policy.score(replace(row, routes=None)).logp)
    chosen = policy.routers.chosen.sort(-1).values
    recorded = row.routes.long().view(chosen.shape).sort(-1).values
    moved = (chosen != recorded).any(-1)
    replayed = distance(row, policy.score(row).logp)
    return (
        f"| {dtype} | {float(moved.any(-1).float().mean()):.2%} | {own.k3:.2e} | {replayed.k3:.2e}"
        f" | {own.k3 / replayed.k3:.0f} | {own.mean:.4f}, {own.largest:.2f} |"
        f" {replayed.mean:.4f}, {replayed.largest:.2f} | {row.routes.shape[1]} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args(arguments)
    for dtype in given.only:
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                path = save_tiny(
                    "qwen3_moe", Path(folder), VOCABULARY_SIZE, torch.bfloat16, seed, MIXTURE
                )
                character_tokenizer().save_pretrained(path)
                print(measured(path, dtype), flush=True)


if __name__ == "__main__":
    main()
