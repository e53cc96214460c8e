"""Rules for runs that take elastic workers, and the server from which these pull weights."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from flows.config.parts import Parts
from tasks.cluster.devices import ClusterConfig
from tasks.cluster.ports import is_loopback
from tasks.elastic.config import ElasticConfig, ElasticWeightsConfig


def check_elastic_workers(config: Parts) -> None:
    """Raise ValueError for a run that elastic workers could not join, or not soundly."""
    if not config.elastic.enabled:
        return
    if not config.weight_check.enabled:
        raise ValueError(
            "elastic.enabled needs weight_check.enabled: this alone shows that the weights which"
            " came to an elastic worker are the learner's; leave weight_check.enabled on"
        )
    if config.environments:
        named = ", ".join(sorted(config.environments))
        raise ValueError(
            "elastic.enabled needs responses of a single turn, got environments for"
            f" {named}: their processes are where the run's own engines are; disable elastic"
            " workers"
        )
    weight_server_of(config.elastic, config.cluster)


def weight_server_of(elastic: ElasticConfig, cluster: ClusterConfig) -> ElasticWeightsConfig | None:
    """Settings of the weight server; None without one. ValueError if no worker could reach it."""
    weights = elastic.weights
    if not elastic.enabled or not _is_wanted(elastic, cluster):
        return None
    host = weights.host or ("" if cluster.scheduler_address else cluster.scheduler_host)
    if not (weights.interface or _is_address(host)):
        raise ValueError(
            "elastic.weights.host must be an IP address of this machine that elastic workers"
            f" reach, got {host!r}; give it, name elastic.weights.interface, or have workers read"
            " the run's paths: elastic.weights.enabled=false"
        )
    only_here = all(ip_network(network).is_loopback for network in weights.allowed_senders)
    if only_here and (weights.interface or not is_loopback(host)):
        here = ", ".join(weights.interface) or f"the address {host}"
        raise ValueError(
            "elastic.weights.allowed_senders must have the networks that elastic workers are in,"
            f" such as 10.1.0.0/16, got {', '.join(weights.allowed_senders)} beside"
            f" {here}: nobody could pull; add them"
        )
    return weights.model_copy(update={"host": host})


def _is_wanted(elastic: ElasticConfig, cluster: ClusterConfig) -> bool:
    """As configured; by default, if other machines can reach the scheduler's address."""
    if elastic.weights.enabled is not None:
        return elastic.weights.enabled
    host = cluster.scheduler_host
    if cluster.scheduler_address:
        host = cluster.scheduler_address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return not is_loopback(host)


def _is_address(host: str) -> bool:
    try:
        return not ip_address(host).is_unspecified
    except ValueError:
        return False
