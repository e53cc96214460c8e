"""From a model's configuration to the directory it lies in; it is fetched or built first where that
is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from artifacts.models.choice import (
    HubModelConfig,
    ModelConfig,
    PathConfig,
    SmolLM2Config,
    TinyLlamaConfig,
    build_once,
    cache_name,
    check_model,
)
from artifacts.models.hub_model import fetch_hub_model

Report = Callable[[str], None]

# raise it when warm_up or chain_sum change what the same configuration builds: cached models are
# then left alone
RECIPE = 2


def resolve_model(config: ModelConfig, cache_dir: Path, report: Report = print) -> Path:
    """A Hugging Face directory that engine and learner can load; built models are kept in
    `cache_dir`. A build takes up to a minute and tells `report` how far it is.

    Raises ValueError for a directory that holds no model, or when the package that a model comes
    from is missing.
    """
    match config:
        case PathConfig():
            return check_model(Path(config.path).expanduser())
        case HubModelConfig():
            return fetch_hub_model(config)
        case SmolLM2Config():
            return build_once(cache_dir, "smollm2-135m-instruct", partial(_convert, report))
        case TinyLlamaConfig():
            return build_once(
                cache_dir,
                cache_name(config, f"tiny_llama-r{RECIPE}"),
                partial(_warm_up, config, report),
            )


def _convert(report: Report, target: Path) -> None:
    from artifacts.models.smollm2 import convert_smollm2

    convert_smollm2(target, report)


def _warm_up(config: TinyLlamaConfig, report: Report, target: Path) -> None:
    from tasks.learner.warm_up import build_tiny_model

    build_tiny_model(config, target, report)
