"""vLLM as one would use it by hand: what the throughput experiments compare with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.engines.vllm.llm_engine import on_cpu
from tasks.engines.vllm.worker_patches import allow_tiles


def bare_llm(
    config: VllmEngineConfig, model: str, seed: int, cores: Sequence[int]
) -> Any:  # Any: vllm.LLM, whose package has no types
    """A `vllm.LLM` with an engine's own arguments, less what Rollflow adds to its workers. Pins
    this process to the cores first.

    Thread counts are the caller's: OMP_NUM_THREADS, set before torch is imported.
    """
    os.sched_setaffinity(0, cores)
    from vllm import LLM

    arguments = config.vllm_arguments(model, seed, on_cpu=on_cpu())
    llm = LLM(
        **{name: value for name, value in arguments.items() if name != "worker_extension_cls"}
    )
    if on_cpu():
        allow_tiles(llm, config.dtype)
    return llm
