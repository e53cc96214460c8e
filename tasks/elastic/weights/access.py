"""Who may ask a weight server: addresses of the allowed networks that prove to know the run's token
(`request_proof`).

Everybody else is refused, logged and remembered by address, so that the run can say who knocked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import ip_address, ip_network

from artifacts.reports.elastic_workers import DeniedRequest
from tasks.elastic.weights.request_proof import Ask, Proofs, plain_address

logger = logging.getLogger(__name__)

MOST_KNOCKS = 64  # remembered; a stranger must not fill the memory


class Access:
    """The rule and who broke it. Used from the server's event loop alone, read from anywhere."""

    def __init__(self, token: str, allowed_senders: Sequence[str]) -> None:
        """allowed_senders: networks as CIDRs."""
        if not token:
            raise ValueError("the run's token must not be empty, or everybody has it; set one")
        self._proofs = Proofs(token)
        self._networks = tuple(ip_network(network) for network in allowed_senders)
        self._knocks: dict[tuple[str, str], DeniedRequest] = {}

    @property
    def knocks(self) -> tuple[DeniedRequest, ...]:
        """Who was refused, last first; the oldest are forgotten."""
        return tuple(reversed(tuple(self._knocks.values())))

    def barred(self, address: str) -> HTTPStatus | None:
        """The status with which whatever comes from there is refused and remembered, None if it may
        be looked at."""
        if self._is_allowed(address):
            return None
        self._remember(address, "its address is in no network of allowed_senders")
        return HTTPStatus.FORBIDDEN

    def refused(self, ask: Ask, authorization: str | None) -> HTTPStatus | None:
        """The status with which a request is refused and remembered, None if it may pass, once."""
        if authorization is None:
            flaw = "it showed no proof that it knows the token"
        else:
            flaw = self._proofs.flaw(authorization, ask, time.time())
        if not flaw:
            return None
        self._remember(ask.sender, flaw)
        return HTTPStatus.UNAUTHORIZED

    def _is_allowed(self, address: str) -> bool:
        try:
            asking = ip_address(plain_address(address))
        except ValueError:  # no address at all, as of a Unix socket
            return False
        return any(asking in network for network in self._networks)

    def _remember(self, address: str, reason: str) -> None:
        known = self._knocks.pop((address, reason), None)
        count = known.count + 1 if known else 1
        knock = DeniedRequest(address=address, reason=reason, count=count, last_s=time.time())
        self._knocks[address, reason] = knock
        if len(self._knocks) > MOST_KNOCKS:
            self._knocks.pop(next(iter(self._knocks)))
        if count & (count - 1) == 0:  # the first, second, fourth ... time: nobody fills the log
            logger.warning("refused address=%s count=%d: %s", address, count, reason)
