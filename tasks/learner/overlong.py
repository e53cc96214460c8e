"""How training treats responses that are too long (DAPO, sections 3.4 and 3.5).

The verdict on a truncated response is noisy: it was cut, whatever it was about to say. Only
training is affected; verdicts, their metrics, held-out scores and dynamic sampling use the reward
as it was given. Lengths count sampled tokens: an environment's words are not punished.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig
from artifacts.records import Generated
from tasks.rewards.base import LARGEST_REWARD


class OverlongRule(FrozenConfig):
    """The base of all kinds: trains every response on its verdict."""

    def shaped(self, reward: float, generated: Generated) -> float:
        """The reward that advantages are computed from."""
        return reward

    def is_masked(self, generated: Generated) -> bool:
        """True if a response is left out of the loss."""
        return False


class TrainOverlong(OverlongRule):
    """Truncated responses are trained on their verdict, like all others."""

    kind: Literal["train"] = Field(
        default="train", description="Train truncated responses as they were scored."
    )


class SoftPunishment(OverlongRule):
    """Soft overlong punishment (equation 13): no penalty before the buffer, a linearly growing one
    in it, and the full penalty from max_tokens on."""

    kind: Literal["soft"] = Field(
        default="soft", description="Subtract a growing penalty from the reward of long responses."
    )
    max_tokens: int = Field(
        ge=1,
        description=(
            "Sampled tokens from which the whole penalty counts; at most"
            " sampling.max_response_tokens."
        ),
    )
    buffer_tokens: int = Field(
        ge=1, description="The penalty grows from 0 over so many tokens before max_tokens."
    )
    penalty: float = Field(
        default=1.0,
        gt=0,
        le=LARGEST_REWARD,
        description="What the reward of a response of max_tokens loses.",
    )

    @model_validator(mode="after")
    def _begins_at_a_token(self) -> Self:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(
                "learner.overlong.buffer_tokens must be at most max_tokens"
                f" ({self.max_tokens}), got {self.buffer_tokens}: even an empty response would be"
                " punished; lower it"
            )
        return self

    def shaped(self, reward: float, generated: Generated) -> float:
        into_buffer = generated.num_sampled - (self.max_tokens - self.buffer_tokens)
        return reward - self.penalty * min(1.0, max(0.0, into_buffer / self.buffer_tokens))


class MaskTruncated(OverlongRule):
    """Overlong filtering: truncated responses are left out of the loss and of its divisor, but stay
    in their group's statistics. Else a group of one answer and seven truncations would teach
    nothing, and the others would be compared only with responses that ended in time."""

    kind: Literal["mask"] = Field(
        default="mask", description="Leave truncated responses out of the loss."
    )

    def is_masked(self, generated: Generated) -> bool:
        return generated.finish_reason == "length"


Overlong = TrainOverlong | SoftPunishment | MaskTruncated
AS_SCORED = TrainOverlong()
OverlongConfig = Annotated[Overlong, Field(discriminator="kind")]
