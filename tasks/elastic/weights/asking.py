"""What a receiver tells a weight server about itself, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated

from pydantic import Field, TypeAdapter

MOST_FAILED = 256  # addresses that a receiver reports at once


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReader:
    """Who asks for a version's bytes or has them all."""

    receiver: Annotated[str, Field(min_length=1, max_length=200)]  # its name within the run
    # where it serves the version on, at the address that it asks from; None if it does not
    port: Annotated[int, Field(gt=0, le=65535)] | None = None
    # addresses of peers that did not serve it
    failed: Annotated[tuple[str, ...], Field(max_length=MOST_FAILED)] = ()


_ASKED = TypeAdapter(VersionReader)


def asked_from(sent: bytes) -> VersionReader:
    """What was sent. Raises ValueError on anything else."""
    return _ASKED.validate_json(sent)


def as_json(asked: VersionReader) -> bytes:
    """As it is sent."""
    return _ASKED.dump_json(asked)


def origin_url(address: str, port: int) -> str:
    """Where a server at this address and port is asked."""
    is_v6 = ip_address(address).version == 6
    return f"http://[{address}]:{port}" if is_v6 else f"http://{address}:{port}"
