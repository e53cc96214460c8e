"""What the workers of a run import: one module, for the process that they are forked from
(`tasks.cluster.fork_server`). Leaves out vLLM, which engines alone need."""

from __future__ import annotations

import gc

from anyio._backends import _asyncio  # the first client of Prefect would, in every worker

from artifacts.models.importing import importing_transformers
from tasks import checkpointing as durable
from tasks import reward, rollout, train
from tasks.run import fleet

with importing_transformers():
    from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

__all__ = [
    "AutoModelForCausalLM",
    "PreTrainedModel",
    "PreTrainedTokenizerFast",
    "_asyncio",
    "durable",
    "fleet",
    "reward",
    "rollout",
    "train",
]

# what is imported stays for good: no collection of a worker looks at it, and its pages stay shared
gc.freeze()
