"""Where the trainer serves its weights, and to whom."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from artifacts.urls import NetworkAddress

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


class WeightServerConfig(BaseModel):
    """The HTTP server from which elastic workers pull weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: NetworkAddress = Field(
        "127.0.0.1",
        description="IP address that the weight server binds to; elastic workers must reach it.",
    )
    port: int = Field(0, ge=0, le=65535, description="Port of the weight server; 0 takes any.")
    allowed_senders: Networks = Field(
        LOOPBACK_NETWORKS,
        min_length=1,
        description="Networks (CIDR) whose requests for weights are answered; others are refused.",
    )

    deltas: bool = Field(
        False,
        description=(
            "Send versions as compressed differences to the one before, to who has that: for links"
            " below some 300 MB/s."
        ),
    )

    @field_validator("host")
    @classmethod
    def _is_address(cls, host: str) -> str:
        try:
            ip_address(host)
        except ValueError:
            raise ValueError(
                f"host must be an IP address of this machine, got {host!r}; look it up with `ip"
                " address`"
            ) from None
        return host
