"""Records in which everything that a test does not care about is filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from artifacts.records import Generated, Request, VersionSpan


def make_generated(text: str = "", token_ids: Sequence[int] = (), **given: Any) -> Generated:
    """A finished response of one turn, its tokens of weight version 0 and as likely as each
    other."""
    num_tokens = len(token_ids)
    values = {
        "prompt_id": "0/1",
        "index": 0,
        "token_ids": tuple(token_ids),
        "logprobs": (-1.0,) * num_tokens,
        "versions": (VersionSpan(version=0, num_tokens=num_tokens),) if num_tokens else (),
        "finish_reason": "stop",
        "text": text,
        "engine": "engine-0",
        "submitted_s": 0.0,
        "first_token_s": 0.0,
        "finished_s": 0.0,
    }
    return Generated(**(values | given))


def make_request(prompt_id: str = "0/1", index: int = 0, **given: Any) -> Request:
    """What an engine is asked: 400 tokens after two, sampled as they are."""
    values = {
        "prompt_tokens": (1, 2),
        "max_new_tokens": 400,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
    }
    return Request(prompt_id=prompt_id, index=index, **(values | given))
