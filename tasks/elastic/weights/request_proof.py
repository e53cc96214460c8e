"""How a request for weights proves that who sends it knows the run's token, which itself never
crosses the wire. Both sides.

    receiver: signed(token, ask, now) ─▶ Authorization: Rollflow-HMAC TOLD_S NONCE PROOF
    server:   Proofs(token).flaw(header, ask, now) ─▶ why it is no proof, empty if it is one

The proof is an HMAC over all that the request asks, the address that it comes from, the time and a
nonce. Who reads it on the way has a request that this server answers to nobody a second time, that
counts from no other address, and after PROOF_HOLDS_S nowhere. A server that was started anew has
forgotten what it answered: there the address and the time alone bound a replay.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

SCHEME: Final = "Rollflow-HMAC"
PROOF_HOLDS_S: Final = 300.0  # clocks may differ by that, as those of a card
NONCE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """All that a request asks for, as both sides see it."""

    method: str
    path: str  # as it is in the request's first line
    ranges: str  # the header Range, empty without one
    body: bytes
    sender: str  # IP address that it comes from


def signed(token: str, ask: Ask, now_s: float) -> str:
    """The header Authorization of this request, good once."""
    told_s, nonce = f"{now_s:.3f}", secrets.token_hex(NONCE_BYTES)
    return f"{SCHEME} {told_s} {nonce} {_proof(token, ask, told_s, nonce)}"


class Proofs:
    """The proofs that one server has seen."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._used: set[str] = set()  # nonces; only who knows the token adds to them
        self._ends: deque[tuple[float, str]] = deque()  # when each may be forgotten

    def flaw(self, header: str, ask: Ask, now_s: float) -> str:
        """Why this header does not prove that its sender knows the token, in words that repeat
        nothing of it; empty if it does."""
        scheme, *told = header.split(" ")
        if scheme != SCHEME or len(told) != 3:
            return f"it showed no proof of the kind {SCHEME}"
        told_s, nonce, proof = told
        right = _proof(self._token, ask, told_s, nonce).encode()
        if not hmac.compare_digest(proof.encode(errors="surrogateescape"), right):
            return "its proof is not of this request and the run's token"
        if not abs(now_s - float(told_s)) <= PROOF_HOLDS_S:
            return f"its proof is of another time, clocks must agree to {PROOF_HOLDS_S:.0f} s"
        self._forget(now_s)
        if nonce in self._used:
            return "its proof was used before"
        self._used.add(nonce)
        self._ends.append((now_s + 2 * PROOF_HOLDS_S, nonce))
        return ""

    def _forget(self, now_s: float) -> None:
        """Nonces whose time is over: their proofs are refused for that."""
        while self._ends and self._ends[0][0] < now_s:
            self._used.discard(self._ends.popleft()[1])


def _proof(token: str, ask: Ask, told_s: str, nonce: str) -> str:
    """An HMAC in hexadecimal."""
    body = hashlib.sha256(ask.body).hexdigest()
    lines = (ask.method, ask.path, ask.ranges, body, plain_address(ask.sender), told_s, nonce)
    said = "\n".join(("rollflow weights", *lines)).encode(errors="surrogateescape")
    return hmac.new(token.encode(), said, hashlib.sha256).hexdigest()


def plain_address(address: str) -> str:
    """An IP address in one spelling: as IPv4 where a socket of both kinds shows that as IPv6. What
    is none stays as it is."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)
