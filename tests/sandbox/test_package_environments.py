"""Games of TextArena and GEM in an interpreter of their own: a bare virtual environment with
stand-ins for the packages, and our walls around what they do."""

from __future__ import annotations

import pickle
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environment_pools import ISOLATIONS, PATIENT, failure, hosts
from package_sources import GEM, TEXTARENA, bare_environment, install
from pydantic import ValidationError

from artifacts.episodes import Ending
from flows.commands import check
from research.kills.delayed import DelayedConfig
from tasks.environments.adapters.package import GemConfig, PackageConfig, TextArenaConfig
from tasks.environments.base import EnvironmentFailed, Transition
from tasks.environments.conformance import check_environment
from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.processes import blocking as hosted

ROOT = Path(__file__).parents[2]
LIMIT = "The turn limit has been reached."
OLD_PYTHON = """#!/bin/sh
echo '[[3, 9, 18], "/usr/lib/python3.9", "/usr", "/usr", []]'
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not in /tmp, which a process has of its own."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    hosted.close()
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def python(folder: Path) -> Path:
    """Of an environment with both packages."""
    made = bare_environment(folder / "games")
    install(made, "textarena", "0.7.4", TEXTARENA)
    install(made, "gem-llm", "0.1.0", GEM)
    return made


@pytest.fixture(scope="module")
def old_python(folder: Path) -> Path:
    """Of one with a package that is too old, and without the other."""
    made = bare_environment(folder / "old")
    install(made, "textarena", "0.6.4", TEXTARENA)
    return made


def textarena(python: Path, game_id: str = "Guess-v0", **given: Any) -> PackageConfig:
    return TextArenaConfig(id=game_id, python=str(python), **given)


def gem(python: Path, game_id: str = "game:Guess-v0", **given: Any) -> PackageConfig:
    return GemConfig(id=game_id, python=str(python), **given)


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_game_is_played_in_the_other_interpreter(python: Path, isolation: str) -> None:
    settings = textarena(python)
    config = PATIENT.model_copy(update={"isolation": isolation})
    async with hosts(config, settings) as pool:
        assert await pool.reset("one", settings, 3) == "Guess from 1 to 9."
        first = await pool.step("one", "0")
        assert first.observation in ("No.", "Wrong.")
        assert first[1:] == (0.0, False, False, {})
        for number in "123456789":  # each in a game of the same seed
            await pool.reset("two", settings, 3)
            turn = await pool.step("two", number)
            if turn.terminated:
                break
        details = {"role": "Player 0", "invalid_move": "False", "reason": "Right."}
        assert turn == Transition("Right.", 1.0, True, False, details)
        assert pool.report.crashed == 0


async def test_the_other_interpreter_sees_its_packages_and_none_of_the_run(python: Path) -> None:
    settings = textarena(python, "Unruly-v0")
    async with hosts(PATIENT, settings) as pool:
        await pool.reset("one", settings, 3)
        assert (await pool.step("one", "prefix")).observation == str(python.parents[1])
        for name in ("pydantic", "torch", "artifacts"):
            told = (await pool.step("one", f"imports {name}")).observation
            assert told == f"No module named '{name}'"


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_the_walls_stand_around_the_other_interpreter(python: Path, isolation: str) -> None:
    reasons = {
        "fork": "PermissionError",
        "thread": "can't start new thread",
        "socket": "PermissionError",
        "read /etc/passwd": "FileNotFoundError|PermissionError",
        f"read {ROOT}/pyproject.toml": "FileNotFoundError|PermissionError",
        f"write {python.parents[1]}/mine": "Read-only file system|PermissionError",
    }
    settings = textarena(python, "Unruly-v0")
    config = PATIENT.model_copy(update={"isolation": isolation})
    async with hosts(config, settings) as pool:
        for text, reason in reasons.items():
            await pool.reset("one", settings, 1)
            ending, detail = await failure(pool.step("one", text))
            assert ending is Ending.CRASHED
            assert re.search(reason, detail), detail
        assert pool.report.restarts == len(reasons) - 1


async def test_a_game_that_hangs_is_unanswered_and_its_process_replaced(python: Path) -> None:
    settings = textarena(python, "Unruly-v0")
    async with hosts(PATIENT.model_copy(update={"step_s": 0.3}), settings) as pool:
        await pool.reset("one", settings, 1)
        assert (await failure(pool.step("one", "loop")))[0] is Ending.UNANSWERED
        assert await pool.reset("two", settings, 1) == "Do what?"


def test_a_game_that_its_bound_cut_is_truncated_and_has_its_reward(python: Path) -> None:
    game = textarena(python).build()
    game.reset(3)
    turns = [game.step("0") for _ in range(4)]
    assert [turn.truncated for turn in turns] == [False, False, False, True]
    assert not turns[3].terminated
    assert 0 < turns[3].reward < 1
    assert turns[3].observation.endswith(LIMIT)


def test_max_turns_cut_before_the_game_does(python: Path) -> None:
    game = textarena(python, max_turns=2).build()
    game.reset(3)
    turns = [game.step("0") for _ in range(2)]
    assert [(turn.terminated, turn.truncated) for turn in turns] == [(False, False), (False, True)]


def test_the_same_seed_gives_the_same_game_also_after_others(python: Path) -> None:
    game, other = textarena(python).build(), textarena(python).build()

    def transcript(played: Any) -> list[Transition]:
        played.reset(7)
        return [played.step("0") for _ in range(4)]

    first = transcript(game)
    for seed in range(3):
        game.reset(seed)
        game.step("1")
    assert transcript(game) == transcript(other) == first


def test_gem_is_told_with_its_suffix_and_its_flags_are_told_apart(python: Path) -> None:
    game = gem(python).build()
    assert game.reset(3) == "Guess from 1 to 9.\nEnter your guess."
    assert game.step("?") == Transition(
        "Wrong.\nEnter your next guess.", 0.0, False, False, {"tries": "1"}
    )
    cut = "You have reached the maximum number of turns."
    assert game.step("?") == Transition(cut, 0.25, False, True, {"tries": "2"})
    question = gem(python, "math:One").build()
    assert question.reset(1) == "1 + 1?"
    assert question.step("2") == Transition("<over>", 1.0, True, False, {"correct": "True"})


@pytest.mark.parametrize("kind", ["gem", "textarena"])
def test_the_conformance_suite_plays_them(
    python: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    game_id = {"gem": "game:Guess-v0", "textarena": "Guess-v0"}[kind]
    fields = ["--set", f"id={game_id}", "--set", f"python={python}"]
    assert check.main(["environment", kind, *fields, "--seeds", "2", "--timeout", "1000"]) == 0
    assert "broken" not in capsys.readouterr().out


def test_what_breaks_a_rule_behind_walls_is_found(python: Path) -> None:
    report = check_environment(textarena(python, "Unruly-v0"), num_seeds=2)
    assert not report.passed


def test_a_copy_by_pickle_goes_on_where_the_game_is(python: Path) -> None:
    game = textarena(python).build()
    game.reset(5)
    first = game.step("0")
    copy = pickle.loads(pickle.dumps(game))
    assert [copy.step("0"), copy.step("0")] == [game.step("0"), game.step("0")]
    assert not first.terminated


def test_a_process_that_raised_can_be_asked_no_more_than_its_reason(python: Path) -> None:
    game = textarena(python, "Unruly-v0").build()
    game.reset(1)
    with pytest.raises(EnvironmentFailed, match=r"PermissionError.*unruly.py"):
        game.step("fork")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": "Gess-v0"}, r"id must be one that textarena knows, .*did you mean Guess-v0"),
        ({"id": "Guess-v0-pair"}, r"one player play 'Guess-v0-pair'.*has to be 2, received 1"),
        ({"kwargs": {"size": 3}}, r"make 'Guess-v0' with kwargs \{'size': 3\}.*unexpected keyword"),
    ],
)
def test_a_game_that_cannot_be_is_refused_in_a_sentence(
    python: Path, given: dict[str, Any], said: str
) -> None:
    settings = textarena(python).model_copy(update=given)
    with pytest.raises(ValueError, match=said):
        settings.build()


def test_a_package_that_is_old_or_missing_is_refused_in_a_sentence(old_python: Path) -> None:
    with pytest.raises(ValueError, match=r"textarena must be textarena>=0\.7, .*/old has 0\.6\.4"):
        textarena(old_python).build()
    with pytest.raises(ValueError, match=r"needs the package gem-llm,\s+there is none in .*/old"):
        gem(old_python).build()


def test_an_interpreter_that_cannot_be_used_is_refused_in_a_sentence(
    folder: Path, tmp_path: Path
) -> None:
    old = folder / "python3.9"
    old.write_text(OLD_PYTHON)
    old.chmod(0o755)
    elsewhere = bare_environment(tmp_path / "elsewhere")
    sentences = {
        folder / "none" / "bin" / "python": "must be a file that can be executed, .*none; make a",
        folder: "must be a file that can be executed",
        Path(shutil.which("false") or ""): "must be a Python that works, .*false does not",
        old: r"must be Python 3\.10 or later, .* is 3\.9\.18",
        elsewhere: "must lie outside of /tmp",
    }
    for path, said in sentences.items():
        with pytest.raises(ValueError, match=said):
            textarena(path).build()


async def test_a_pool_says_at_once_what_no_restart_can_help(python: Path) -> None:
    wrong, missing = textarena(python, "Gess-v0"), textarena(python.parent / "none")
    pool = EnvironmentPool(PATIENT, (wrong,))
    with pytest.raises(ValueError, match="did you mean Guess-v0"):
        await pool.reset("one", wrong, 1)
    with pytest.raises(ValueError, match="must be a file that can be executed"):
        await pool.reset("two", missing, 1)
    right = textarena(python)
    assert await pool.reset("three", right, 1) == "Guess from 1 to 9."
    pool.close()


def test_the_path_holds_wherever_the_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/var")
    settings = GemConfig(id="game:Guess-v0", python="tmp/venv/bin/python")
    assert settings.python == "/var/tmp/venv/bin/python"


def test_delays_are_for_environments_of_the_run_s_own_interpreter() -> None:
    with pytest.raises(ValidationError, match="must be one of this interpreter, got 'textarena'"):
        DelayedConfig.model_validate({"environment": {"kind": "textarena", "id": "Guess-v0"}})
