"""The losses by kind; docs/losses.md says when to choose which. Leaves out the terms that are added
to any loss (`objective`), the weights of tokens (`samples`) and the division (`trainer`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from artifacts.custom_part import CustomPart
from tasks.learner.losses.clipped import GspoLoss, PpoClipLoss
from tasks.learner.losses.weighted import (
    CispoLoss,
    IcePopLoss,
    PolicyGradientLoss,
    ReinforceLoss,
    ToprLoss,
)
from tasks.learner.token_loss import PolicyLoss, TokenBatch, TokenLoss

if TYPE_CHECKING:  # configurations are read without torch
    from torch import Tensor


class CustomLoss(CustomPart, PolicyLoss):
    """The loss of a class of the user's, which is a `PolicyLoss`."""

    check: ClassVar[str] = "loss"
    kind: Literal["custom"] = Field(default="custom", description="Chooses a loss of your own.")

    @property
    def part(self) -> PolicyLoss:
        """The user's loss. Raises ValueError if it cannot be made or is no `PolicyLoss`."""
        part = self.made()
        if not isinstance(part, PolicyLoss):
            raise ValueError(
                f"a loss must be a class of tasks.learner.token_loss.PolicyLoss, {self.path} is"
                " none; inherit it, see docs/parts.md"
            )
        return part

    @property
    def corrects_staleness(self) -> bool:
        return self.part.corrects_staleness

    @property
    def clips(self) -> bool:
        return self.part.clips

    @property
    def needs_whole_responses(self) -> bool:
        return self.part.needs_whole_responses

    def explain(self) -> str:
        return f"{self.name}: {self.part.explain()}"

    def token_loss(self, logp: Tensor, batch: TokenBatch) -> TokenLoss:
        part = self.part
        with self.calling("token_loss"):
            return part.token_loss(logp, batch)


LossConfig = Annotated[
    PpoClipLoss  # the ratio is clipped
    | ReinforceLoss  # the weight is truncated
    | CispoLoss  # the weight is clipped on both sides
    | ToprLoss  # the weight is truncated for bad responses alone
    | GspoLoss  # one ratio per response is clipped
    | IcePopLoss  # tokens of extreme weights are masked
    | PolicyGradientLoss  # no correction
    | CustomLoss,  # a class of the user's
    Field(discriminator="kind"),
]
