"""The measurement of updates and publications, on two ranks of a tiny model, in processes of their
own."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from artifacts.records import Running, WeightsRef
from artifacts.weights import fingerprints
from research.benchmarks.tiny_architectures import save_tiny
from research.benchmarks.update_and_publication import (
    Parts,
    ServedEngine,
    main,
    measure,
    meet,
    start_learner,
)
from tasks.engines.base import Attestation
from tasks.learner.learner_config import LearnerConfig, Placement

VOCABULARY = 32000  # of the measurement's groups
REPEATS = 2


@dataclass
class Reader:
    """In an engine's place: reads the file of a version and computes nothing."""

    versions: list[int]

    async def call(
        self,
        method: str,
        weights: WeightsRef,
        probes: tuple[tuple[int, ...], ...],
        running: Running,
        deadline_s: float,
    ) -> Attestation:
        self.versions.append(weights.version)
        return Attestation(
            version=weights.version, fingerprints=fingerprints(weights.path), probe_logprobs=None
        )


@pytest.mark.parametrize("parameters", get_args(Placement))
async def test_two_ranks_update_and_publish_wherever_their_parameters_lie(
    tmp_path: Path, parameters: Placement
) -> None:
    config = LearnerConfig(parameters=parameters)
    model = str(save_tiny("llama", tmp_path / "model", VOCABULARY))
    cores = (sorted(os.sched_getaffinity(0)) * 2)[:2]
    parts: Parts = defaultdict(list)
    learners = [start_learner(model, rank, tuple(cores), config, parts) for rank in range(2)]
    for learner in learners:
        await asyncio.to_thread(learner.connection.recv)
    reader = Reader([])
    await measure(
        await meet(learners, tmp_path),
        [ServedEngine(name="reader", served=reader)],  # type: ignore[arg-type]
        tmp_path,
        parts,
        REPEATS,
        ranks_in_step=config.ranks_in_step,
    )
    for learner in learners:
        learner.connection.close()
    assert reader.versions == [1, 2, 3]
    for part in ("update", "publication", "learner-0 accumulate", "learner-1 accumulate"):
        assert len(parts[part]) == REPEATS


def test_shards_of_one_rank_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parameters", "sharded", "--cores", "0"])
    assert "sharded needs two --cores or more, got [0]" in capsys.readouterr().err
