"""What environments need and do not see, as it lies below /tmp: found before anything starts."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.config.misfits import misfits_of_code
from flows.config.run_config import RunConfig
from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.walls import _is_hidden, check_seen, hidden_path
from tasks.isolation.interpreter import own

GAME = (
    "class Game:\n    rules = ''\n    def reset(self, seed): ...\n    def step(self, text): ...\n"
)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is not below /tmp, as pytest's may be."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def below() -> Iterator[Path]:
    """A folder below /tmp, with a package."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    (made / "packages" / "pydantic").mkdir(parents=True)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(
    ("link", "bound", "is_hidden"),
    [
        ("", ["."], False),  # everything at its own place
        ("venv", ["."], True),  # within a clone, a virtual environment that is a link to /tmp
        ("venv", ["venv"], False),  # outside of one: shown at the link's place
        ("venv/packages", ["venv"], True),
        ("venv/packages", ["venv", "venv/packages"], False),
        ("venv/packages/pydantic", ["venv/packages"], True),  # a package by itself
    ],
)
def test_a_link_to_tmp_is_followed_as_bubblewrap_does(
    outside: Path, below: Path, link: str, bound: list[str], is_hidden: bool
) -> None:
    target = {"venv": below, "venv/packages": below / "packages"}.get(link, below / "packages/x")
    (below / "packages" / "x").mkdir()
    place = outside / (link or "nothing")
    place.parent.mkdir(parents=True, exist_ok=True)
    if link:
        os.symlink(target, place)
    needed = outside / "venv" / "packages" / "pydantic"
    if not link:
        needed.mkdir(parents=True)
    shown = [str(outside / name) if name != "." else str(outside) for name in bound]
    assert _is_hidden(str(needed), shown) == is_hidden


def test_what_lies_below_tmp_is_named_and_seen_with_weaker_walls(below: Path) -> None:
    game = str(below / "game.py")
    with pytest.raises(ValueError, match=rf"lie outside of /tmp, .*; {game} is below /tmp; move"):
        check_seen(EnvironmentProcessConfig(), own(), [game])
    assert not hidden_path(EnvironmentProcessConfig(isolation="landlock"), own(), [game])


@pytest.mark.parametrize("by_module", [False, True])
def test_a_users_environment_below_tmp_is_refused_when_the_run_begins(
    below: Path, monkeypatch: pytest.MonkeyPatch, by_module: bool
) -> None:
    (below / "their_game.py").write_text(GAME)
    monkeypatch.syspath_prepend(below)
    monkeypatch.delitem(sys.modules, "their_game", raising=False)
    path = "their_game:Game" if by_module else f"{below}/their_game.py:Game"
    game = {"kind": "custom", "path": path}
    values = {"preset": "tiny-agent", "environments": {"guess": game}}
    config = RunConfig.model_validate(values)
    [told] = misfits_of_code(config)
    assert f"{below}/their_game.py is below /tmp; move it" in told
    weaker = {"episodes": {"hosts": {"isolation": "landlock"}}}
    assert not [*misfits_of_code(RunConfig.model_validate(values | weaker))]


def test_a_run_without_environments_may_lie_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydantic.__file__", "/tmp/venv/pydantic/__init__.py")
    assert not [*misfits_of_code(RunConfig.model_validate({"preset": "tiny"}))]
