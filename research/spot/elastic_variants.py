"""What a trainer with workers does beside seeding: nothing more, as published, or parts of
RollPacker on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from research.ablations.policies import policy_of
from research.spot.elastic_shapes import MAX_BATCH
from tasks.scheduling.stream_training import StreamTrainerConfig

AS_PUBLISHED = "polyrl"
# engines of the own devices are full at the beginning of a step, so that fewer may be, too
STREAMS = StreamTrainerConfig(enabled=True, max_running_per_engine=MAX_BATCH)
TAIL_BATCHING = policy_of({"kind": "tail_batching"})
# fields of ElasticRun, whose rounds are synchronous ones by default; Any: their values
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    AS_PUBLISHED: {},
    "stream_trainer": {"stream_trainer": STREAMS},
    "tail_batching": {"policy": TAIL_BATCHING},
    "both": {"policy": TAIL_BATCHING, "stream_trainer": STREAMS},
    "both_by_kind": {
        "policy": TAIL_BATCHING,
        "stream_trainer": STREAMS,
        "windows_by_kind": True,
    },
}
