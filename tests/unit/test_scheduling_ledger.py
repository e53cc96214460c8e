"""Every generated token in one column."""

from __future__ import annotations

import pytest

from artifacts.records import FinishReason, Generated, VersionSpan
from tasks.scheduling.ledger import TokenLedger, account_tokens


def response(index: int, num_tokens: int, reason: FinishReason = "stop") -> Generated:
    return Generated(
        prompt_id="0/1",
        index=index,
        token_ids=(1,) * num_tokens,
        logprobs=(-1.0,) * num_tokens,
        versions=(VersionSpan(version=0, num_tokens=num_tokens),),
        finish_reason=reason,
        text="",
        engine="engine-0",
        submitted_s=0.0,
        first_token_s=0.0,
        finished_s=0.0,
    )


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
        judged_tokens=4,
    )
    assert ledger == TokenLedger(trained=5, aborted=7, discarded=11, filtered=2, stale=3, judged=4)
    assert ledger.total == 32
    assert sum(ledger.shares().values()) == pytest.approx(1.0)


def test_held_out_answers_are_evaluated_unless_aborted() -> None:
    ledger = account_tokens([response(0, 5), response(1, 7, "aborted")], is_evaluation=True)
    assert ledger == TokenLedger(evaluated=5, aborted=7)


def test_ledgers_add_up_by_column_and_an_empty_one_has_no_shares() -> None:
    assert TokenLedger(trained=1, aborted=2) + TokenLedger(trained=3) == TokenLedger(
        trained=4, aborted=2
    )
    assert set(TokenLedger().shares().values()) == {0.0}
