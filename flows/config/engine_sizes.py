"""The tensor-parallel sizes of engines that a model and the devices allow.

    config.json ─▶ heads ─┐
    cluster.roles ────────┴▶ sizes that the planner may take, and that vLLM can run

A size is checked before anything starts, as far as the model's heads are known by then.
"""

from __future__ import annotations

from pathlib import Path

from artifacts.models.registry import (
    HubModelConfig,
    SmolLM2Config,
    TinyModelConfig,
)
from flows.config.parts import Parts
from tasks.cluster.devices import device_map, engine_members
from tasks.engines.model_files import read_head_counts
from tasks.scheduling.parallelism import possible_sizes, shares_heads
from tasks.tiny_models.models import present_model

Heads = tuple[int, int]  # attention heads and KV heads
SMOLLM2_HEADS: Heads = (9, 3)


def heads_of(config: Parts) -> Heads | None:
    """The heads of the configured model before it is built; of the hub no more than config.json is
    fetched. None if there is no model yet. Raises ValueError as the hub does."""
    if (found := present_model(config.model, Path(config.keep.model_cache))) is not None:
        return read_head_counts(str(found))
    match config.model:
        case HubModelConfig():
            return read_head_counts(str(config.model.described()))
        case SmolLM2Config():
            return SMOLLM2_HEADS
        case TinyModelConfig():
            num = config.model.hidden_size // config.model.head_dim
            return num, num
    return None


def sizes_of(config: Parts, heads: Heads) -> tuple[int, ...]:
    """Sizes that the planner may choose from. Raises ValueError if the first is not among them."""
    devices = device_map(config.cluster)["rollout"]
    largest = config.planner.max_tensor_parallel_size
    sizes = possible_sizes(devices, config.cluster.devices_per_host, *heads, largest)
    first = config.engine.tensor_parallel_size
    if config.planner.enabled and first not in sizes:
        raise ValueError(
            f"engine.tensor_parallel_size must be one of {', '.join(map(str, sizes))} for the"
            f" planner (of {heads[0]} heads and {heads[1]} KV heads, on {len(devices)} rollout"
            f" devices), got {first}; change it"
        )
    return sizes


def check_heads(config: Parts, heads: Heads) -> None:
    """Raise ValueError if the devices of an engine cannot share the model's heads, or if the
    planner could not go on from its size."""
    sizes_of(config, heads)
    size = config.engine.tensor_parallel_size
    if not config.engine.splits_heads or shares_heads(size, *heads):
        return
    smaller = range(size - 1, 0, -1)
    cure = next(less for less in smaller if shares_heads(less, *heads) and _fits(config, less))
    raise ValueError(
        "engine.tensor_parallel_size must divide the model's attention heads and divide its KV"
        f" heads, or be a multiple of them, got {size} for {heads[0]} and {heads[1]}; --set"
        f" engine.tensor_parallel_size={cure}"
    )


def _fits(config: Parts, size: int) -> bool:
    try:
        engine_members(config.cluster, size)
    except ValueError:
        return False
    return True
