"""What a forked worker tells of itself, for `test_fork_server`."""

from __future__ import annotations

import multiprocessing
import os
import sys


def tell() -> None:
    """On one line: whose imports it has, whose environment, whether it can start
    a process from nothing, and which process forked it."""
    spawned = multiprocessing.get_context("spawn").Process(target=os.getpid)
    spawned.start()
    spawned.join()
    constants = sys.modules.get("huggingface_hub.constants")
    facts = {
        "flow": "colorsys" in sys.modules,
        "asked": "wave" in sys.modules,
        "told": os.environ.get("TOLD") == "by the flow",
        "offline": constants is not None and constants.HF_HUB_OFFLINE,
        "spawns": spawned.exitcode == 0,
    }
    print(*(f"{name}:{fact}" for name, fact in facts.items()), os.getppid(), flush=True)
