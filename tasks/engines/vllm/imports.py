"""The slow imports of a vLLM engine's process, gathered in one module for the process that workers
are forked from (`tasks.cluster.fork_server`). They take more CPU time than all other imports of a
run."""

from __future__ import annotations

import gc

from artifacts.models.importing import importing_transformers

with importing_transformers():
    from vllm.platforms import current_platform
    from vllm.v1.engine import llm_engine

    if current_platform.is_cpu():
        from vllm.v1.worker import cpu_worker as worker
    else:
        from vllm.v1.worker import gpu_worker as worker

__all__ = ["llm_engine", "worker"]

# as in flows.worker_imports
gc.freeze()
