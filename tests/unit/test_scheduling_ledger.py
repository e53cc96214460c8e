"""Every generated token in one column."""

from __future__ import annotations

from record_factories import make_generated

from artifacts.records import Fate, FinishReason, Generated
from tasks.scheduling.ledger import account_tokens


def response(index: int, num_tokens: int, reason: FinishReason = "stop") -> Generated:
    return make_generated(index=index, token_ids=(1,) * num_tokens, finish_reason=reason)


def test_each_response_is_booked_by_its_fate() -> None:
    generated = [
        response(0, 5),
        response(1, 7, "aborted"),
        response(2, 11, "length"),
        response(3, 2),
    ]
    ledger = account_tokens(
        generated,
        trained={"0/1:0"},
        filtered={"0/1:3"},
        stale_tokens=3,
    )
    assert ledger == {
        Fate.TRAINED: 5,
        Fate.ABORTED: 7,
        Fate.DISCARDED: 11,
        Fate.FILTERED: 2,
        Fate.STALE: 3,
        Fate.EVALUATED: 0,
        Fate.JUDGED: 0,
    }


def test_held_out_answers_are_evaluated_unless_aborted() -> None:
    ledger = account_tokens([response(0, 5), response(1, 7, "aborted")], is_evaluation=True)
    assert (ledger[Fate.EVALUATED], ledger[Fate.ABORTED], sum(ledger.values())) == (5, 7, 12)
