"""Which architectures go through learner, engine and weight check: tiny models of random weights.

    python -m research.benchmarks.architectures               # about a minute each, on CPU cores
    python -m research.benchmarks.architectures --only llama mixtral --columns learner adapter
    python -m research.benchmarks.architectures --markdown docs/models.md

learner   packed training beside plain passes of transformers, in fp32 (`learner_checks`)
engine    an engine starts from one set of weights, learners from two others; they publish one
          after the other, the engine loads, and the weight check compares tensors and probes. Two,
          because an engine loads the first version in another way than those that follow
adapter   a random one, of attention alone beside experts, of the decoder beside a tower, in the
          learner and through the engine
pictures  as engine, with a tower that is trained and a probe that shows a picture
experts   two ranks share them; the engine's routes are those of the learner, which replays them

All cells of a column are tried before the next column. With --markdown the page's table is written
after every cell (`architecture_table`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from artifacts.datasets.rows import Message
from artifacts.datasets.shapes import drawn
from artifacts.models.character_tokenizer import (
    VOCABULARY_SIZE,
    character_tokenizer,
    seeing_tokenizer,
)
from artifacts.models.picture_processor import processor_of
from artifacts.models.registry import SEEING, TinyVisionConfig
from artifacts.pictures import PictureFolder
from artifacts.records import WeightsRef
from artifacts.store import Store
from research.benchmarks.architecture_table import (
    ADAPTER,
    ENGINE,
    EXPERTS,
    LEARNER,
    NOTHING_THERE,
    PICTURES,
    Check,
    cell_of,
    import_once,
    reason_of,
    refusals,
    with_cells,
)
from research.benchmarks.learner_checks import (
    ShownPrompt,
    adapter_training,
    expert_parallel,
    packed_training,
    save_random_adapter,
)
from research.benchmarks.router_replay import distance, generated, row_of_responses
from research.benchmarks.tiny_architectures import ARCHITECTURES, LABELS, save_tiny
from tasks.cluster.gpus import found_gpus
from tasks.engines.base import Attestation, PicturedProbe, Probes
from tasks.engines.chat_tokens import ChatTokens
from tasks.engines.model_files import takes_pictures
from tasks.engines.picture_prompts import with_pictures
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.learner.architecture import (
    check_architecture,
    check_packed,
    has_experts,
    read_config,
)
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.lora_config import LoraConfig
from tasks.learner.policy import load_policy
from tasks.learner.ranks import Ranks
from tasks.learner.trainer import LearnerRank
from tasks.learner.weight_check import check_weights
from tasks.tiny_models.seeing import build_seeing_model

logger = logging.getLogger(__name__)

TOLERANCE_NATS = 0.15
PROBES = (tuple(range(5, 45)), tuple(range(40, 8, -1)), (9, 9, 9, 12, 12, 30))
# of fp32 in two programs: routes of nearly equal experts, and the largest of a token
FP32_MOVED, FP32_NATS = 1e-3, 2e-3
ENGINE_CONFIG = VllmEngineConfig(
    max_num_seqs=4,
    max_model_len=128,
    max_batched_tokens=256,
    kv_cache_gb=0.02,
    gpu_memory_utilization=0.1,
)
WHOLE_WEIGHTS = LearnerConfig()
FEW_STEPS = {"warm_up_steps": 2}  # of a model that sees
BARS = 'shapes:{"bars":[9,7,4],"ink":"blue"}'


async def through_engine_and_gate(
    models: Sequence[Path],
    engine_model: Path,
    folder: Path,
    config: LearnerConfig = WHOLE_WEIGHTS,
    probes: Probes = PROBES,
) -> list[float]:
    """The gate's mean difference of log-probabilities for each of these models, which a learner
    publishes and the engine loads one after the other. Raises WeightCheckFailed or ValueError."""
    # first: vLLM's Transformers backend changes the classes of models that learners compute with
    published = [
        publish(model, version, folder, config, probes) for version, model in enumerate(models, 1)
    ]
    engine = engine_of(engine_model, adapter=config.lora.engine_shape, pictures=config.pictures)
    try:
        engine.start()
        return [await _difference(engine, *version, probes) for version in published]
    finally:
        engine.close()


def engine_of(model: Path, **changes: Any) -> VllmEngine:  # Any: values of settings
    """An engine of this model, to be started."""
    config = ENGINE_CONFIG.model_copy(update=changes)
    return VllmEngine(config=config, model_path=str(model), name="engine", cpu_ids=None, seed=1)


def publish(
    model: Path,
    version: int,
    folder: Path,
    config: LearnerConfig = WHOLE_WEIGHTS,
    probes: Probes = PROBES,
) -> tuple[WeightsRef, Attestation]:
    """What a learner of this model writes, and what it attests."""
    learner = LearnerRank(config, str(model), 0, 1)
    weights = learner.export_weights(version, str(folder / f"{version}.safetensors"))
    assert weights is not None
    return weights, Attestation(
        version=version,
        fingerprints=learner.fingerprints(),
        probe_logprobs=learner.probe(probes),
        base_logprobs=learner.probe_base(probes),
    )


async def _difference(
    engine: VllmEngine, weights: WeightsRef, expected: Attestation, probes: Probes
) -> float:
    attested = await engine.load_weights(weights, probes)
    difference = check_weights("engine", attested, expected, TOLERANCE_NATS)
    assert difference is not None, "vLLM computes log-probabilities"
    return difference


def save_models(name: str, folder: Path, num_models: int) -> list[Path]:
    """Models of an architecture, each with weights of its own."""
    paths = [folder / f"model-{seed}" for seed in range(num_models)]
    for seed, path in enumerate(paths):
        if name in SEEING:
            path.mkdir()
            profile = {**FEW_STEPS, "seed": seed, "architecture": name}
            config = TinyVisionConfig.model_validate({"profile": profile})
            build_seeing_model(config, path, logger.info)
        else:
            save_tiny(name, path, VOCABULARY_SIZE, torch.bfloat16, seed)
            character_tokenizer().save_pretrained(path)
    return paths


def show(model: Path, folder: Path) -> ShownPrompt | None:
    """A prompt that shows a picture, which is kept in the folder; None for a model of text."""
    if not takes_pictures(str(model)):
        return None
    kept = PictureFolder(Store.open(str(folder)))
    kept.keep(drawn(BARS))
    ids = ChatTokens(seeing_tokenizer()).chat([Message(role="user", content="second=")], 1)
    tokens, pictures = with_pictures(str(model), ids, [BARS])
    processor = processor_of(str(model))
    return ShownPrompt(
        tokens=tokens, pictures=pictures, read=lambda each: processor.patches(kept.read(each))
    )


def settings_of(name: str, folder: Path) -> LearnerConfig:
    """The learner's settings: a tower is trained, with pictures of this folder."""
    seeing = {"vision": "trained", "pictures": str(folder)} if name in SEEING else {}
    return LearnerConfig.model_validate(seeing)


def try_learner(name: str, folder: Path) -> str:
    (model,) = save_models(name, folder, 1)
    with refusals():
        check_packed(model)
    packed_training(model, show(model, folder / "pictures"))
    return ""


def try_engine(name: str, folder: Path) -> str:
    models, settings = save_models(name, folder, 3), settings_of(name, folder / "pictures")
    return _told(models, folder, settings, PROBES)


def try_pictures(name: str, folder: Path) -> str:
    models, settings = save_models(name, folder, 3), settings_of(name, folder / "pictures")
    return _told(models, folder, settings, _shown_probes(show(models[0], folder / "pictures")))


def _shown_probes(shown: ShownPrompt | None) -> Probes:
    return (PicturedProbe.of(shown.tokens, shown.pictures),) if shown else ()


def _told(models: Sequence[Path], folder: Path, settings: LearnerConfig, probes: Probes) -> str:
    """How far the probes differ, of all models but the first, which the engine starts from."""
    with refusals():
        _check_start(models[0], ENGINE_CONFIG)
    differences = asyncio.run(
        through_engine_and_gate(models[1:], models[0], folder, settings, probes)
    )
    return f"probes differ by {max(differences):.3f} nats"


def try_adapter(name: str, folder: Path) -> str:
    (model,) = save_models(name, folder, 1)
    with refusals():
        check_architecture(model)
    shown = show(model, folder / "pictures")
    targets: Any = "attention" if has_experts(read_config(model)) else "all"
    lora = LoraConfig(rank=4, targets=targets)
    lora = save_random_adapter(model, lora, folder / "adapter", shown)
    adapter_training(model, lora, shown)
    how = "beside the weights"
    try:
        _check_start(model, ENGINE_CONFIG.model_copy(update={"adapter": lora.engine_shape}))
    except ValueError:  # on CPUs vLLM has no kernels for experts beside an adapter
        lora, how = lora.model_copy(update={"publish": "merged"}), "merged"
    config = LearnerConfig(lora=lora, pictures=str(folder / "pictures") if shown else "")
    probes = (*_shown_probes(shown), *PROBES)
    (difference,) = asyncio.run(through_engine_and_gate([model], model, folder, config, probes))
    return f"of {targets}, {how}: {difference:.3f} nats"


def try_experts(name: str, folder: Path) -> str:
    (model,) = save_models(name, folder, 1)
    with refusals():
        check_packed(model)
        expert_parallel(model, folder)  # first: its processes are forked from this one
    obstacle = ENGINE_CONFIG.route_obstacle(read_config(model), _on_cpu())
    try:
        _check_start(model, ENGINE_CONFIG)
    except ValueError as refusal:  # two ranks share experts that engines refuse
        obstacle = reason_of(refusal)
    if obstacle:
        return f"on two ranks; routes are not replayed: {obstacle}"
    return f"on two ranks; replayed routes: {replayed_routes(model):.0e} nats"


def replayed_routes(model: Path) -> float:
    """Check that the engine recorded the routes that the learner's own routers take, both in fp32;
    returns the mean difference of log-probabilities when they are replayed. Raises
    AssertionError."""
    row = row_of_responses(asyncio.run(generated(model, "float32")))
    policy = load_policy(str(model), "fp32", Ranks(0, 1, torch.device("cpu")))
    assert row.routes is not None, "the engine recorded no routes"
    policy.score(replace(row, routes=None))
    chosen = policy.routers.chosen.sort(-1).values
    recorded = row.routes.long().view(chosen.shape).sort(-1).values
    moved = float((chosen != recorded).any(-1).float().mean())
    assert moved <= FP32_MOVED, f"{moved:.2%} of routes are not those of the learner"
    replayed = distance(row, policy.score(row).logp)
    assert replayed.largest <= FP32_NATS, f"replayed, a token differs by {replayed.largest} nats"
    return replayed.mean


def _check_start(model: Path, engine: VllmEngineConfig) -> None:
    """Raises ValueError as the start of a run does."""
    check_architecture(model)
    engine.check_model(read_config(model).get_text_config(), _on_cpu())


def _on_cpu() -> bool:
    return not found_gpus().names


# in the order in which columns are tried: what is cheap comes first
CHECKS: Mapping[str, Check] = {
    LEARNER: try_learner, ENGINE: try_engine, ADAPTER: try_adapter, PICTURES: try_pictures,
    EXPERTS: try_experts,
}  # fmt: skip


def cell(column: str, name: str) -> str:
    """What the table says in this column of an architecture."""
    is_mixture = any("experts" in field for field in ARCHITECTURES.get(name, ()))
    if (column == EXPERTS and not is_mixture) or (column == PICTURES and name not in SEEING):
        return NOTHING_THERE
    return cell_of(CHECKS[column], name)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    import_once(["tasks.engines.vllm.imports", "research.benchmarks.architectures"])
    cells: dict[tuple[str, str], str] = {}
    for column in (each for each in CHECKS if each in options.columns):
        for name in options.only:
            began_s = time.time()
            cells[LABELS[name], column] = found = cell(column, name)
            print(f"{name} | {column} | {found} | {time.time() - began_s:.0f} s", flush=True)
            if options.markdown is not None:
                page = options.markdown.read_text()
                options.markdown.write_text(with_cells(page, [*LABELS.values()], cells))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--columns", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--markdown", type=Path, help="the page whose table is written")
    return parser


if __name__ == "__main__":
    main()
