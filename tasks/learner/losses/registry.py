"""The losses by kind; docs/losses.md says when to choose which. Leaves out the terms that are added
to any loss (`objective`), the weights of tokens (`samples`) and the division (`trainer`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.learner.losses.clipped import GspoLoss, PpoClipLoss
from tasks.learner.losses.weighted import (
    CispoLoss,
    IcePopLoss,
    PolicyGradientLoss,
    ReinforceLoss,
    ToprLoss,
)

LossConfig = Annotated[
    PpoClipLoss  # the ratio is clipped
    | ReinforceLoss  # the weight is truncated
    | CispoLoss  # the weight is clipped on both sides
    | ToprLoss  # the weight is truncated for bad responses alone
    | GspoLoss  # one ratio per response is clipped
    | IcePopLoss  # tokens of extreme weights are masked
    | PolicyGradientLoss,  # no correction
    Field(discriminator="kind"),
]
