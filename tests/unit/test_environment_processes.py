"""Every kind of environment plays in a host as it does here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from guess_server import guess_server

from research.kills.delayed import DelayedConfig
from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.adapters.gymnasium import GymnasiumConfig
from tasks.environments.adapters.http import HttpConfig
from tasks.environments.base import EnvironmentSettings
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.games.bandit import BanditConfig
from tasks.environments.games.grid import GridConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.tools.tools import ToolsConfig

PATIENT = EnvironmentProcessConfig(
    num_hosts=2, reset_s=120.0, step_s=120.0
)  # however busy the machine is
OWN = Path(__file__).parents[2] / "examples" / "guess_environment.py"
ACTIONS = ("7", "A", "calc 1 + 2", "up", "down", "", "12.", "answer 3", "B", "right", "3", "\x00")
KINDS: tuple[EnvironmentSettings, ...] = (
    GuessConfig(),
    BanditConfig(),
    GridConfig(),
    ToolsConfig(),
    CustomEnvironmentConfig(path="examples.guess_environment:Guess"),
    CustomEnvironmentConfig(path=f"{OWN}:Guess"),
    DelayedConfig(environment=GuessConfig(), mean_s=0.001),
)
LAKE = GymnasiumConfig(
    id="FrozenLake-v1", actions={"left": 0, "down": 1, "right": 2, "up": 3}, render="ansi"
)


async def assert_plays_alike(settings: EnvironmentSettings) -> None:
    """The same transcript in a host and in this process."""
    pool = EnvironmentPool(PATIENT, (settings,))
    here = settings.build()
    try:
        await pool.warm()
        assert await pool.reset("one", settings, 5) == here.reset(5)
        for action in ACTIONS:
            turn = here.step(action)
            assert await pool.step("one", action) == turn
            if turn.terminated or turn.truncated:
                break
    finally:
        pool.close()


@pytest.mark.parametrize("settings", KINDS, ids=lambda settings: type(settings).__name__)
async def test_a_kind_plays_in_a_host_as_it_does_here(settings: EnvironmentSettings) -> None:
    await assert_plays_alike(settings)


@pytest.mark.skipif(not importlib.util.find_spec("gymnasium"), reason="needs gymnasium")
async def test_gymnasium_plays_in_a_host_as_it_does_here() -> None:
    await assert_plays_alike(LAKE)


@pytest.mark.parametrize("is_delayed", [False, True])
async def test_a_server_is_reached_from_a_host(is_delayed: bool) -> None:
    with guess_server() as server:
        remote = HttpConfig(url=server.url)
        settings = DelayedConfig(environment=remote) if is_delayed else remote
        assert settings.needs_network
        await assert_plays_alike(settings)
