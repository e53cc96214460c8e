"""The losses by name. A loss gives one number per token (`token_loss`), from a file of `losses/`.

docs/losses.md says which one is for what. Leaves out what may be added to any of them (objective),
how tokens are weighted (normalisation) and the division (trainer).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.learner.losses.cispo import CispoLoss
from tasks.learner.losses.gspo import GspoLoss
from tasks.learner.losses.icepop import IcePopLoss
from tasks.learner.losses.policy_gradient import PolicyGradientLoss, ReinforceLoss
from tasks.learner.losses.ppo_clip import PpoClipLoss
from tasks.learner.losses.topr import ToprLoss

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
