"""Which architectures go through learner, engine and sync gate: tiny models with random weights.

    python -m research.benchmarks.architectures               # about ten seconds each, on CPU cores
    python -m research.benchmarks.architectures --only llama gemma3_text

For each: an engine starts from one set of weights, learners from two others; they publish one after
the other, the engine loads, and the gate compares tensors and probes. Two, because an engine loads
the first version in another way than those that follow. Prints the rows of the table of
docs/models.md. That packed training equals an ordinary forward and backward is
tests/unit/test_architectures.py.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from artifacts.models.character_tokenizer import VOCABULARY_SIZE, character_tokenizer
from artifacts.records import WeightsRef
from research.benchmarks.tiny_architectures import ARCHITECTURES, save_tiny
from tasks.engines.base import Attestation
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.architecture import check_architecture
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.trainer import LearnerRank
from tasks.learner.weight_check import WeightCheckFailed, check_weights

TOLERANCE_NATS = 0.15
PROBES = (tuple(range(5, 45)), tuple(range(40, 8, -1)), (9, 9, 9, 12, 12, 30))
ENGINE = VllmEngineConfig(
    max_num_seqs=4,
    max_model_len=128,
    max_batched_tokens=256,
    kv_cache_gb=0.02,
    gpu_memory_utilization=0.1,
)


async def through_engine_and_gate(
    models: Sequence[Path], engine_model: Path, folder: Path
) -> list[float]:
    """The gate's mean difference of log-probabilities for each of these models, which a learner
    publishes and the engine loads one after the other. Raises WeightCheckFailed or ValueError."""
    # first: vLLM's Transformers backend changes the classes of models that learners compute with
    published = [_publish(model, version, folder) for version, model in enumerate(models, 1)]
    engine = VllmEngine(
        config=ENGINE, model_path=str(engine_model), name="engine", cpu_ids=None, seed=1
    )
    try:
        engine.start()
        return [await _difference(engine, *version) for version in published]
    finally:
        engine.close()


def _publish(model: Path, version: int, folder: Path) -> tuple[WeightsRef, Attestation]:
    """What a learner of this model writes, and what it attests."""
    learner = LearnerRank(LearnerConfig(), str(model), 0, 1)
    weights = learner.export_weights(version, str(folder / f"{version}.safetensors"))
    assert weights is not None
    return weights, Attestation(
        version=version, fingerprints=learner.fingerprints(), probe_logprobs=learner.probe(PROBES)
    )


async def _difference(engine: VllmEngine, weights: WeightsRef, expected: Attestation) -> float:
    attested = await engine.load_weights(weights, probes=PROBES)
    difference = check_weights("engine", attested, expected, TOLERANCE_NATS)
    assert difference is not None, "vLLM computes log-probabilities"
    return difference


def save_models(name: str, folder: Path, num_models: int) -> list[Path]:
    """Models of an architecture, each with weights of its own."""
    paths = [folder / f"model-{seed}" for seed in range(num_models)]
    for seed, path in enumerate(paths):
        save_tiny(name, path, VOCABULARY_SIZE, torch.bfloat16, seed)
        character_tokenizer().save_pretrained(path)
    return paths


def try_out(name: str, folder: Path) -> str:
    """What the table says of an architecture."""
    engine_model, *models = save_models(name, folder, 3)
    try:
        check_architecture(engine_model)
    except ValueError as error:
        return f"refused: {str(error).partition('it has ')[2].partition(';')[0]}"
    try:
        differences = asyncio.run(through_engine_and_gate(models, engine_model, folder))
    except (WeightCheckFailed, ValueError, RuntimeError) as error:
        return f"fails: {str(error).splitlines()[0][:300]}"
    told = " and ".join(f"{difference:.3f}" for difference in differences)
    return f"passes, probes differ by {told} nats"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    for name in parser.parse_args(arguments).only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | {try_out(name, Path(folder))} |", flush=True)


if __name__ == "__main__":
    main()
