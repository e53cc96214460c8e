"""Which architectures go through learner, engine and sync gate: tiny models with random weights.

    python -m benchmarks.architectures                   # about ten seconds each, on CPU cores
    python -m benchmarks.architectures --only llama gemma3_text

For each: a learner starts from one set of weights, an engine from another; the learner publishes,
the engine loads, and the gate compares tensors and probes. Prints the rows of the table of
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
from benchmarks.tiny_architectures import ARCHITECTURES, save_tiny
from tasks.engines.base import Attestation
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.architecture import check_architecture
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.trainer import LearnerRank
from tasks.learner.weight_sync import GateFailed, check_gate

TOLERANCE_NATS = 0.15
PROBES = (tuple(range(5, 45)), tuple(range(40, 8, -1)), (9, 9, 9, 12, 12, 30))
ENGINE = VllmEngineConfig(
    max_num_seqs=4, max_model_len=128, max_batched_tokens=256, kv_cache_gb=0.02
)


async def through_engine_and_gate(model: Path, engine_model: Path, weights: Path) -> float:
    """The gate's mean difference of log-probabilities. Raises GateFailed or ValueError."""
    learner = LearnerRank(LearnerConfig(), str(model), 0, 1)
    published = learner.export_weights(1, str(weights))
    assert published is not None
    expected = Attestation(
        version=1, fingerprints=learner.fingerprints(), probe_logprobs=learner.probe(PROBES)
    )
    engine = VllmEngine(
        config=ENGINE, model_path=str(engine_model), name="engine", cpu_ids=None, seed=1
    )
    try:
        engine.start()
        attested = await engine.load_weights(published, probes=PROBES)
    finally:
        engine.close()
    difference = check_gate("engine", attested, expected, TOLERANCE_NATS)
    assert difference is not None, "vLLM computes log-probabilities"
    return difference


def try_out(name: str, folder: Path) -> str:
    """What the table says of an architecture."""
    model, other = folder / "learner", folder / "engine"
    for path, seed in ((model, 0), (other, 1)):
        save_tiny(name, path, VOCABULARY_SIZE, torch.bfloat16, seed)
        character_tokenizer().save_pretrained(path)
    try:
        check_architecture(model)
    except ValueError as error:
        return f"refused: {str(error).partition('it has ')[2].partition(';')[0]}"
    try:
        difference = asyncio.run(
            through_engine_and_gate(model, other, folder / "weights.safetensors")
        )
    except (GateFailed, ValueError, RuntimeError) as error:
        return f"fails: {str(error).splitlines()[0][:300]}"
    return f"passes, probes differ by {difference:.3f} nats"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    for name in parser.parse_args(arguments).only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | {try_out(name, Path(folder))} |", flush=True)


if __name__ == "__main__":
    main()
