"""The losses by name. A loss gives one number per token (`token_loss`), from a file of `losses/`.

Leaves out where log-probabilities come from (policy), how tokens are weighted (normalisation) and
the division (trainer).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.learner.losses.ppo_clip import PpoClipLoss
from tasks.learner.losses.reinforce import ReinforceLoss

LossConfig = Annotated[
    PpoClipLoss  # the ratio is clipped
    | ReinforceLoss,  # the weight is truncated
    Field(discriminator="kind"),
]
