"""The Reward seam: one finished response in, a verdict with outcome and timings out.

A reward never raises for what a model wrote: bad text is WRONG with a detail. A crash of the verifier itself is INFRA, which
the scheduler excludes from the group; it is never a reward of zero.
"""

from __future__ import annotations

from typing import Protocol

from artifacts.records import Generated, Prompt, Score


class Reward(Protocol):
    """Scores responses of one domain or more. Called from one thread at a time per instance."""

    name: str

    def score(self, prompt: Prompt, generated: Generated) -> Score:
        """Verdict on one response, within the reward's own time limit."""
        ...

    def close(self) -> None:
        """End worker processes, if there are any."""
        ...
