"""Settings of elastic workers, and the time limits of the four steps by which a worker gets ready.

pull the model ─▶ build the engine ─▶ pull a version ─▶ load it, with the weight check
pull_s            build_s             pull_s            load_s
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import DerivedSeconds
from artifacts.urls import Location, NetworkAddress
from tasks.cluster.ports import address_on

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")


def _networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in networks:
        try:
            ip_network(network)
        except ValueError as error:
            raise ValueError(
                f"allowed_senders must be networks such as 10.1.0.0/16, got {network!r}"
                f" ({error}); correct it"
            ) from None
    return networks


Networks = Annotated[tuple[NetworkAddress, ...], AfterValidator(_networks)]  # as CIDRs
Limit = Literal["pull_s", "build_s", "load_s"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
CURES: dict[Limit, str] = {
    "pull_s": "raise it, or give the elastic worker a faster link",
    "build_s": "raise it, or give the elastic worker a faster disk and processor",
    "load_s": "raise it, or give the elastic worker less to do besides",
}
TABLE: dict[Limit, str] = {  # the settings that the limits follow from
    "pull_s": "twice deadlines.weights_s",
    "build_s": "deadlines.start_s",
    "load_s": "deadlines.weights_s",
}
MARGIN_S = 10.0  # a pull ends by itself so much earlier than its caller gives up


class LimitMissed(RuntimeError):
    """An elastic worker missed a limit. After a TimeoutError callers would poll on."""

    def __init__(self, limit: Limit, sentence: str) -> None:
        super().__init__(limit, sentence)
        self.limit = limit

    def __str__(self) -> str:
        return str(self.args[1])


class ElasticWeightsConfig(FrozenConfig):
    """Weights over HTTP, for elastic workers that cannot read the run's own paths."""

    enabled: bool | None = Field(
        None,
        description=(
            "Elastic workers pull the model and the weights over HTTP; else they read the run's"
            " own paths. Empty pulls where the scheduler listens on an address that other machines"
            " reach."
        ),
    )
    host: NetworkAddress = Field(
        "",
        description=(
            "IP address of this machine from which elastic workers pull; empty takes the"
            " scheduler's, of a cluster that the run starts."
        ),
    )
    interface: tuple[str, ...] = Field(
        (),
        description=(
            "Network interfaces of this machine from which elastic workers pull, instead of"
            " elastic.weights.host: the one to use first (ib0, eth0). A worker that it does not"
            " answer takes the next."
        ),
    )
    port: int = Field(0, ge=0, le=65535, description="Port of that; 0 takes any.")
    allowed_senders: Networks = Field(
        LOOPBACK_NETWORKS,
        min_length=1,
        description="Networks (CIDR) that elastic workers are in; nobody else gets weights.",
    )
    deltas: bool = Field(
        False,
        description=(
            "Send versions as compressed differences to the one before, to who has that: for links"
            " below some 300 MB/s."
        ),
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        """IP addresses to listen on, best first. Raises ValueError for an interface that this
        machine lacks."""
        return tuple(map(address_on, self.interface)) or (self.host,)


class ElasticConfig(FrozenConfig):
    """Rollout engines on workers that join and leave while the run goes on."""

    enabled: bool = Field(
        False,
        description=(
            "Take workers that join with 'rollflow worker', and have them generate. What joins the"
            " scheduler may run any code there: let nobody reach it whom you do not trust."
        ),
    )
    token_file: Location = Field(
        "",
        description=(
            "File with the secret that a worker must know, too; empty takes that of the environment"
            " variable ROLLFLOW_ELASTIC_TOKEN, and without it admits whoever reaches the scheduler."
        ),
    )
    max_workers: int = Field(16, ge=1, description="Elastic workers at once; more are refused.")
    max_running_per_worker: int | None = Field(
        None,
        ge=1,
        description="Requests that an elastic worker gets at a time; empty for any number.",
    )
    lease_s: float = Field(
        60.0,
        gt=0,
        description=(
            "An elastic worker that says nothing and answers nothing for so long is gone, seconds;"
            " it says that it is there four times as often."
        ),
    )
    pull_s: DerivedSeconds = 600.0  # for each pull of a worker, of the model or of weights
    build_s: DerivedSeconds = 600.0  # to build a worker's engine once the model is there
    load_s: DerivedSeconds = 300.0  # for each load into its engine, with the weight check
    weights: ElasticWeightsConfig = Field(
        default_factory=ElasticWeightsConfig,
        description="How weights come to elastic workers that do not see the run's files.",
    )

    @property
    def ready_s(self) -> float:
        """Longest time until an elastic worker holds a version, seconds: pull the model, build, and
        pull and load two versions, as a newer one may be published during the first load."""
        return self.build_s + 3 * (self.pull_s + MARGIN_S) + 2 * self.load_s

    @contextmanager
    def bound(self, limit: Limit, action: str) -> Iterator[None]:
        """Turn a TimeoutError of the block, or an error caused by one, into LimitMissed. action:
        text for the message, the elastic worker's name and the step it takes."""
        try:
            yield
        except LimitMissed:  # another one, within this
            raise
        except Exception as error:
            if not any(isinstance(each, TimeoutError) for each in (error, error.__cause__)):
                raise
            limit_s: float = getattr(self, limit)
            sentence = f"{action} must take {limit_s:g} s ({TABLE[limit]}) at most"
            raise LimitMissed(limit, f"{sentence}, it took longer; {CURES[limit]}") from error
