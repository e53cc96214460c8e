"""Checks a model's configuration before anything starts: packed training must be able to run the
architecture, and so must vLLM.

The learner embeds tokens and projects hidden states itself (`policy`, `head`) and replaces the
attention of every layer (`tree_attention`): any further computation would be left out silently, so
models with one are refused. docs/models.md has the table of tested models.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from artifacts.models.importing import building_model, importing_transformers
from artifacts.models.registry import SEEING
from tasks.engines.base import ReplicaConfig

logger = logging.getLogger(__name__)

TESTED = frozenset(
    {
        "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3_text", "phi3", "olmo2", "smollm3",
        "granite", "qwen3_moe", "olmoe", "mixtral", "glm4_moe", "deepseek_v3", *SEEING,
    }
)  # fmt: skip
ATTENTION = frozenset({"full_attention", "sliding_attention"})
ENGINE_KNOWS_EXPERTS = frozenset({"qwen3_moe", "olmoe", "mixtral", "glm4_moe", "deepseek_v3"})
ENGINE_WANTS_ONE_KIND = frozenset({"qwen2", "qwen3"})
# fields of a model's configuration, and what a value other than the usual one means
CHANGED_NUMBERS = {
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "use_bidirectional_attention": "attention to later tokens",
    "logit_scale": "scaled logits",
    "lm_head_multiplier": "scaled logits",
}


def check_architecture(path: Path) -> Path:
    """Return the model's directory, if packed training computes what the model does and engines can
    load the published weights. Raises ValueError with the obstacles."""
    config = read_config(path)
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    obstacles = list(_obstacles(config))
    if config.model_type in ENGINE_WANTS_ONE_KIND and len(kinds) > 1:
        obstacles.append(
            "windows in some of its layers only, which vLLM refuses for this architecture"
        )
    if has_experts(config) and config.model_type not in ENGINE_KNOWS_EXPERTS:
        known = ", ".join(sorted(ENGINE_KNOWS_EXPERTS))
        obstacles.append(f"experts, of which engines were given those of {known} alone")
    _refuse(path, config, obstacles)
    if config.model_type not in TESTED:
        logger.warning(
            "model=%s architecture=%s is not among those of docs/models.md; the weight check"
            " compares what it computes with the engines",
            path,
            config.model_type,
        )
    return path


def takes_pictures(config: Any) -> bool:  # Any: transformers' configurations carry no types
    """True if the model has a vision tower."""
    return getattr(config, "vision_config", None) is not None


def has_experts(config: Any) -> bool:  # Any: transformers' configurations carry no types
    """True if layers of the model have experts."""
    return any(getattr(config, name, None) for name in ("num_experts", "num_local_experts"))


def replays_routes(
    replay: Literal["auto", "on", "off"],
    engine: ReplicaConfig,
    model: Any,
    on_cpu: bool,  # Any: as above
) -> bool:
    """True if engines are to say which experts computed a token, and the learner takes the same.
    Raises ValueError with the obstacle if that is asked for and cannot be."""
    if replay == "off" or (replay == "auto" and not has_experts(model)):
        return False
    obstacle = engine.route_obstacle(model, on_cpu)
    if not has_experts(model):
        obstacle = f"{model.model_type} has no experts"
    if replay == "on" and obstacle:
        raise ValueError(
            f"learner.router_replay=on needs routes of the engines, got none: {obstacle}; leave it"
            " at auto"
        )
    if obstacle:
        logger.warning("router_replay=off: %s; train/mismatch_k3 will be larger", obstacle)
    return not obstacle


def check_packed(path: Path) -> None:
    """Raise ValueError if packed training cannot compute a model of this architecture."""
    config = read_config(path)
    _refuse(path, config, list(_obstacles(config)))


def read_config(path: Path) -> Any:  # Any: transformers' configurations carry no types
    """Read the model configuration in a Hugging Face directory."""
    with importing_transformers():
        from transformers import AutoConfig

    return AutoConfig.from_pretrained(path, local_files_only=True)


def _refuse(path: Path, config: Any, obstacles: Sequence[str]) -> None:  # Any: as above
    if obstacles:
        raise ValueError(
            f"a run cannot train {config.model_type} in {path}: it has"
            f" {', '.join(obstacles)}; choose a model of docs/models.md"
        )


def _obstacles(config: Any) -> Iterator[str]:  # Any: transformers' configurations carry no types
    if takes_pictures(config) and config.model_type not in SEEING:
        yield f"a vision tower, which was tried with {', '.join(sorted(SEEING))} alone"
        return
    text = config.get_text_config()
    for name, meaning in CHANGED_NUMBERS.items():
        if getattr(text, name, None) not in (None, False, 1.0):
            yield f"{meaning} ({name})"
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - ATTENTION:
        yield f"layers of {', '.join(sorted(kinds - ATTENTION))}"
    if config.model_type == "gpt_oss":
        yield "attention sinks"
    if config.model_type in TESTED:
        return
    model = empty_model(config)  # embedding and head may be more than a table each
    embedding = model.get_input_embeddings()
    if type(embedding) is not nn.Embedding and not hasattr(embedding, "scalar_embed_scale"):
        yield f"an embedding of its own ({type(embedding).__name__})"
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        yield "a head with a bias"


def aliases_of(path: Path) -> dict[str, str]:
    """The further names of tied weights of the model in a Hugging Face directory, each with the
    first name of the same weight."""
    model = empty_model(read_config(path))
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name: first[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name != first[id(parameter)]
    }


def name_in_model(name: str) -> str:
    """The name in transformers' model with a tower of a tensor of its files, which have other names
    (Qwen2.5-VL) or the same."""
    if name.startswith("visual."):
        return f"model.{name}"
    rest = name.removeprefix("model.")
    is_other = rest != name and not rest.startswith(("language_model.", "visual."))
    return f"model.language_model.{rest}" if is_other else name


def empty_model(config: Any) -> Any:  # Any: as above, and models
    """Build the model on the meta device: shapes without numbers, which take no memory."""
    with building_model(), torch.device("meta"):
        return model_class(config).from_config(config)


def model_class(config: Any) -> Any:  # Any: as above
    """The class of transformers that builds and loads the model."""
    with importing_transformers():
        if takes_pictures(config):
            from transformers import AutoModelForImageTextToText

            return AutoModelForImageTextToText
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM


def text_model(model: Any) -> Any:  # Any: as above
    """The decoder layers with their norm, without embedding, head and vision tower."""
    return getattr(model.base_model, "language_model", model.base_model)
