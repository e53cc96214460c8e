"""Access to a weight server: a request must come from an allowed network and prove that its sender
knows the run's token. The token itself never crosses the wire.

    receiver: signed(token, request, now) ─▶ Authorization: Rollflow-HMAC SENT_S NONCE PROOF
    server:   Access.refused(request, header) ─▶ the status of a refusal, None if it may pass

The proof is an HMAC over the whole request, the sender's address, the time and a nonce. The server
accepts each nonce once, and a proof for PROOF_HOLDS_S. A restarted server has forgotten its nonces;
then only the address and the time limit a replay.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Final

from artifacts.reports.elastic_workers import DeniedRequest

logger = logging.getLogger(__name__)

SCHEME: Final = "Rollflow-HMAC"
PROOF_HOLDS_S: Final = 300.0  # clocks may differ by that; a card's proof holds as long
NONCE_BYTES = 16
MAX_DENIED = 64  # denied requests that are remembered; a stranger must not fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRequest:
    """The parts of a request that its proof covers; client and server see the same values."""

    method: str
    path: str  # as it is in the request's first line
    ranges: str  # the header Range, empty without one
    body: bytes
    sender: str  # IP address that the request comes from


def signed(token: str, request: WeightRequest, now_s: float) -> str:
    """Value of the header Authorization for this request, valid once. now_s: Unix seconds."""
    sent_s, nonce = f"{now_s:.3f}", secrets.token_hex(NONCE_BYTES)
    return f"{SCHEME} {sent_s} {nonce} {_proof(token, request, sent_s, nonce)}"


class Proofs:
    """Checks proofs for one server, and remembers the nonces that were used."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._used: set[str] = set()  # nonces of right proofs, so a stranger cannot add any
        self._ends: deque[tuple[float, str]] = deque()  # when each nonce may be forgotten

    def flaw(self, header: str, request: WeightRequest, now_s: float) -> str:
        """Why this header does not prove that its sender knows the token; empty if it does. The
        reason quotes nothing of the header."""
        scheme, *parts = header.split(" ")
        if scheme != SCHEME or len(parts) != 3:
            return f"it showed no proof of the kind {SCHEME}"
        sent_s, nonce, proof = parts
        right = _proof(self._token, request, sent_s, nonce).encode()
        if not hmac.compare_digest(proof.encode(errors="surrogateescape"), right):
            return "its proof is not of this request and the run's token"
        if not abs(now_s - float(sent_s)) <= PROOF_HOLDS_S:
            return f"its proof is of another time, clocks must agree to {PROOF_HOLDS_S:.0f} s"
        while self._ends and self._ends[0][0] < now_s:  # proofs that old are refused anyway
            self._used.discard(self._ends.popleft()[1])
        if nonce in self._used:
            return "its proof was used before"
        self._used.add(nonce)
        self._ends.append((now_s + 2 * PROOF_HOLDS_S, nonce))
        return ""


def _proof(token: str, request: WeightRequest, sent_s: str, nonce: str) -> str:
    """HMAC-SHA256 of the request, the time and the nonce, in hexadecimal."""
    body = hashlib.sha256(request.body).hexdigest()
    sender = plain_address(request.sender)
    lines = (request.method, request.path, request.ranges, body, sender, sent_s, nonce)
    message = "\n".join(("rollflow weights", *lines)).encode(errors="surrogateescape")
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


def plain_address(address: str) -> str:
    """Normalise an IP address: an IPv4 address that a dual-stack socket shows as IPv6 becomes
    IPv4. Text that is no address is returned unchanged."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)


class Access:
    """Decides on requests to a weight server and remembers the denied ones. Methods are called from
    the server's event loop alone; `denied_requests` may be read from any thread."""

    def __init__(self, token: str, allowed_senders: Sequence[str]) -> None:
        """allowed_senders: networks as CIDRs. Raises ValueError if the token is empty."""
        if not token:
            raise ValueError("the run's token must not be empty, or everybody has it; set one")
        self._proofs = Proofs(token)
        self._networks = tuple(ip_network(network) for network in allowed_senders)
        self._denied: dict[tuple[str, str], DeniedRequest] = {}

    @property
    def denied_requests(self) -> tuple[DeniedRequest, ...]:
        """Unauthorised requests, newest first; the oldest are forgotten."""
        return tuple(reversed(tuple(self._denied.values())))

    def barred(self, address: str) -> HTTPStatus | None:
        """Remember the denial and return 403 if the sender's address is in no allowed network."""
        try:
            sender = ip_address(plain_address(address))
            if any(sender in network for network in self._networks):
                return None
        except ValueError:  # no IP address, as from a Unix socket
            pass
        self._remember(address, "its address is in no network of allowed_senders")
        return HTTPStatus.FORBIDDEN

    def refused(self, request: WeightRequest, authorization: str | None) -> HTTPStatus | None:
        """Remember the denial and return 401 if the proof is wrong. A proof passes once."""
        if authorization is None:
            flaw = "it showed no proof that it knows the token"
        else:
            flaw = self._proofs.flaw(authorization, request, time.time())
        if not flaw:
            return None
        self._remember(request.sender, flaw)
        return HTTPStatus.UNAUTHORIZED

    def _remember(self, address: str, reason: str) -> None:
        known = self._denied.pop((address, reason), None)
        count = known.count + 1 if known else 1
        denied = DeniedRequest(address=address, reason=reason, count=count, last_s=time.time())
        self._denied[address, reason] = denied
        if len(self._denied) > MAX_DENIED:
            self._denied.pop(next(iter(self._denied)))
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, ... time, so that the log stays short
            logger.warning("refused address=%s count=%d: %s", address, count, reason)
