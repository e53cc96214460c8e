"""The law of response lengths: a log-normal body, a heavier tail, and responses that never end.

    log(length / median)
      │                        ╱ │ endless: they run to whatever bound there is
      │                      ╱ tail
      │            ____╱╱╱╱
      │   ____╱╱╱╱  body
      └──────────────┴───────────┴── normal score of the response among all others
                    P75

The body passes through the median and the 75th percentile, the tail through the latter and the
longest response of a step of 128 x 8; a single log-normal would have its longest at about a dozen
medians. A prompt's responses share a part of their normal score (a Gaussian copula), which leaves
the law of all of them as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tasks.simulation.draws import alike, normal, normal_score

STEP_RESPONSES = 1024  # of the published steps
P75_SCORE = normal_score(0.75)
# the longest of as many lies below it in half of the steps
LONGEST_SCORE = normal_score(0.5 ** (1 / STEP_RESPONSES))


@dataclass(frozen=True, kw_only=True)
class LengthLaw:
    """The law of the lengths of a domain's responses, before anything cuts them."""

    median_tokens: float  # half are shorter
    p75_tokens: float  # three quarters are shorter
    longest_ratio: float  # of the longest of 1,024 responses to the median, without endless ones
    endless_share: float = 0.001  # share of responses that run to the bound, whatever it is
    prompt_share: float = 0.25  # correlation of the normal scores of two responses to a prompt

    @cached_property
    def body_sigma(self) -> float:
        """Standard deviation of the logarithm below P75."""
        return math.log(self.p75_tokens / self.median_tokens) / P75_SCORE

    @cached_property
    def tail_sigma(self) -> float:
        """Slope of the logarithm in the normal score above P75."""
        rise = math.log(self.longest_ratio * self.median_tokens / self.p75_tokens)
        return rise / (LONGEST_SCORE - P75_SCORE)

    @cached_property
    def endless_score(self) -> float:
        """The normal score above which responses never end."""
        return normal_score(1 - self.endless_share) if self.endless_share else math.inf

    def tokens(self, score: float) -> float:
        """Returns the length of a response with this normal score; infinite if it never ends."""
        if score > self.endless_score:
            return math.inf
        body, tail = min(score, P75_SCORE), max(score - P75_SCORE, 0.0)
        return self.median_tokens * math.exp(self.body_sigma * body + self.tail_sigma * tail)

    def score(self, hardness: float, seed: int, prompt_id: str, index: int, noise: int) -> float:
        """Returns the normal score of a response to a prompt with the normal score `hardness`."""
        own = normal(seed, "response", prompt_id, index, noise)
        return alike(hardness, own, self.prompt_share)
