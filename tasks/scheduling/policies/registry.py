"""Every scheduling policy that a configuration may choose, a line each."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import BaseModel, Field

from tasks.scheduling.policies.asynchronous import AsynchronousConfig
from tasks.scheduling.policies.multilevel import MultilevelBatchingConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.scheduling.policies.tail_batching import TailBatchingConfig

SchedulingConfig = Annotated[
    SyncConfig  # every step waits for all that it launched
    | AsynchronousConfig  # rounds that overlap the training of earlier steps
    | MultilevelBatchingConfig  # tail batching with a queue for each level of length
    | TailBatchingConfig,  # short rounds that keep the first to finish, long ones for the rest
    Field(discriminator="kind"),
]
POLICIES: tuple[type[BaseModel], ...] = get_args(get_args(SchedulingConfig)[0])
