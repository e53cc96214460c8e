"""A preload of an elastic worker: once a file is there, its vLLM keeps the adapter that it has, as
if an id that it knows were not loaded again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tasks.engines.base import AdapterShape
from tasks.engines.vllm import adapter_slot

KEEPS_ADAPTER = "ROLLFLOW_TESTS_KEEP_ADAPTER"  # where the file's path stands
load = adapter_slot.load_adapters


def load_or_keep(runner: Any, tensors: Any, shape: AdapterShape, path: str) -> dict[str, int]:
    # Any: vLLM's, and tensors, which need torch
    if Path(os.environ[KEEPS_ADAPTER]).exists():
        manager = runner.lora_manager._adapter_manager
        for name in ("remove_adapter", "add_adapter", "activate_adapter"):
            setattr(manager, name, lambda given: False)
    return load(runner, tensors, shape, path)


if KEEPS_ADAPTER in os.environ:
    adapter_slot.load_adapters = load_or_keep
