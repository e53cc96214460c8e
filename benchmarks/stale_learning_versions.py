"""Which weight version samples a step at a constant lag, and the files of those that some later
step samples with."""

from __future__ import annotations

import shutil
from pathlib import Path

from artifacts.records import WeightsRef
from tasks.learner.remote import RemoteLearner


def due_version(step: int, lag: int) -> int:
    """The weight version that samples a step: the oldest that a bound of `lag` versions allows."""
    return max(0, step - 1 - lag)


class KeptVersions:
    """The learner's versions that some later step samples with."""

    def __init__(self, learner: RemoteLearner, directory: Path, lag: int) -> None:
        self._learner, self._directory, self._lag = learner, directory, lag
        self._kept: dict[int, WeightsRef] = {}

    async def keep(self, version: int) -> None:
        """Write what the learner has now, and drop what no later step can ask for."""
        # a folder each: in one the learner writes over the version before the last
        weights = await self._learner.export_weights(str(self._directory / str(version)))
        assert weights is not None, "the only rank writes"
        self._kept[version] = weights
        for old in [old for old in self._kept if old < due_version(version + 1, self._lag)]:
            shutil.rmtree(self._directory / str(old))
            del self._kept[old]

    def __getitem__(self, version: int) -> WeightsRef:
        return self._kept[version]
