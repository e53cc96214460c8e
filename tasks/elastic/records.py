"""What is known of elastic workers on either side: of the run, for whoever builds their engines; of
them, for rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.elastic.config import ElasticConfig
from tasks.engines.registry import EngineConfig
from tasks.learner.weight_check import WeightCheckConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RunForWorkers:
    """The run, as far as the engines of its elastic workers are built and checked by it."""

    run_id: str  # its folder under the artifact root
    model_path: str  # where the run has the model
    engine: EngineConfig  # the rollout engines
    seed: int
    gate: WeightCheckConfig  # the comparison after every load
    probes: tuple[tuple[int, ...], ...]  # what the gate asks; empty switches it off
    elastic: ElasticConfig  # how long each part may take, and how many there may be


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNotice:
    """What rounds are told of an elastic worker."""

    name: str  # of its engine
    kind: Literal["joined", "leaving", "gone"]
    version: int = -1  # weights that it holds; told where it joined, like its devices
    devices: tuple[str, ...] = ()  # that it works on
    reason: str = ""  # why it is gone
