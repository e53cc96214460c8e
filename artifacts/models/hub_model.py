"""A model of the Hugging Face hub as a directory in the hub's cache.

What is small comes first (config, tokenizer, templates), so that a model that cannot be trained is
refused before its weights are fetched.
"""

from __future__ import annotations

from pathlib import Path

from artifacts.hub import fetch
from artifacts.models.registry import HubModelConfig, check_description, check_model

DESCRIPTION = ("*.json", "*.model", "*.txt", "*.jinja")
WEIGHTS = "*.safetensors"
FOLDERS = ("*/*",)  # other formats of the same weights lie there


def fetch_hub_model(config: HubModelConfig) -> Path:
    """The model's directory at the revision. Raises ValueError for one that cannot be had, or is no
    causal language model."""
    described = fetch("model", config.repository, config.revision, DESCRIPTION, FOLDERS)
    check_description(described)
    commit = described.name
    return check_model(fetch("model", config.repository, commit, (*DESCRIPTION, WEIGHTS), FOLDERS))
