"""vLLM's engine, ready for a first batch of any length: what engines, judges and measurements build
on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from artifacts.models.importing import importing_transformers
from tasks.cluster.ports import LOOPBACK, reach_ranks_by
from tasks.engines.vllm.attention import allow_tiles
from tasks.engines.vllm.unranked import leave_out_ranks

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


def build_llm_engine(arguments: dict[str, Any]) -> LLMEngine:  # Any: EngineArgs are of many types
    """Import vLLM and build an engine in the calling thread, which must be pinned by now.

    arguments: those of vLLM's EngineArgs. ValueError for those that vLLM refuses.
    """
    reach_ranks_by(LOOPBACK)  # no engine spans two machines
    with importing_transformers():
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

    try:
        engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    except ValidationError as error:  # which does not pickle
        faults = "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
        raise ValueError(
            f"vLLM refuses this engine: {faults}; change the engine's fields, or the model"
        ) from None
    if on_cpu():
        allow_tiles(engine, arguments["dtype"])
        leave_out_ranks(engine)
    return engine


def on_cpu() -> bool:
    """Whether vLLM's backend is that of the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
