"""The token ledger: every token that a model sampled in exactly one column, named by its fate.

Leaves out tokens that were given within an episode, which nobody generated, and tokens that nobody
saw: those that died with an engine, and those that a load dropped because the coordinator that had
asked for them was dead. Tokens that judges write are booked by the reward stage. Device seconds
have a ledger of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from artifacts.records import Fate, Generated


def account_tokens(
    generated: Iterable[Generated],
    *,
    trained: Collection[str] = frozenset(),
    filtered: Collection[str] = frozenset(),
    is_evaluation: bool = False,
    stale_tokens: int = 0,
) -> dict[Fate, int]:
    """Tokens of a round by fate, every column of the ledger among them.

    `trained` and `filtered` hold response ids. Each record counts once, whatever its id; what an
    episode lost when it began again is stale.
    """
    ledger = dict.fromkeys(Fate, 0)
    ledger[Fate.STALE] = stale_tokens
    for response in generated:
        fate = fate_of(response, trained, filtered, is_evaluation=is_evaluation)
        ledger[fate] += response.num_sampled
        ledger[Fate.STALE] += response.num_forgotten
    return ledger


def fate_of(
    response: Generated,
    trained: Collection[str],
    filtered: Collection[str] = frozenset(),
    *,
    is_evaluation: bool = False,
) -> Fate:
    """The column that a response's tokens are booked in."""
    if response.finish_reason == "aborted":
        return Fate.ABORTED
    if is_evaluation:
        return Fate.EVALUATED
    if response.response_id in trained:
        return Fate.TRAINED
    return Fate.FILTERED if response.response_id in filtered else Fate.DISCARDED
