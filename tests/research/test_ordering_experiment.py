"""What it gains to order the responses of a step: the settings train the same, in small."""

from __future__ import annotations

from dataclasses import replace

from research.paper.ordering import SETTINGS, part_of
from research.paper.setups import BY_MODEL


def test_orders_train_what_synchronous_steps_train_and_know_an_epoch_more_in_the_second() -> None:
    small = replace(BY_MODEL["7B"], prompts=8, responses=2, num_devices=4, tasks=("math",))
    part = part_of("7B", small, seed=0, epoch_steps=2)
    played = {name: case.play() for name, case in part.cases.items()}
    assert {len(steps) for steps in played.values()} == {4}
    for steps in zip(*played.values(), strict=True):
        assert len({step.figures["trained_tokens"] for step in steps}) == 1
    found = part.figures(played)
    assert found["ordering/7B/sync/first/over_sync"] == 1
    assert found["ordering/7B/seer/second/step_s"] > 0
    assert set(found) == {
        f"ordering/7B/{setting}/{epoch}/{figure}"
        for setting in SETTINGS
        for epoch in ("first", "second")
        for figure in ("step_s", "over_sync")
    }
