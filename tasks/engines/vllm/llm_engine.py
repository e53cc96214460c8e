"""vLLM's engine, ready for a first batch of any length: what engines, judges and measurements build
on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from artifacts.models.importing import importing_transformers
from tasks.engines.vllm.attention import allow_tiles

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


def build_llm_engine(arguments: dict[str, Any]) -> LLMEngine:  # Any: EngineArgs are of many types
    """Import vLLM and build an engine in the calling thread, which must be pinned by now.

    arguments: those of vLLM's EngineArgs.
    """
    with importing_transformers():
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    if on_cpu():
        allow_tiles(engine, arguments["dtype"])
    return engine


def on_cpu() -> bool:
    """Whether vLLM's backend is that of the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
