"""How far an episode may go, and the processes that its environment steps in."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tasks.environments.processes.config import HostConfig


class EpisodeConfig(BaseModel):
    """Bounds of episodes, whatever their environment. Their turns are bounded by each
    environment's `max_turns`, and their tokens, given ones included, by
    `sampling.max_response_tokens`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_turn_tokens: int = Field(
        128,
        ge=1,
        description=(
            "Bound on the tokens that a model samples in one turn; what it has said by then is its"
            " action."
        ),
    )
    episode_s: float = Field(
        600.0,
        gt=0,
        description=(
            "Seconds after the first observation from which on an episode begins no further turn;"
            " one that is moved to another engine has them anew."
        ),
    )
    hosts: HostConfig = Field(
        default_factory=HostConfig,
        description="The processes of each engine in which environments step.",
    )
