"""Environments of others: a class by import path, gymnasium's, one behind a server."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from guess_server import GuessServer, guess_server

from artifacts.pictures import opened
from examples.walk_environment import Walk
from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.adapters.gymnasium import GymnasiumConfig
from tasks.environments.adapters.http import HttpConfig
from tasks.environments.base import Environment, PicturedText, ProtocolError, Transition
from tasks.environments.conformance import check_environment
from tasks.environments.games.guess import GuessConfig

ECHO = """
class Echo:
    rules = "Say anything."
    examples = [("go", "hello")]

    def __init__(self, ends_after=2):
        self.left = ends_after

    def reset(self, seed):
        return f"go {seed}"

    def step(self, text):
        self.left -= 1
        return text, 1, self.left <= 0, False, {"left": self.left}
"""
LAKE = ("left", "down", "right", "up")


def environment_at(tmp_path: Path, source: str, **given: Any) -> CustomEnvironmentConfig:
    """The class Echo of a file with this source."""
    (tmp_path / "mine.py").write_text(source)
    return CustomEnvironmentConfig(path=f"{tmp_path}/mine.py:Echo", **given)


def test_a_class_of_a_file_is_played_and_its_values_are_made_a_transition(tmp_path: Path) -> None:
    echo = environment_at(tmp_path, ECHO, kwargs={"ends_after": 1}).build()
    assert echo.reset(7) == "go 7"
    turn = echo.step("hello")
    assert turn == Transition("hello", 1.0, True, False, {"left": "0"})
    assert isinstance(turn.reward, float)


def test_the_head_is_of_the_class_unless_the_configuration_says_it(tmp_path: Path) -> None:
    def told(config: CustomEnvironmentConfig) -> list[tuple[str, str]]:
        return [(message.role, message.content) for message in config.head()]

    assert told(environment_at(tmp_path, ECHO)) == [
        ("system", "Say anything."), ("user", "go"), ("assistant", "hello"),
    ]  # fmt: skip
    other = environment_at(tmp_path, ECHO, rules="Be brief.", examples=(("a", "b"),))
    assert told(other) == [("system", "Be brief."), ("user", "a"), ("assistant", "b")]


def test_it_pickles_into_a_process_that_has_not_imported_the_class(tmp_path: Path) -> None:
    echo = environment_at(tmp_path, ECHO, kwargs={"ends_after": 3}).build()
    echo.reset(0)
    echo.step("one")
    (tmp_path / "pickled").write_bytes(pickle.dumps(echo))
    program = (
        "import pickle, pathlib, sys\n"
        "echo = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(echo.step('two').info['left'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "pickled")],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout == "1\n"


def test_a_file_is_found_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    config = CustomEnvironmentConfig(path="mine.py:Echo")
    monkeypatch.chdir("/")
    assert config.build().reset(1) == "go 1"


def test_a_file_named_like_a_module_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text(ECHO)
    CustomEnvironmentConfig(path=f"{tmp_path}/random.py:Echo").build().reset(0)
    import random

    assert hasattr(random, "Random")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("examples.guess_environment", "must have a ':' before the name"),
        (
            "no_such_module:Guess",
            "must be importable, .* No module named 'no_such_module'",
        ),
        ("no/such/file.py:Guess", r"there is no file /.*no/such/file\.py"),
        ("examples.guess_environment:Other", "examples.guess_environment has nothing named Other"),
        ("json:dumps", r"json:dumps must be callable with kwargs \{\}"),
        ("collections:Counter", r"must have reset\(seed\) and step\(text\), .* has no reset"),
    ],
)
def test_what_is_no_environment_is_refused_in_a_sentence(path: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CustomEnvironmentConfig(path=path).build()


@pytest.mark.parametrize("fault", ["raise KeyError('x')", "raise SystemExit(3)", "1 +"])
def test_a_module_that_cannot_be_imported_is_told_with_its_error(
    tmp_path: Path, fault: str
) -> None:
    config = environment_at(tmp_path, fault)
    for _ in range(2):  # nothing half imported is left
        with pytest.raises(ValueError, match=r"must be importable.*(KeyError|SystemExit|Syntax)"):
            config.build()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("text", "must return the five values"),
        ("(text, 0.0, True)", "must return the five values"),
        ("(3, 0.0, True, False, {})", "an observation must be text, step of .* gave int 3"),
        ("(text, None, True, False, {})", "a reward must be a number, .* gave None"),
        ("(text, 0.0, True, False, None)", "info of .* must be a mapping, got None"),
    ],
)
def test_a_step_that_breaks_the_protocol_says_how(tmp_path: Path, answer: str, said: str) -> None:
    source = ECHO.replace('text, 1, self.left <= 0, False, {"left": self.left}', answer)
    echo = environment_at(tmp_path, source).build()
    echo.reset(0)
    with pytest.raises(ProtocolError, match=said):
        echo.step("hello")


def test_examples_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    source = ECHO.replace('[("go", "hello")]', '["go"] * 3 + ["hello"]')
    with pytest.raises(ValueError, match="examples must be pairs"):
        environment_at(tmp_path, source).head()


def frozen_lake(**given: Any) -> GymnasiumConfig:
    actions = {name: number for number, name in enumerate(LAKE)}
    return GymnasiumConfig(
        id="FrozenLake-v1", actions=actions, kwargs={"is_slippery": False}, **given
    )


def in_words(observation: int, environment: Any) -> str:
    """A renderer, as a user would write one."""
    return f"At {divmod(int(observation), environment.ncol)}."


def test_frozen_lake_is_played_to_its_goal_in_its_own_picture() -> None:
    pytest.importorskip("gymnasium")
    lake = frozen_lake(render="ansi").build()
    assert lake.reset(0) == "[S]FFF\nFHFH\nFFFH\nHFFG"
    turns = [lake.step(f"{way}.") for way in ("down", "down", "right", "right", "down", "right")]
    assert turns[0].observation.splitlines()[2] == "[F]HFH"
    assert [turn.reward for turn in turns] == [0.0] * 5 + [1.0]
    assert [turn.terminated for turn in turns] == [False] * 5 + [True]


def test_gymnasium_keeps_apart_what_ends_and_what_is_cut() -> None:
    pytest.importorskip("gymnasium")
    hole, limit = frozen_lake(render="ansi").build(), frozen_lake(render="ansi").build()
    hole.reset(0)
    fallen = [hole.step(way) for way in ("down", "right")][-1]
    assert (fallen.terminated, fallen.truncated, fallen.reward) == (True, False, 0.0)
    limit.reset(0)
    turns = [limit.step("left") for _ in range(16)]
    assert [turn.truncated for turn in turns] == [False] * 15 + [True]
    assert not any(turn.terminated for turn in turns)
    short = GymnasiumConfig(
        id="FrozenLake-v1", actions={"left": 0}, kwargs={"max_episode_steps": 3}, render="ansi"
    ).build()
    short.reset(0)
    assert [short.step("left").truncated for _ in range(3)] == [False, False, True]


def test_text_that_names_no_action_leaves_gymnasium_as_it_is() -> None:
    pytest.importorskip("gymnasium")
    lake = frozen_lake(render=f"{__file__}:in_words", max_turns=3).build()
    assert lake.reset(0) == "At (0, 0)."
    turns = [lake.step(text) for text in ("Right", "right", "\x00")]
    assert [turn.observation for turn in turns] == [
        "Say one of: left, down, right, up.", "At (0, 1).", "Say one of: left, down, right, up.",
    ]  # fmt: skip
    assert [turn.truncated for turn in turns] == [False, False, True]
    assert [turn.info["action"] for turn in turns] == ["invalid", "valid", "invalid"]


def test_gymnasium_s_numbers_are_refused_where_nothing_puts_them_into_words() -> None:
    pytest.importorskip("gymnasium")
    lake = frozen_lake().build()
    with pytest.raises(ProtocolError, match="FrozenLake-v1 gave int 0; set render to 'ansi'"):
        lake.reset(0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": "NoSuchLake-v1"}, "must be able to make 'NoSuchLake-v1'"),
        ({"id": "FrozenLake-v1", "kwargs": {"hills": 2}}, "hills.*correct id or kwargs"),
        ({"id": "FrozenLake-v1", "render": "no_such_module:words"}, "must be importable"),
    ],
)
def test_what_gymnasium_cannot_make_is_refused_in_a_sentence(
    given: dict[str, Any], said: str
) -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(ValueError, match=said):
        GymnasiumConfig(actions={"left": 0}, **given).build()


def test_without_the_package_gymnasium_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ValueError, match=r"needs the package gymnasium, .* pip install"):
        frozen_lake().build()


def over_http(server: GuessServer, shape: str, **given: Any) -> HttpConfig:
    return HttpConfig(url=server.url, shape=shape, environment_id="game:Guess", **given)


@pytest.mark.parametrize("shape", ["openenv", "gem"])
def test_a_game_behind_a_server_is_the_same_game(shape: str) -> None:
    with guess_server() as server:
        remote, here = over_http(server, shape).build(), GuessConfig().build()
        for seed in range(3):
            assert remote.reset(seed) == here.reset(seed)
            while True:
                turn = here.step("7")
                assert remote.step("7") == turn
                if turn.terminated:
                    break
        if shape == "gem":
            assert not server.games, "its sandboxes are given back"


@pytest.mark.parametrize("shape", ["openenv", "gem"])
def test_a_server_keeps_the_protocol(shape: str) -> None:
    with guess_server() as server:
        report = check_environment(
            over_http(server, shape), actions=("3", "9", "15", "17"), num_seeds=2
        )
    assert report.passed, report.checks


def test_a_sandbox_that_its_server_has_closed_fails_no_later_episode() -> None:
    with guess_server() as server:
        remote = over_http(server, "gem").build()
        first = remote.reset(0)
        server.games.clear()
        assert remote.reset(0) == first


def test_what_the_server_does_not_end_is_cut() -> None:
    with guess_server() as server:
        remote = over_http(server, "openenv", max_turns=2).build()
        remote.reset(0)
        assert [remote.step("no").truncated for _ in range(2)] == [False, True]


def test_a_server_that_says_truncated_is_believed() -> None:
    with guess_server() as server:
        remote = over_http(server, "openenv").build()
        remote.reset(0)
        server.answer = {"observation": {"text": "late"}, "done": True, "truncated": True}
        turn = remote.step("3")
    assert (turn.terminated, turn.truncated, turn.reward) == (False, True, 0.0)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ({"observation": {"board": [1]}}, ProtocolError, "name the field .* in observation_field"),
        ({"reward": 1.0}, ProtocolError, "an observation must be text, the server gave None"),
        ([1], RuntimeError, r"must answer an object, got \[1\]"),
    ],
)
def test_a_server_that_answers_something_else_says_so(
    answer: Any, error: type[Exception], said: str
) -> None:
    with guess_server() as server:
        server.answer = answer
        with pytest.raises(error, match=said):
            over_http(server, "openenv").build().reset(0)


def test_a_server_that_is_not_there_or_refuses_is_a_failure_of_the_environment() -> None:
    with guess_server() as server:
        url = server.url
        with pytest.raises(RuntimeError, match="refused reset: 404"):
            HttpConfig(url=url + "elsewhere").build().reset(0)
    with pytest.raises(RuntimeError, match=r"gave no answer at http://127\.0\.0\.1"):
        HttpConfig(url=url, timeout_s=5).build().reset(0)


class Draws:
    """A user's class that shows pictures, or what is none."""

    def __init__(self, shown: object) -> None:
        self.shown = shown

    def reset(self, seed: int) -> object:
        return "Look.", self.shown

    def step(self, text: str) -> object:
        return ("Again.", self.shown), 0.0, True, False, {}


def test_a_class_of_ones_own_shows_pictures_beside_its_text() -> None:
    def made(shown: object) -> Environment:
        return CustomEnvironmentConfig(path=f"{__file__}:Draws", kwargs={"shown": shown}).build()

    drawing = made([])
    drawing._inner.shown = [b"one", b"two"]  # type: ignore[attr-defined]
    assert drawing.reset(0) == PicturedText.of("Look.", [b"one", b"two"])
    assert drawing.step("").observation == PicturedText.of("Again.", [b"one", b"two"])
    for wrong in ("a.png", ["a.png"], None):
        with pytest.raises(ProtocolError, match="give a pair of a text and a list of pictures"):
            made(wrong).reset(0)


def test_gymnasium_shows_the_picture_that_it_renders() -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Board(gymnasium.Env):  # type: ignore[misc]  # gymnasium carries no types
        metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 4}
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, render_mode: str) -> None:
            self.render_mode, self.place = render_mode, 0

        def reset(
            self, seed: int | None = None, options: object = None
        ) -> tuple[int, dict[str, object]]:
            return self.place, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            self.place = action
            return action, 0.0, False, False, {}

        def render(self) -> Any:
            pixels = np.zeros((28, 56, 3), dtype=np.uint8)
            pixels[:, 28 * self.place : 28 * self.place + 28] = 255
            return pixels

    gymnasium.register("Board-v0", Board)
    board = GymnasiumConfig(id="Board-v0", actions={"right": 1}, render="rgb_array").build()
    for observation, bright in ((board.reset(0), 0), (board.step("right").observation, 28)):
        assert isinstance(observation, PicturedText)
        picture = opened(observation.pictures[0])
        assert picture.size == (56, 28)
        assert picture.getpixel((bright, 0)) == (255, 255, 255)
        assert picture.getpixel((28 - bright, 0)) == (0, 0, 0)
    assert board.step("left").observation == "Say one of: right."


def test_the_example_of_a_walk_is_drawn_where_it_is() -> None:
    walk = Walk(size=3)
    for seed in range(9):
        _, (file,) = walk.reset(seed)
        picture = opened(file)
        assert picture.size == (84, 84)
        for field in itertools.product(range(3), repeat=2):
            left, top = (28 * part for part in field)
            is_place = picture.getpixel((left + 14, top + 14)) == (255, 0, 0)
            is_goal = picture.getpixel((left + 4, top + 4)) == (0, 128, 0)
            assert (is_place, is_goal) == (field == walk.place, field == walk.goal)


def test_the_example_of_a_walk_pays_at_its_goal_and_is_cut_after_its_moves() -> None:
    walk = Walk(size=2, moves=3)
    walk.reset(0)
    walk.place, walk.goal = (0, 0), (1, 1)
    _, reward, terminated, truncated, _ = walk.step("Right")
    assert (walk.place, reward, terminated, truncated) == ((0, 0), 0.0, False, False)
    walk.step("left")
    assert walk.step(" down.")[1:4] == (0.0, False, True)
    walk.reset(0)
    walk.place, walk.goal = (0, 0), (1, 1)
    walk.step("right")
    assert walk.step("down")[1:4] == (1.0, True, False)
