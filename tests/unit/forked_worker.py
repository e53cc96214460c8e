"""What a forked worker tells of itself, for `test_fork_server`."""

from __future__ import annotations

import os
import sys


def tell() -> None:
    """On one line: whose imports it has, whose environment, and which process forked it."""
    constants = sys.modules.get("huggingface_hub.constants")
    facts = {
        "flow": "colorsys" in sys.modules,
        "asked": "wave" in sys.modules,
        "told": os.environ.get("TOLD") == "by the flow",
        "offline": constants is not None and constants.HF_HUB_OFFLINE,
    }
    print(*(f"{name}:{fact}" for name, fact in facts.items()), os.getppid(), flush=True)
