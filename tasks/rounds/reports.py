"""What running responses of a round have said so far, as their engines tell it, and what is lost
when an engine goes. Pure.

    an engine tells ─▶ keep(request, new tokens) ─▶ what is to be written down
    an engine is lost ─▶ lose(requests) ─▶ the responses as far as they were told
    a response is over ─▶ forget(id)

How many tokens die with an engine nobody can say: they are in its memory alone. What can be known
is a bound. An engine tells of all its responses at a time, after so many of its steps
(`report_tokens`), and a step gives a response one token at most: so each loses at most that many,
and no more than it had left to its own bound. Of an engine that lives on behind a broken link this
bounds what it had not told when the link broke; what it makes unheard after that nobody counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from artifacts.new_tokens import NewTokens, PartialResponse
from artifacts.records import Generated, Request


class Reports:
    """Keeps what engines tell of the responses of one round."""

    def __init__(self, report_tokens: int) -> None:
        """report_tokens: steps between two reports of an engine; 0 where none tells anything."""
        self.num_interrupted = 0  # responses that ran on an engine when it was lost
        self.interrupted: list[str] = []  # these engines
        # the most tokens that each of them lost; of an engine that tells nothing nobody knows
        self.lost_tokens_bounds: list[int] = []
        self._report_tokens = report_tokens
        self._reported: dict[str, PartialResponse] = {}

    def keep(self, request: Request, new: NewTokens) -> NewTokens | None:
        """Keep new tokens of what was asked for in this request. Returns what there is to write
        down: with the first of them all that the response has; None for tokens that do not follow
        on what is known."""
        known = self._reported.get(new.response_id)
        if known is not None:
            return new if known.extend(new) else None
        first = new.from_start(request)
        if first is not None:
            self._reported[new.response_id] = PartialResponse(first)
        return first

    def forget(self, response_id: str) -> None:
        """The response is over on its engine, which has handed over all of it."""
        self._reported.pop(response_id, None)

    def lose(self, engine: str, requests: Iterable[Request]) -> list[Generated]:
        """These went with their engine; those of them that it had told of, as far as it had."""
        told: list[Generated] = []
        for request in requests:
            reported = self._reported.pop(request.response_id, None)
            told += [reported.generated()] if reported is not None else []
            num_told = len(told[-1].token_ids) if reported is not None else len(request.kept_tokens)
            self.num_interrupted += 1
            self.interrupted += [] if engine in self.interrupted else [engine]
            if self._report_tokens:
                most = min(self._report_tokens, request.max_new_tokens - num_told)
                self.lost_tokens_bounds.append(max(0, most))
        return told
