"""Whether a run takes engines that it did not start, and which."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from artifacts.urls import Location, NetworkAddress
from tasks.elastic.weights.weight_config import LOOPBACK_NETWORKS, Networks
from tasks.elastic.worker_limits import Limits


class ElasticWeightsConfig(BaseModel):
    """Weights over HTTP, for elastic workers that cannot read the run's own paths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class ElasticConfig(BaseModel):
    """Rollout engines on workers that join and leave while the run goes on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    pull_s: float = Field(
        600.0,
        gt=0,
        description="Bound on each pull of a worker, of the model's folder or of weights, seconds.",
    )
    build_s: float = Field(
        600.0,
        gt=0,
        description="Bound on building a worker's engine once the model is there, seconds.",
    )
    load_s: float = Field(
        300.0,
        gt=0,
        description="Bound on each load of weights into a worker's engine, with the gate, seconds.",
    )
    weights: ElasticWeightsConfig = Field(
        default_factory=ElasticWeightsConfig,
        description="How weights come to elastic workers that do not see the run's files.",
    )

    @property
    def limits(self) -> Limits:
        """How long an elastic worker may take until it holds weights."""
        return Limits(pull_s=self.pull_s, build_s=self.build_s, load_s=self.load_s)
