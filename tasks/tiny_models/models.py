"""Finds the directory of a configured model; the model is fetched or built first where
necessary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from artifacts.models.chat_template import templated
from artifacts.models.registry import (
    HubModelConfig,
    ModelConfig,
    PathConfig,
    SmolLM2Config,
    TinyConfig,
    TinyModelConfig,
    TinyVisionConfig,
    TrainedElsewhere,
    build_once,
    cache_name,
    check_model,
    fetch_hub_model,
)

Report = Callable[[str], None]

# version of the recipe by kind; raise it when warm_up, demonstrations, chain_sum or a game change
# what the same configuration builds, so that cached models are no longer used
RECIPES: Mapping[str, int] = {
    "tiny_llama": 3,
    "tiny_experts": 1,
    "tiny_player": 4,
    "tiny_vision": 1,
}
SMOLLM2 = "smollm2-135m-instruct"  # its directory in the cache


def resolve_model(config: ModelConfig, cache_dir: Path, report: Report = print) -> Path:
    """Return a Hugging Face directory that engine and learner can load; built models are kept in
    `cache_dir`, and so are directories with a chat template of the user's. Building takes up to a
    minute and reports its progress to `report`.

    Raises ValueError for a directory without a model, for a chat template that is not there, or
    when the package that holds a model is missing.
    """
    return with_template(config, _resolve(config, cache_dir, report), cache_dir)


def with_template(config: ModelConfig, directory: Path, cache_dir: Path) -> Path:
    """Return the model's directory or, with a chat template of the user's, one in the cache that
    has it. Raises ValueError for a template that is not there."""
    if isinstance(config, TrainedElsewhere) and config.chat_template:
        return templated(directory, config.chat_template, cache_dir)
    return directory


def _resolve(config: ModelConfig, cache_dir: Path, report: Report) -> Path:
    match config:
        case PathConfig():
            return check_model(Path(config.path).expanduser())
        case HubModelConfig():
            return fetch_hub_model(config)
        case SmolLM2Config():
            return build_once(cache_dir, SMOLLM2, partial(_convert, report))
        case TinyModelConfig():
            return build_once(cache_dir, _tiny_name(config), partial(_warm_up, config, report))


def present_model(config: ModelConfig, cache_dir: Path) -> Path | None:
    """The model's directory, if its config.json is on this machine; fetches and builds nothing."""
    match config:
        case PathConfig():
            directory = Path(config.path).expanduser()
        case HubModelConfig():
            # imported when asked for, as in artifacts.hub
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(config.repository, "config.json", config.revision)
            if not isinstance(found, str):
                return None
            directory = Path(found).parent
        case SmolLM2Config():
            directory = cache_dir / SMOLLM2
        case TinyModelConfig():
            directory = cache_dir / _tiny_name(config)
    return directory if (directory / "config.json").is_file() else None


def _tiny_name(config: TinyConfig) -> str:
    return cache_name(config, f"{config.kind}-r{RECIPES[config.kind]}")


def _convert(report: Report, target: Path) -> None:
    from artifacts.models.smollm2 import convert_smollm2

    convert_smollm2(target, report)


def _warm_up(config: TinyConfig, report: Report, target: Path) -> None:
    if isinstance(config, TinyVisionConfig):
        from tasks.tiny_models.seeing import build_seeing_model

        build_seeing_model(config, target, report)
        return
    from tasks.tiny_models.warm_up import build_tiny_model

    build_tiny_model(config, target, report)
