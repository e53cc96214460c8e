"""Predicted memory is what passes allocate: followed on fake tensors, and on real ones."""

from __future__ import annotations

from functools import partial

import pytest

from research.gpu.long_tail import Shape
from research.gpu.tracked_memory import model_of, tracked
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.lora_config import LoraConfig

# wide enough that no constant of a few kilobytes counts, and with few layers
WIDE = Shape(hidden=512, inner=2048, layers=2, heads=8, key_heads=2, vocabulary=8192)
DEEP = Shape(hidden=256, inner=704, layers=4, heads=4, key_heads=4, vocabulary=4096)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize(("shape", "num_ranks", "tokens"), [(WIDE, 4, 1024), (DEEP, 1, 2048)])
def test_the_prediction_is_within_a_tenth_of_what_is_allocated(
    shape: Shape, recomputes: bool, num_ranks: int, tokens: int
) -> None:
    config = LearnerConfig(recompute_layers=recomputes)
    peak, predicted = tracked(partial(model_of, shape), config, num_ranks, tokens, is_fake=True)
    assert predicted == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 4])
def test_so_is_that_of_an_adapter(num_ranks: int, recomputes: bool) -> None:
    config = LearnerConfig(recompute_layers=recomputes, lora=LoraConfig(rank=16))
    peak, predicted = tracked(partial(model_of, WIDE), config, num_ranks, 1024, is_fake=True)
    assert predicted == pytest.approx(peak, rel=0.1)


def test_so_is_that_of_sharded_parameters() -> None:
    config = LearnerConfig(parameters="sharded", recompute_layers=True)
    peak, predicted = tracked(partial(model_of, WIDE), config, 4, 1024, is_fake=True)
    assert predicted == pytest.approx(peak, rel=0.1)


def test_fake_tensors_take_what_real_ones_do() -> None:
    shape = Shape(hidden=64, inner=192, layers=1, heads=4, key_heads=2, vocabulary=2048)
    config = LearnerConfig(compute="fp32")
    fake, predicted = tracked(partial(model_of, shape), config, 1, 512, is_fake=True)
    real, _ = tracked(partial(model_of, shape), config, 1, 512, is_fake=False)
    assert real == pytest.approx(fake, rel=0.01)
    assert predicted == pytest.approx(real, rel=0.1)
