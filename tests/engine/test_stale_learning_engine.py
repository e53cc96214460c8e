"""A run at a constant lag on the real engine: its tokens are as old as it says, and it can be
repeated bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.stale_learning_run import PlayedStep, StaleRun
from flows.config.run_config import RunConfig
from tasks.engines.vllm.engine import VllmEngine
from tasks.rewards.registry import Rewards, build_rewards

pytestmark = [
    pytest.mark.engine,
    # vLLM scans every module's attributes
    pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def engine(start_engine: Callable[[str], VllmEngine]) -> VllmEngine:
    return start_engine("engine-0")


@pytest.fixture(scope="module")
def config(model_path: str) -> RunConfig:
    """A policy that answers at random, and moves fast: only its entropy has a gradient."""
    return RunConfig.model_validate(
        {
            "preset": "tiny-sync",
            "model": {"kind": "path", "path": model_path},
            "batch": {"prompts_per_step": 2, "responses_per_prompt": 4},
            "sampling": {"max_response_tokens": 12},
            "learner": {
                "entropy_coefficient": 1.0,
                "optimizer": {"learning_rate": 5e-3, "warmup_steps": 0},
            },
            "evaluation": {"num_prompts": 2, "responses_per_prompt": 1},
        }
    )


@pytest.fixture(scope="module")
def rewards(config: RunConfig) -> Iterator[Rewards]:
    rewards = build_rewards(config.rewards)
    yield rewards
    rewards.close()


class Play:
    """Plays four steps and the evaluation."""

    def __init__(self, config: RunConfig, engine: VllmEngine, rewards: Rewards, model: str) -> None:
        self._config, self._engine, self._rewards, self._model = config, engine, rewards, model

    async def __call__(self, lag: int, directory: Path) -> list[PlayedStep]:
        run = StaleRun(self._config, lag, self._engine, self._rewards, self._model, directory)
        played = [step async for step in run.steps(4)]
        assert await run.heldout_reward(4) == 0.0
        return played


@pytest.fixture
def play(config: RunConfig, engine: VllmEngine, rewards: Rewards, model_path: str) -> Play:
    return Play(config, engine, rewards, model_path)


def versions_of(played: PlayedStep) -> set[int]:
    return {
        span.version
        for group in played.groups
        for response in group.responses
        for span in response.generated.versions
    }


async def test_every_token_is_as_old_as_the_lag_says(play: Play, tmp_path: Path) -> None:
    fresh, stale = await play(0, tmp_path / "fresh"), await play(2, tmp_path / "stale")
    assert [versions_of(step) for step in fresh] == [{0}, {1}, {2}, {3}]
    assert [versions_of(step) for step in stale] == [{0}, {0}, {0}, {1}]
    assert [step.figures["lag/max_versions"] for step in stale] == [0.0, 1.0, 2.0, 2.0]
    # and the learner finds them as unlikely as tokens of older weights are
    drifts = [[step.figures["train/mismatch_k3"] for step in run] for run in (fresh, stale)]
    assert max(drifts[0]) < 0.01
    assert min(drifts[1][2:]) > 3 * max(drifts[0])
    kept = tmp_path / "stale" / "weights"
    assert sorted(path.name for path in kept.iterdir()) == ["2", "3", "4"]


async def test_equal_settings_give_equal_figures(play: Play, tmp_path: Path) -> None:
    runs = [await play(2, tmp_path / name) for name in ("first", "second")]
    assert [step.figures for step in runs[0]] == [step.figures for step in runs[1]]
