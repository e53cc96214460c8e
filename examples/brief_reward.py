"""A reward: the gold answer must be among the first characters of the response.

    rollflow check reward examples/brief_reward.py:brief --answer 'It is 4.'

A reward is a function of the question, the response and the gold. It runs in a process of its own.
What a model wrote is never an error: whatever cannot be read is paid 0.
"""

from __future__ import annotations

MAX_CHARS = 40  # within which the answer must come


def brief(prompt: str, response: str, gold: str) -> float:
    """1 for the gold answer in time, and 0.1 for saying anything as short as that."""
    early = response[:MAX_CHARS]
    if gold and gold in early:
        return 1.0
    return 0.1 if response and response == early else 0.0
