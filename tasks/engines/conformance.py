"""Checks that an engine keeps the protocol of `tasks.engines.base`, with random requests.

    load 1 ─▶ submit ... collect ─▶ again, shuffled ─▶ submit, abort ─▶ submit, load 2 ─▶ close

Leaves out what a model says, and the weights themselves: the weight check of a run compares those.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from enum import StrEnum

from artifacts.conformance import RuleBroken, RuleCheck, RuleFindings, shown
from artifacts.records import Generated, Request, WeightsRef
from tasks.engines.base import EngineLost, Replica

WAIT_S = 0.2  # of a call of collect
QUIET_S = 0.6  # in which nothing may come from an engine that has nothing to do
DEADLINE_S = 60.0  # for all responses of a rule
NUM_REQUESTS = 12


class EngineRule(StrEnum):
    """The rules, in the order in which they are reported."""

    LOADS = "load_weights attests the version that it was asked for"
    ANSWERS = "every request is answered once, with its own ids"
    TOKENS = "every token has a log-probability and the loaded version"
    BOUNDS = "no response is longer than max_new_tokens, and says how it ended"
    SEEDS = "a request with the same seed is answered alike, in any order and batch"
    ABORTS = "an aborted response comes once, the others are not touched"
    DROPS = "a load that drops ends what runs, and later responses have its version"
    STATS = "an idle engine has no progress"
    CLOSES = "calls of a closed engine raise EngineLost"


def check_engine(engine: Replica, *, weights_path: str, vocabulary: int) -> tuple[RuleCheck, ...]:
    """Ask the engine, and close it. weights_path: a file of weights that the engine can load; empty
    for none. vocabulary: requests have token ids from 4 up to below this."""
    findings = RuleFindings(EngineRule)
    suite = _Suite(engine, weights_path, vocabulary, findings)
    asyncio.run(suite.play())
    return findings.checks


class _Suite:
    def __init__(
        self, engine: Replica, weights_path: str, vocabulary: int, findings: RuleFindings
    ) -> None:
        self._engine, self._findings = engine, findings
        self._weights_path, self._vocabulary = weights_path, vocabulary
        self._rng = random.Random(0)

    async def play(self) -> None:
        trying = self._findings.trying
        try:
            with trying(EngineRule.LOADS):
                await self._load(1)
            if self._findings.is_broken(EngineRule.LOADS):
                return
            requests = self._requests("a", 10)
            first = list[Generated]()
            with trying(EngineRule.ANSWERS):
                first = await self._answers(requests)
            if self._findings.is_broken(EngineRule.ANSWERS):
                return
            self._check_responses(requests, first, 1)
            with trying(EngineRule.SEEDS):
                await self._check_seeds(requests, first)
            with trying(EngineRule.ABORTS):
                await self._check_aborts()
            with trying(EngineRule.DROPS):
                await self._check_drop()
            with trying(EngineRule.STATS):
                if progress := (await self._engine.stats()).progress:
                    raise RuleBroken(
                        f"stats().progress must be empty when nothing runs, got {shown(progress)};"
                        " forget what has ended"
                    )
        finally:
            with trying(EngineRule.CLOSES):
                self._engine.close()
                await self._check_closed()

    def _requests(self, prefix: str, max_new_tokens: int) -> list[Request]:
        rng = self._rng
        return [
            Request(
                prompt_id=f"{prefix}/{place // 3}",
                index=place % 3,
                prompt_tokens=tuple(
                    rng.randrange(4, self._vocabulary) for _ in range(rng.randint(2, 9))
                ),
                max_new_tokens=rng.randint(2, max_new_tokens),
                temperature=1.0,
                top_p=1.0,
                seed=rng.getrandbits(31),
            )
            for place in range(NUM_REQUESTS)
        ]

    async def _load(self, version: int) -> None:
        weights = WeightsRef(version=version, path=self._weights_path, digest="")
        found = await self._engine.load_weights(weights, probes=())
        if found.version != version:
            raise RuleBroken(
                f"load_weights must attest version {version}, got {found.version}; return"
                " Attestation(version=weights.version, ...)"
            )

    async def _collected(self, names: set[str], quiet_s: float = 0.0) -> list[Generated]:
        """Collect until all these responses have come, and for quiet_s seconds more."""
        found, until_s = list[Generated](), time.monotonic() + DEADLINE_S
        while missing := names - {response.response_id for response in found}:
            if time.monotonic() > until_s:
                raise RuleBroken(
                    f"every request must be answered, {sorted(missing)} were not within"
                    f" {DEADLINE_S:g} s; hand them over by collect"
                )
            found += await self._news()
        until_s = time.monotonic() + quiet_s
        while time.monotonic() < until_s:
            found += await self._news()
        return found

    async def _news(self) -> list[Generated]:
        news = await asyncio.wait_for(self._engine.collect(WAIT_S), DEADLINE_S)
        return [each for each in news if isinstance(each, Generated)]

    async def _answers(self, requests: Sequence[Request]) -> list[Generated]:
        await self._engine.submit(requests)
        names = {request.response_id for request in requests}
        found = await self._collected(names, quiet_s=QUIET_S)
        came = sorted(response.response_id for response in found)
        if came != sorted(names):
            raise RuleBroken(
                f"every request must be answered once under its own ids, got {shown(came)}; copy"
                " prompt_id, index and attempt from the request"
            )
        return found

    def _check_responses(
        self, requests: Sequence[Request], found: Sequence[Generated], version: int
    ) -> None:
        asked = {request.response_id: request for request in requests}
        for response in found:
            with self._findings.trying(EngineRule.TOKENS):
                counts = (
                    len(response.token_ids),
                    len(response.logprobs),
                    sum(span.num_tokens for span in response.versions),
                )
                versions = {span.version for span in response.versions}
                if (
                    len(set(counts)) > 1
                    or versions - {version}
                    or max(response.logprobs, default=0) > 0
                ):
                    raise RuleBroken(
                        f"tokens, log-probabilities and versions must be as many, got {counts};"
                        f" versions must be {version}, got {sorted(versions)}; log-probabilities at"
                        " most 0"
                    )
            with self._findings.trying(EngineRule.BOUNDS):
                most = asked[response.response_id].max_new_tokens
                num_tokens = len(response.token_ids)
                is_told = response.finish_reason in ("stop", "length")
                if num_tokens > most or not is_told:
                    raise RuleBroken(
                        f"a response must have at most {most} tokens and end by 'stop' or 'length',"
                        f" got {num_tokens} and {response.finish_reason!r}; cut it there"
                    )

    async def _check_seeds(self, requests: Sequence[Request], first: Sequence[Generated]) -> None:
        before = {response.response_id: response.token_ids for response in first}
        for response in await self._answers(self._rng.sample(requests, len(requests))):
            if response.token_ids != before[response.response_id]:
                raise RuleBroken(
                    "a request with the same seed must be answered alike, got"
                    f" {shown(response.token_ids)} after {shown(before[response.response_id])};"
                    " draw the noise of a token from request.seed and its position alone"
                )

    async def _check_aborts(self) -> None:
        requests = self._requests("b", 200)
        names = [request.response_id for request in requests]
        await self._engine.submit(requests)
        await self._engine.abort([*names[::2], "no/such/response"])
        found = await self._collected(set(names), quiet_s=QUIET_S)
        reasons = {response.response_id: response.finish_reason for response in found}
        touched = [name for name in names[1::2] if reasons[name] == "aborted"]
        if len(found) != len(names) or touched:
            raise RuleBroken(
                f"each response must come once, and only aborted ones end so: got {len(found)} for"
                f" {len(names)} requests, {touched} were aborted unasked; stop those ids alone"
            )

    async def _check_drop(self) -> None:
        await self._engine.submit(self._requests("c", 200))
        await self._load(2)
        requests = self._requests("d", 10)
        found = await self._answers(requests)  # refuses responses of the dropped requests, too
        if {span.version for response in found for span in response.versions} - {2}:
            raise RuleBroken(
                "responses after load_weights must have the loaded version 2, some have another;"
                " take it from weights.version"
            )

    async def _check_closed(self) -> None:
        with contextlib.suppress(EngineLost):
            await asyncio.wait_for(self._engine.stats(), DEADLINE_S)
            raise RuleBroken("a closed engine must raise EngineLost, stats() answered; raise it")
