"""The learning rate of every step, and the configurations that make none."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.learner.learner_config import AdamWConfig


def test_the_rate_rises_over_the_warm_up_and_stays() -> None:
    config = AdamWConfig(learning_rate=1.0, warmup_steps=4)
    assert [config.rate(step) for step in (1, 2, 4, 5, 1000)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert AdamWConfig(learning_rate=1.0).rate(1) == 1.0


def test_the_rate_falls_to_its_floor_and_keeps_it() -> None:
    config = AdamWConfig(learning_rate=1.0, warmup_steps=2, decay_steps=12, floor_fraction=0.1)
    assert [config.rate(step) for step in (1, 2, 7, 12, 40)] == pytest.approx(
        [0.5, 1.0, 0.55, 0.1, 0.1]
    )


@pytest.mark.parametrize("decay_steps", [1, 5])
def test_a_fall_must_end_after_the_warm_up(decay_steps: int) -> None:
    with pytest.raises(
        ValidationError, match=r"decay_steps must be 0 or beyond warmup_steps \(5\), got"
    ):
        AdamWConfig(warmup_steps=5, decay_steps=decay_steps)
