"""A user's own reward: `def reward(prompt: str, response: str, gold: str) -> float`, by import
path.

The function runs in a verify worker, so it may hang or exhaust memory on a response, which then has
no verdict. The function itself is trusted: the worker is no sandbox for generated programs.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.custom_part import ImportPath
from artifacts.fixed_fields import DerivedSeconds
from artifacts.records import Generated, Prompt
from tasks.rewards.base import ProcessReward, Reward, Verdict, infra, paid
from tasks.rewards.verify_worker import (
    DEFAULT_MEMORY_BYTES,
    VerifyWorker,
    WorkerSlow,
    WorkerStartError,
)

FAILURES = {
    "raised": "failed",
    "died": "ended its process",
    "lost": "gave no number, twice (mend it, or raise deadlines.reward_s)",
    "killed": "was killed, twice (most often for want of memory: free some)",
    "timeout": "computed too long (mend it, or raise deadlines.reward_s)",
    "memory": "needs more memory (raise its memory_bytes)",
}


class CustomConfig(FrozenConfig):
    """Call a function of the user's."""

    kind: Literal["custom"] = Field(
        default="custom", description="Chooses a reward function of your own."
    )
    path: ImportPath = Field(
        description=(
            "The function of (prompt, response, gold), as 'package.module:function' or"
            " 'path/to/file.py:function'."
        )
    )
    timeout_s: DerivedSeconds = 60.0  # for one response; asked once more, then there is no verdict
    memory_bytes: int = Field(
        default=DEFAULT_MEMORY_BYTES,
        ge=1 << 28,
        description="Address space of the function's process; raise it to import torch.",
    )
    start_s: DerivedSeconds = 600.0  # to import the function
    environment: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], ...] = Field(
        default=(),
        description=(
            "Names of the environment variables that the function gets (API keys, HF_HOME,"
            " proxies); all others are kept from it. They must be set where the run is started."
        ),
    )

    def build_reward(self) -> Reward:
        """The reward of this configuration."""
        return CustomReward(self)


class CustomReward(ProcessReward):
    """Scores with the number of the user's function: OK if it is positive, else WRONG."""

    def __init__(self, config: CustomConfig) -> None:
        """Start the worker, which imports the user's module. Raises ValueError if the function
        cannot be loaded or a named environment variable is not set."""
        self.name = f"custom:{config.path}"
        self._worker = VerifyWorker(
            config.path,
            timeout_s=config.timeout_s,
            clock="wall",
            memory_bytes=config.memory_bytes,
            stays=True,
            start_s=config.start_s,
            environment=config.environment,
        )
        super().__init__(self._worker)
        missing = [name for name in config.environment if name not in os.environ]
        if missing:
            raise ValueError(
                "environment of a custom reward must name variables that are set, got"
                f" {', '.join(missing)} for {config.path!r}, without a value here; export it before"
                " the run, or take it off the list"
            )
        try:
            self.warm()
        except WorkerSlow as error:
            raise ValueError(
                f"a custom reward must be imported within {config.start_s:g} s, {config.path!r}"
                " was not; raise deadlines.start_s"
            ) from error
        except WorkerStartError as error:
            raise ValueError(
                f"a custom reward must name a function that can be imported, got {config.path!r}"
                f" ({error}); write 'package.module:function' or 'path/to/file.py:function' and"
                " import it in a shell to see the error; if there is none, raise memory_bytes, or"
                " name the variables that it needs in environment"
            ) from error

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """Verdict with the function's number; INFRA if the function stalls, raises, dies or gives
        none."""
        reply = self._worker.call(prompt.text, generated.text, prompt.gold)
        if reply.kind != "value":
            return infra(f"{self.name} {FAILURES[reply.kind]}: {reply.detail}")
        number = int(reply.value) if isinstance(reply.value, bool) else reply.value
        return paid(number, "custom", by=self.name)
