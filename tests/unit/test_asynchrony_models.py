"""The published and modelled figures that simulated asynchrony is held against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.asynchronous_simulated import TRAIN_S, play
from benchmarks.asynchrony_models import bound_s
from benchmarks.roll_flash_simulated import Simulated
from flows.experiments.paper.flash import RATIOS
from flows.experiments.paper.flash_setting import Setting
from tasks.scheduling.policies.asynchronous import AsynchronousConfig


def test_the_bound_of_a_step_follows_from_mean_longest_and_training() -> None:
    """32 responses of 2 s over 16 slots take 4 s; the longest of them is 2 (1 + 1/2 + ... + 1/32)
    s, of twice as many 2 (1 + ... + 1/64)."""
    longest, of_two_steps = (2 * sum(1 / n for n in range(1, most + 1)) for most in (32, 64))
    assert bound_s(0.0, 0.0) == pytest.approx(4 + longest + TRAIN_S, rel=0.01)
    assert bound_s(1.0, 0.0) == pytest.approx(4 + of_two_steps / 2, rel=0.01)


def test_no_simulated_step_takes_longer_than_its_bound() -> None:
    found = play(AsynchronousConfig(async_ratio=1.0), 20, long_share=0.0)
    assert TRAIN_S <= found.seconds <= bound_s(1.0, 0.0)


def test_the_best_ratio_is_the_smallest_that_is_about_as_fast_as_any() -> None:
    setting = Setting()
    simulated = Simulated(lambda told: None)
    for seconds, best in (((10.0, 9.9, 9.8), 1.0), ((20.0, 10.2, 10.0), 2.0), ((9, 8, 5), 4.0)):
        simulated._seconds = {
            (setting, ratio): value for ratio, value in zip(RATIOS, seconds, strict=True)
        }
        assert simulated.best_ratio(setting) == best


def test_devices_are_shared_out_so_that_the_slower_side_is_fastest() -> None:
    setting = Setting()
    num = setting.num_training
    assert 0 < num < setting.num_devices

    def slower(training: int) -> float:
        generating = setting.num_devices - training
        return max(setting.train_s(training), setting.generation_s(generating))

    assert slower(num) == min(slower(each) for each in range(1, setting.num_devices))


def test_an_assumption_that_is_changed_changes_what_it_is_about() -> None:
    setting = Setting()
    assert replace(setting, update_s=20.0).train_s(8) == pytest.approx(setting.train_s(8) + 20)
    assert replace(setting, train_flops=500e12).train_s(8) == pytest.approx(setting.train_s(8) / 2)
    assert replace(setting, training_devices=64).num_training == 4
    assert replace(setting, sigma=0.6).mean_tokens < setting.mean_tokens
    assert replace(setting, median_tokens=6000.0).lengths.median_tokens == 187.5
    assert replace(setting, prompt_share=0.0).lengths.prompt_share == 0.0
    assert replace(setting, sequence_s=0.12e-3).generation_s(2) > setting.generation_s(2)
