"""Drafts shorten a token's decoding where few sequences decode, and are left out elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasks.engines.simulation.pace import Pace
from tasks.engines.simulation.replica import SimulatedEngineConfig

PLAIN = Pace(
    step_s=0.004,
    step_s_per_sequence=0.0001,
    prefill_s_per_token=0.0001,
    max_batch=512,
    kv_tokens=400_000,
    step_s_per_kv_token=1e-8,
    weights_s=0.006,
    matrix_s_per_token=0.00005,
    chunk_tokens=8192,
)
DRAFTED = replace(PLAIN, draft_tokens=3, draft_yield=2.0)
BATCHES = (1, 4, 16, 64, 256)


def test_a_sequence_alone_pays_for_what_is_verified_and_gains_what_it_yields() -> None:
    verified_s = 0.004 + 3 * 0.0001 + 0.006 + 1e-8 * 1000
    assert DRAFTED.steps_s(1, 1, 1000, 0) == pytest.approx(verified_s / 2)


@pytest.mark.parametrize("batch", BATCHES)
def test_a_token_never_takes_longer_with_drafts_than_without(batch: int) -> None:
    for kv_tokens in (0.0, 1e5):
        assert DRAFTED.steps_s(7, batch, kv_tokens, 0) <= PLAIN.steps_s(7, batch, kv_tokens, 0)


def test_many_sequences_have_no_drafts_and_neither_have_steps_that_prefill() -> None:
    assert DRAFTED.steps_s(5, 256, 1e5, 0) == PLAIN.steps_s(5, 256, 1e5, 0)
    assert DRAFTED.steps_s(5, 1, 1000, 512) == PLAIN.steps_s(5, 1, 1000, 512)


@pytest.mark.parametrize("batch", BATCHES)
def test_seconds_and_steps_are_inverse_to_each_other(batch: int) -> None:
    seconds = DRAFTED.steps_s(12.5, batch, 20_000, 0)
    assert DRAFTED.steps_in(seconds, batch, 20_000, 0) == pytest.approx(12.5)


def test_a_step_yields_no_more_than_it_verifies() -> None:
    with pytest.raises(ValueError, match=r"got 3 with 1; lower it, or draft more"):
        SimulatedEngineConfig(draft_tokens=1, draft_yield=3.0)
