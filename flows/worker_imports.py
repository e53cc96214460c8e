"""Imports all modules that the workers of a run need, once, in the process from which the workers
are forked (`tasks.cluster.fork_server`). Leaves out vLLM, which only engines need."""

from __future__ import annotations

import gc

from anyio._backends import _asyncio  # the first client of Prefect would, in every worker

from artifacts.models.importing import importing_transformers
from flows import evaluate, rl_step
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
    "evaluate",
    "fleet",
    "reward",
    "rl_step",
    "rollout",
    "train",
]

# imported objects are never freed: freezing exempts them from workers' garbage collections, so that
# their memory pages stay shared
gc.freeze()
