"""Rows that are episodes: a seed becomes a prompt, which is the head of every episode."""

from __future__ import annotations

from artifacts.datasets.rows import Row
from artifacts.records import Prompt
from tasks.environments.episodes.bridge import Bridge

MOST_DIGITS = 18  # of a seed: tables have 64 bits for it


def episode_prompt(row: Row, bridge: Bridge, prompt_id: str, max_prompt_tokens: int) -> Prompt:
    """The row as the head and the seed of its environment's reset. ValueError for a row without a
    seed, and for a head that leaves no room."""
    if not row.gold.isdecimal() or len(row.gold) > MOST_DIGITS:
        raise ValueError(
            "a row of a domain with an environment must have a seed as its answer, a whole number"
            f" of at most {MOST_DIGITS} digits, row {prompt_id} of {row.domain!r} has"
            f" {row.gold[:60]!r}; use task.kind=seeds, or take environments.{row.domain} away"
        )
    if len(bridge.head) > max_prompt_tokens:
        raise ValueError(
            f"the head of an environment must fit in {max_prompt_tokens} tokens (the engine's"
            f" context less the longest episode), that of {row.domain!r} has {len(bridge.head)};"
            " raise engine.max_model_len or lower sampling.max_response_tokens"
        )
    return Prompt(
        prompt_id=prompt_id,
        domain=row.domain,
        token_ids=bridge.head,
        gold=row.gold,
        text=row.text,
        episode_seed=int(row.gold),
    )
