"""What makes an engine play a run's episodes: the recipe that its process is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from artifacts.datasets.rows import Message
from artifacts.turn_log import TurnLog
from tasks.engines.base import Replica
from tasks.environments.base import EnvironmentHosts
from tasks.environments.choice import EnvironmentConfig
from tasks.environments.episodes.bridge import Bridge, read_bridge
from tasks.environments.episodes.episode_config import EpisodeConfig
from tasks.environments.episodes.episode_replica import EpisodeReplica
from tasks.environments.hosts.pool import HostPool
from tasks.environments.hosts.remote_hosts import RemoteHosts
from tasks.environments.hosts.status_board import ReportingHosts
from tasks.environments.tools.tool_hosts import ToolHosts
from tasks.isolation.isolation import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlayer:
    """Called with the replica that a process has built, it gives the one that callers see."""

    environments: Mapping[str, EnvironmentConfig]  # by domain
    config: EpisodeConfig
    model_path: str  # Hugging Face directory, for its chat template
    max_model_len: int  # of the engine
    run_id: str
    workers: tuple[str, ...] = ()  # of the role environment; none: the processes are the engine's
    turns_folder: Path | None = None  # where running episodes are kept; None where they are not

    def __call__(self, inner: Replica) -> Replica:
        return EpisodeReplica(
            inner,
            ToolHosts(self._hosts(inner.name), Isolation(self.config.hosts.isolation)),
            self.environments,
            {
                domain: bridge_of(self.model_path, settings.head())
                for domain, settings in self.environments.items()
            },
            self.config,
            self.max_model_len,
            log=TurnLog(self.turns_folder, inner.name) if self.turns_folder is not None else None,
        )

    def _hosts(self, engine: str) -> EnvironmentHosts:
        hosts = self.config.hosts
        if self.workers:
            return RemoteHosts.of(self.run_id, engine, self.workers, hosts)
        return ReportingHosts(HostPool(hosts, self.environments.values()), self.run_id, engine)


@lru_cache(maxsize=16)
def bridge_of(model_path: str, head: tuple[Message, ...]) -> Bridge:
    """The bridge of a model and an environment's head; made once per process. ValueError for a
    model that cannot play episodes."""
    return read_bridge(model_path, head)
