"""Gets verdicts from an external service over HTTP, such as a judge or a farm that executes
programs.

    POST url  {"response_id", "domain", "prompt", "response", "gold"}  ──▶  {"reward": 0.5}

Waiting costs no processor time, so `reward_workers` may be as large as the number of requests that
the service answers in parallel. When a round is decided, its open requests are closed, except those
whose verdicts the next round needs.
"""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field

from artifacts.config_parts import TokenPlace
from artifacts.fixed_fields import DerivedSeconds
from artifacts.records import Generated, Prompt
from artifacts.urls import ServiceUrl
from tasks.rewards.base import ProcessReward, Reward, ScorerProcess, Verdict, infra, paid


class ServiceConfig(TokenPlace):
    """Ask a service over HTTP."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["service"] = Field(
        "service", description="Chooses a service that gives verdicts over HTTP."
    )
    url: ServiceUrl = Field(
        pattern=r"^https?://[^/]+",
        description=(
            "Where it is asked, by POST of a JSON object with response_id, domain, prompt, response"
            " and gold; it replies with a JSON object that has a number 'reward'."
        ),
    )
    timeout_s: DerivedSeconds = 60.0  # for one response

    def build_reward(self) -> Reward:
        """The reward of this configuration; ValueError if the service's token is unreadable."""
        return ServiceReward(self)


class ServiceReward(ProcessReward):
    """Scores with the number in the service's reply: OK if it is positive, else WRONG."""

    def __init__(self, config: ServiceConfig) -> None:
        self.name = f"service:{config.url}"
        self._config = config
        self._headers = {"Content-Type": "application/json", **config.authorization()}
        super().__init__(ScorerProcess())  # whose interrupt ends a wait for the service

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """Ask the service; returns a verdict with its number, or INFRA with the reason if there is
        none. Raises Interrupted soon after the interrupt is set."""
        try:
            reply = self._request(prompt, generated)
        except (OSError, HTTPException, ValueError) as error:
            return infra(f"{self.name} gave no verdict: {type(error).__name__}: {error}")
        if not isinstance(reply, dict) or "reward" not in reply:
            return infra(
                f"{self.name} must reply with an object that has a 'reward', got {reply!r}"
            )
        return paid(reply["reward"], "service", by=self.name)

    def _request(self, prompt: Prompt, generated: Generated) -> object:
        body = {
            "response_id": generated.response_id,
            "domain": prompt.domain,
            "prompt": prompt.text,
            "response": generated.text,
            "gold": prompt.gold,
        }
        place, limit_s = urlsplit(self._config.url), self._config.timeout_s
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        deadline_s = time.monotonic() + limit_s
        connection = kind(place.hostname or "", place.port, timeout=limit_s)
        path = f"{place.path or '/'}{'?' + place.query if place.query else ''}"
        try:
            connection.request("POST", path, json.dumps(body), self._headers)
            if not self.interrupt.wait(connection.sock.fileno(), deadline_s - time.monotonic()):
                raise TimeoutError(f"no reply after {limit_s:g} s (raise deadlines.reward_s)")
            reply = connection.getresponse()
            content = reply.read()
            if reply.status != 200:
                raise HTTPException(f"status {reply.status} {reply.reason}")
            return json.loads(content)
        finally:
            connection.close()
