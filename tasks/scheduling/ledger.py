"""The token ledger: every generated token in exactly one column.

Leaves out tokens that nobody saw: those that died with an engine, and those that a load dropped
because the coordinator that had asked for them was dead. Device seconds have a ledger of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Literal

from artifacts.records import Generated

Column = Literal["trained", "aborted", "discarded", "filtered", "stale", "evaluated", "judged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLedger:
    """Generated tokens by what became of them."""

    trained: int = 0  # in a group that was trained
    aborted: int = 0  # in a response stopped half-way
    discarded: int = 0  # in a finished response that no group took
    filtered: int = 0  # in a complete group that was not worth training on
    stale: int = 0  # of another attempt at the round, or of weights that the round does not allow
    evaluated: int = 0  # in an answer to a held-out prompt
    judged: int = 0  # written by a judge model

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def shares(self) -> dict[str, float]:
        """Column by share of the total; all zero for an empty ledger."""
        return {column: tokens / max(self.total, 1) for column, tokens in asdict(self).items()}

    def __add__(self, other: TokenLedger) -> TokenLedger:
        return TokenLedger(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )


def account_tokens(
    generated: Iterable[Generated],
    *,
    trained: Collection[str] = frozenset(),
    filtered: Collection[str] = frozenset(),
    is_evaluation: bool = False,
    stale_tokens: int = 0,
    judged_tokens: int = 0,
) -> TokenLedger:
    """The ledger of a round; `trained` and `filtered` hold response ids. Each record counts once,
    whatever its id."""
    tokens: dict[str, int] = {"stale": stale_tokens, "judged": judged_tokens}
    for response in generated:
        column = column_of(response, trained, filtered, is_evaluation=is_evaluation)
        tokens[column] = tokens.get(column, 0) + len(response.token_ids)
    return TokenLedger(**tokens)


def column_of(
    response: Generated,
    trained: Collection[str],
    filtered: Collection[str] = frozenset(),
    *,
    is_evaluation: bool = False,
) -> Column:
    """The column that a response's tokens are booked in."""
    if response.finish_reason == "aborted":
        return "aborted"
    if is_evaluation:
        return "evaluated"
    if response.response_id in trained:
        return "trained"
    return "filtered" if response.response_id in filtered else "discarded"
