"""The conformance suite: every environment of ours keeps the protocol, every way of breaking it is
found, and `rollflow check environment` says so."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from artifacts.datasets.rows import Message
from examples.guess_environment import Guess
from examples.walk_environment import Walk
from flows.commands.rollflow import main
from tasks.environments.adapters.custom import CustomEnvironmentConfig
from tasks.environments.adapters.gymnasium import GymnasiumConfig
from tasks.environments.base import (
    Environment,
    EnvironmentSettings,
    PicturedText,
    Transition,
)
from tasks.environments.conformance import ConformanceRule, check_environment
from tasks.environments.games.bandit import BanditConfig
from tasks.environments.games.grid import GridConfig
from tasks.environments.games.guess import GuessConfig
from tasks.environments.registry import EnvironmentConfig
from tasks.environments.tools.tools import ToolsConfig

OWN = "examples.guess_environment:Guess"
SHOWN = "examples.walk_environment:Walk"
DELAYED = "research.kills.delayed:delayed"
SHIPPED: tuple[EnvironmentSettings, ...] = (
    GuessConfig(),
    GuessConfig(style="terse", largest=10, max_turns=4),
    GuessConfig(largest=2, max_turns=1),
    BanditConfig(),
    BanditConfig(style="terse", buttons=8),
    GridConfig(),
    GridConfig(style="terse", size=9, spare_moves=0, max_turns=40),
    ToolsConfig(),
    ToolsConfig(max_turns=1, max_operations=1),
    ToolsConfig(style="terse"),
    CustomEnvironmentConfig(path=OWN),
    CustomEnvironmentConfig(path=SHOWN),
    CustomEnvironmentConfig(path=DELAYED, kwargs={"environment": {"kind": "guess"}}),
)
# a server, packages: test_environment_adapters, test_package_environments
TESTED_ELSEWHERE = {"http", "gymnasium", "gem", "textarena"}


@pytest.mark.parametrize("settings", SHIPPED, ids=lambda settings: settings.kind)
def test_every_environment_of_ours_keeps_the_protocol(settings: EnvironmentSettings) -> None:
    report = check_environment(settings)
    assert report.passed, report.checks
    assert report.num_steps > report.num_episodes > 0
    assert 0 < report.step_s[0] <= report.step_s[1]


def test_every_kind_is_checked() -> None:
    schema = TypeAdapter[EnvironmentConfig](EnvironmentConfig).json_schema()
    kinds = {settings.model_dump()["kind"] for settings in SHIPPED}
    assert kinds | TESTED_ELSEWHERE == set(schema["discriminator"]["mapping"])


def test_gymnasium_keeps_the_protocol() -> None:
    pytest.importorskip("gymnasium")
    ways = {"left": 0, "down": 1, "right": 2, "up": 3}
    slippery = GymnasiumConfig(id="FrozenLake-v1", actions=ways, render="ansi")
    report = check_environment(slippery, actions=tuple(ways))
    assert report.passed, report.checks


class Good:
    """Counts to three; the faults below are differences from it."""

    def reset(self, seed: int) -> Any:
        self.rng = random.Random(seed)
        self.turn = 0
        return "begin"

    def step(self, text: str) -> Any:
        self.turn += 1
        return Transition(self.says(text), self.pays(), self.ends(), False, self.info())

    def says(self, text: str) -> Any:
        return f"{self.turn} {self.rng.random()}"

    def pays(self) -> Any:
        return 0.0

    def ends(self) -> Any:
        return self.turn >= 3

    def info(self) -> Any:
        return {}


class ResetRaises(Good):
    def reset(self, seed: int) -> Any:
        raise OSError("no such texture")


class ResetGivesNumbers(Good):
    def reset(self, seed: int) -> Any:
        return [0, 1]


class RaisesAtGarbage(Good):
    def says(self, text: str) -> Any:
        return str(int(text))


class ExitsAtGarbage(Good):
    def says(self, text: str) -> Any:
        return super().says(text) if text.isdecimal() else sys.exit(0)


class SaysBytes(Good):
    def says(self, text: str) -> Any:
        return b"bytes"


class GivesATuple(Good):
    def step(self, text: str) -> Any:
        return "text", 0.0, True, False, {}


class ShowsHalfAFile(Good):
    def says(self, text: str) -> Any:
        return PicturedText.of("Look.", [square(self.turn)[:60]])


class ShowsTooMuch(Good):
    def says(self, text: str) -> Any:
        return PicturedText.of("Look.", [square(0)] * 9)


class ShowsFromNowhere(Good):
    def says(self, text: str) -> Any:
        return PicturedText.of("Look.", [square(random.randrange(9))])


def square(seed: int) -> bytes:
    _, (file,) = Walk().reset(seed)
    return file


class PaysNan(Good):
    def pays(self) -> Any:
        return float("nan")


class PaysText(Good):
    def pays(self) -> Any:
        return "1"


class EndsWithANumber(Good):
    def ends(self) -> Any:
        return int(super().ends())


class InformsInNumbers(Good):
    def info(self) -> Any:
        return {"turn": self.turn}


class NeverEnds(Good):
    def ends(self) -> Any:
        return False


class EndsLate(Good):
    def ends(self) -> Any:
        return self.turn > 4


class DrawsFromNowhere(Good):
    def says(self, text: str) -> Any:
        return str(random.random())


class PaysFromNowhere(Good):
    def pays(self) -> Any:
        return random.random()


class ForgetsToBeginAnew(Good):
    turns = 0

    def reset(self, seed: int) -> Any:
        self.turn = 0
        return "begin"

    def says(self, text: str) -> Any:
        self.turns += 1
        return str(self.turns)


class SeedsTheGlobalSource(Good):
    def reset(self, seed: int) -> Any:
        random.seed(seed)
        self.turn = 0
        return "begin"

    def says(self, text: str) -> Any:
        return str(random.random())


class HoldsALambda(Good):
    def reset(self, seed: int) -> Any:
        self.rule = lambda: True
        return super().reset(seed)


class LosesItselfInPickles(Good):
    def __getstate__(self) -> Mapping[str, Any]:
        return {"turn": self.turn, "rng": random.Random(1)}


class Settings(EnvironmentSettings):
    """Any class as an environment."""

    made: Callable[[], Any]
    max_turns: int = 4

    def head(self) -> tuple[Message, ...]:
        return (Message(role="system", content=""),)

    def build(self) -> Environment:
        environment: Environment = self.made()
        return environment


def test_a_good_environment_passes_and_the_global_source_is_no_matter() -> None:
    report = check_environment(Settings(made=Good))
    assert report.passed, report.checks
    assert len(report.transcript) == 4


@pytest.mark.parametrize(
    ("made", "rule", "why"),
    [
        (
            ResetRaises,
            ConformanceRule.RESET,
            "reset must not raise, reset(0) did: OSError: no such texture",
        ),
        (
            ResetGivesNumbers,
            ConformanceRule.RESET,
            "must be text, got list [0, 1]; put it into words",
        ),
        (RaisesAtGarbage, ConformanceRule.STEP, "did: ValueError: invalid literal for int()"),
        (ExitsAtGarbage, ConformanceRule.STEP, "did: SystemExit: 0; answer such a text"),
        (SaysBytes, ConformanceRule.VALUES, "an observation must be text, got bytes b'bytes'"),
        (GivesATuple, ConformanceRule.VALUES, "step must give a Transition, got ('text',"),
        (ShowsHalfAFile, ConformanceRule.PICTURES, "a picture must be a whole file of PNG"),
        (ShowsTooMuch, ConformanceRule.PICTURES, "at most 8 pictures of 4194304 bytes together"),
        (ShowsFromNowhere, ConformanceRule.REPEATS, "it said 'Look.' under the pictures "),
        (PaysNan, ConformanceRule.VALUES, "to 1,000,000, got nan; scale it"),
        (PaysText, ConformanceRule.VALUES, "to 1,000,000, got '1'; scale it"),
        (
            EndsWithANumber,
            ConformanceRule.VALUES,
            "terminated and truncated must be bool, got (0, False)",
        ),
        (InformsInNumbers, ConformanceRule.VALUES, "info must map texts to texts, got {'turn': 1}"),
        (NeverEnds, ConformanceRule.ENDS, "must end within max_turns (4), that of seed 0 did not"),
        (EndsLate, ConformanceRule.ENDS, "raise max_turns"),
        (DrawsFromNowhere, ConformanceRule.REPEATS, "after 1 turns it said '0."),
        (PaysFromNowhere, ConformanceRule.REPEATS, "not all rewards and ends"),
        (ForgetsToBeginAnew, ConformanceRule.REPEATS, "begin anew in reset"),
        (
            SeedsTheGlobalSource,
            ConformanceRule.ALONE,
            "draw from a random.Random of the seed alone",
        ),
        (HoldsALambda, ConformanceRule.PICKLES, "must pickle between turns, it does not"),
        (LosesItselfInPickles, ConformanceRule.PICKLES, "and the same actions must give the same"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_way_of_breaking_the_protocol_is_found(
    made: type[Good], rule: ConformanceRule, why: str
) -> None:
    report = check_environment(Settings(made=made))
    broken, *others = [check for check in report.checks if check.verdict == "broken"]
    assert (broken.rule, report.passed) == (rule, False)
    assert {check.rule for check in others} <= {ConformanceRule.ALONE}, (
        "what is random is so side by side"
    )
    assert why in broken.why
    assert "; " in broken.why, "it says what to do"


def test_a_walk_that_is_shown_is_described_by_the_sizes_of_its_pictures() -> None:
    walk = CustomEnvironmentConfig(path=SHOWN, kwargs={"size": 3})
    report = check_environment(walk, actions=("up", "left"), num_seeds=2)
    assert report.passed, report.checks
    assert {seen for seen, _ in report.transcript} == {"(84 x 84 pixels) "}


def test_what_a_broken_rule_hides_is_not_said_to_hold() -> None:
    report = check_environment(Settings(made=ResetRaises))
    verdicts = {check.rule: check.verdict for check in report.checks}
    assert verdicts.pop(ConformanceRule.HEAD) == "holds"
    assert verdicts.pop(ConformanceRule.RESET) == "broken"
    assert set(verdicts.values()) == {"unknown"}


def test_a_head_without_a_system_turn_is_found() -> None:
    class Headless(Settings):
        def head(self) -> tuple[Message, ...]:
            return (Message(role="user", content="hello"),)

    report = check_environment(Headless(made=Good))
    assert [check.rule for check in report.checks if check.why] == [ConformanceRule.HEAD]


def test_wall_times_are_of_the_calls_alone() -> None:
    ticks = itertools.count()
    report = check_environment(Settings(made=Good), clock=lambda: float(next(ticks)))
    assert (report.reset_s, report.step_s) == ((1.0, 1.0), (1.0, 1.0))


def test_the_example_is_chosen_by_its_import_path_and_plays() -> None:
    config = CustomEnvironmentConfig(path=OWN)
    assert [message.content for message in config.head()[:2]] == [Guess.rules, "Guess."]
    game = config.build()
    assert game.reset(3) == "Guess."
    said = [game.step(str(guess)) for guess in range(1, 6)]
    assert all(turn.observation in ("Higher.", "Lower.", "Right.") for turn in said)
    assert said[-1].terminated


def test_the_command_shows_the_rules_the_times_and_an_episode(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["check", "environment", "guess", "--set", "largest=3", "--set", "max_turns=2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert [shown.count(rule) for rule in ConformanceRule] == [1] * len(ConformanceRule)
    assert shown.count("holds") == len(ConformanceRule)
    assert "24 episodes" in shown
    assert "p99" in shown
    assert "Guess a number from 1 to 3." in shown


def own(tmp_path: Path, body: str) -> str:
    """The import path of a class with these methods."""
    (tmp_path / "mine.py").write_text(f"class Mine:\n{body}")
    return f"{tmp_path}/mine.py:Mine"


RESET = "    def reset(self, seed):\n        return 'go'\n"
NEVER_ENDS = "    def step(self, text):\n        return 'on', 0.0, False, False, {}\n"
GIVES_NUMBERS = "    def step(self, text):\n        return 3, 0.0, True, False, {}\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    def reset(self, seed):\n        1 / 0\n" + NEVER_ENDS, "did: ZeroDivisionError"),
        (RESET + NEVER_ENDS, "must end within max_turns (16)"),
        (RESET + GIVES_NUMBERS, "must be text, step of"),
    ],
    ids=["reset raises", "never ends", "wrong type"],
)
def test_the_command_fails_with_a_sentence_where_a_rule_is_broken(
    body: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "environment", own(tmp_path, body)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert said in shown
    assert shown.count("broken: ") == 1


def test_the_command_shows_what_cannot_be_seen_as_an_escape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says = "    def step(self, text):\n        return '\\x1b[2J\\ud800', 0.0, True, False, {}\n"
    assert main(["check", "environment", own(tmp_path, RESET + says)]) == 0
    assert r"\x1b[2J\ud800" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gues"], "the name must be one of bandit, .* got 'gues'; did you mean guess?"),
        (["my.module"], "or write 'package.module:Name'"),
        (["no_such_module:Guess"], "'no_such_module:Guess' is not (ModuleNotFoundError"),
        (["guess", "--set", "largest=1"], "largest is wrong"),
        (
            ["guess", "--set", "size=1"],
            "size must be a known field, it is not one; 'rollflow explain",
        ),
        (["guess", "--seeds", "1"], "--seeds must be >= 2, got 1; raise it"),
        (["guess", "--timeout", "-1"], "--timeout must be > 0 and at most 1e+06, got -1; choose"),
        (["guess", "--timeout", "0"], "--timeout must be > 0"),
        (["guess", "--timeout", "inf"], "--timeout must be > 0"),
        (["custom"], "must be named by its import path, got 'custom'"),
    ],
)
def test_the_command_refuses_what_it_cannot_play(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "environment", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    first, _, last = said.partition(" .* ")
    assert first in told
    assert last in told


def test_the_command_gives_up_an_environment_that_never_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs = (
        "    def step(self, text):\n"
        "        while True:\n"
        "            try:\n"
        "                import time; time.sleep(60)\n"
        "            except Exception:\n"
        "                pass\n"
    )
    began_s = time.monotonic()
    words = ["check", "environment", own(tmp_path, RESET + hangs), "--timeout", "0.3"]
    assert main(words) == 2
    assert "must end within 0.3 s, it did not" in capsys.readouterr().err
    assert time.monotonic() - began_s < 30


def test_the_suite_runs_without_the_package_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert main(["check", "environment", "bandit", "--seeds", "2"]) == 0
