"""What a run that takes guests must have besides, and where these get their weights."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from flows.config.parts import Parts
from tasks.cluster.devices import ClusterConfig
from tasks.cluster.ports import Wish, is_loopback
from tasks.elastic.config import ElasticConfig
from tasks.elastic.weights.weight_config import WeightServerConfig


def check_guests(config: Parts) -> None:
    """ValueError for guests that nobody could trust or that could not answer."""
    if not config.guests.enabled:
        return
    if not config.gate.enabled:
        raise ValueError(
            "guests.enabled needs gate.enabled: the gate alone shows that the weights which came to"
            " a guest are the learner's; leave gate.enabled on"
        )
    if config.environments:
        named = ", ".join(sorted(config.environments))
        raise ValueError(
            "guests.enabled needs responses of a single turn, got environments for"
            f" {named}: their processes are where the run's own engines are; disable guests"
        )
    weight_server_of(config.guests, config.cluster)


def weight_server_of(guests: ElasticConfig, cluster: ClusterConfig) -> WeightServerConfig | None:
    """Where guests pull weights; None where they read the run's own paths. ValueError where nobody
    could pull."""
    weights = guests.weights
    if not guests.enabled or not _is_wanted(guests, cluster):
        return None
    host = weights.host or ("" if cluster.scheduler_address else cluster.scheduler_host)
    if not _is_address(host):
        raise ValueError(
            "guests.weights.host must be an IP address of this machine that guests reach, got"
            f" {host!r}; give it, or have guests read the run's paths: guests.weights.enabled=false"
        )
    only_here = all(ip_network(network).is_loopback for network in weights.allowed_senders)
    if only_here and not is_loopback(host):
        raise ValueError(
            "guests.weights.allowed_senders must have the networks that guests are in, such as"
            f" 10.1.0.0/16, got {', '.join(weights.allowed_senders)} beside the address {host}:"
            " nobody could pull; add them"
        )
    return WeightServerConfig(
        host=host,
        port=weights.port,
        allowed_senders=weights.allowed_senders,
        deltas=weights.deltas,
    )


def wish_of_weights(guests: ElasticConfig, server: WeightServerConfig) -> Wish:
    """The port of the run's weight server."""
    return Wish(
        what="the weight server",
        port=server.port,
        is_named="port" in guests.weights.model_fields_set,
        cure="in guests.weights.port",
        host=server.host,
    )


def _is_wanted(guests: ElasticConfig, cluster: ClusterConfig) -> bool:
    """As configured, else where the scheduler's address is one for other machines."""
    if guests.weights.enabled is not None:
        return guests.weights.enabled
    host = cluster.scheduler_host
    if cluster.scheduler_address:
        host = cluster.scheduler_address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return not is_loopback(host)


def _is_address(host: str) -> bool:
    """Whether it is the address of a machine, and not of all that it has."""
    try:
        return not ip_address(host).is_unspecified
    except ValueError:
        return False
