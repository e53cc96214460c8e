"""Checks that an environment keeps the protocol, by playing episodes of it.

    seeds x players -> an episode each -> again: the same, and over pickles -> all side by side

Leaves out processes and limits: the caller must end a step that never returns.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tasks.environments.base import EnvironmentSettings
from tasks.environments.conformance.playing import (
    Broken,
    Check,
    ConformanceReport,
    ConformanceRule,
    PlayedEpisode,
    Playing,
    difference,
)
from tasks.environments.games.game import GameConfig
from tasks.environments.tools.programs import ProgramRunner
from tasks.isolation.isolation import Isolation

# what a model at its worst says: nothing, too much, numbers that are none, control characters
HOSTILE = (
    "", " ", "\n\n", ".", "x" * 10_000, "9" * 10_000, "-1", "0", "1e999", "nan", "null", "{}", "[1",
    "\u0663", "\u00b2", "\U0001f600", "\u202eabc", "e\u0301", "\ufffd", "\x00", "\x1b[31m",
    "<|im_end|>", "<|im_start|>system", "<eos>", "'; DROP TABLE", "{0.__class__}", "%s%n", "../..",
)  # fmt: skip
Player = Callable[[Sequence[str], random.Random], str]  # the action after the observations so far


def players(settings: EnvironmentSettings, actions: Sequence[str]) -> Mapping[str, Player]:
    """Returns the players by name. Players of valid moves are included only if such moves are
    known: from `actions`, or from a game of our own."""

    def hostile(observations: Sequence[str], rng: random.Random) -> str:
        return rng.choice(HOSTILE)

    def valid(observations: Sequence[str], rng: random.Random) -> str:
        if not actions and isinstance(settings, GameConfig):
            return settings.valid_action(observations, rng)
        return rng.choice(actions)

    def mixed(observations: Sequence[str], rng: random.Random) -> str:
        return (valid if rng.random() < 0.7 else hostile)(observations, rng)

    if not (actions or isinstance(settings, GameConfig)):
        return {"hostile": hostile}
    return {"valid": valid, "hostile": hostile, "mixed": mixed}


def check_environment(
    settings: EnvironmentSettings,
    *,
    actions: Sequence[str] = (),
    num_seeds: int = 8,
    clock: Callable[[], float] = time.perf_counter,
) -> ConformanceReport:
    """Play episodes of num_seeds seeds, at least two, with every player. actions: valid moves of an
    environment whose moves are not known. Raises ValueError for an environment that cannot be made.
    """
    settings.build()
    with contextlib.closing(ProgramRunner(Isolation.NAMESPACES)) as programs:
        suite = _Suite(settings, Playing(clock, partial(programs.observed, settings)))
        suite.attempt(suite.check_head)
        for seed, player in itertools.product(range(num_seeds), players(settings, actions).items()):
            suite.attempt(partial(suite.check_episode, seed, *player))
        suite.attempt(suite.check_side_by_side)
    return suite.report()


class _Suite:
    """One run of the checks. The first failure of a rule is kept."""

    def __init__(self, settings: EnvironmentSettings, playing: Playing) -> None:
        self._settings, self._playing = settings, playing
        self._failures: dict[ConformanceRule, str] = {}
        self._episodes: list[PlayedEpisode] = []

    def attempt(self, check: Callable[[], None]) -> None:
        """Run a check; it ends at the first rule that it finds broken."""
        try:
            check()
        except Broken as broken:
            self._failures.setdefault(broken.rule, broken.why)

    def check_head(self) -> None:
        self._playing.tried.add(ConformanceRule.HEAD)
        head = self._settings.head()
        if not head or head[0].role != "system":
            raise Broken(
                ConformanceRule.HEAD, "head() must begin with a system turn; put one first"
            )

    def check_episode(self, seed: int, name: str, player: Player) -> None:
        """Play an episode with this player, then again in a new environment, in the used one, and
        over pickles."""
        rng, used = random.Random(f"{name}/{seed}"), self._settings.build()
        played = self._playing.play(
            used, seed, lambda observations: player(observations, rng), self._settings.max_turns
        )
        self._episodes.append(played)
        self._compare(
            ConformanceRule.REPEATS, played, self._playing.replay(self._settings.build(), played)
        )
        self._compare(ConformanceRule.REPEATS, played, self._playing.replay(used, played))
        again = self._playing.replay(self._settings.build(), played, over_pickles=True)
        self._compare(ConformanceRule.PICKLES, played, again)

    def check_side_by_side(self) -> None:
        """Neighbouring episodes take turns in one process: what one does to random sources or
        class attributes shows in the other."""
        for pair in itertools.pairwise(self._episodes):
            plays = [self._playing.growing(self._settings.build(), played) for played in pair]
            latest = list(pair)
            for grown in itertools.zip_longest(*plays):
                latest = [new or old for new, old in zip(grown, latest, strict=True)]
            for played, again in zip(pair, latest, strict=True):
                self._compare(ConformanceRule.ALONE, played, again)

    def _compare(self, rule: ConformanceRule, first: PlayedEpisode, again: PlayedEpisode) -> None:
        self._playing.tried.add(rule)
        if parts := difference(first, again):
            raise Broken(
                rule,
                f"seed {first.seed} and the same actions must give the same, {parts}; draw from a"
                " random.Random of the seed alone, and begin anew in reset",
            )

    def report(self) -> ConformanceReport:
        example = self._episodes[:1]
        return ConformanceReport(
            checks=tuple(self._checked(rule) for rule in ConformanceRule),
            num_episodes=len(self._episodes),
            num_steps=len(self._playing.steps_s),
            reset_s=_percentiles(self._playing.resets_s),
            step_s=_percentiles(self._playing.steps_s),
            transcript=tuple(
                turn
                for played in example
                for turn in zip(played.observations, (*played.actions, ""), strict=True)
            ),
        )

    def _checked(self, rule: ConformanceRule) -> Check:
        if rule in self._failures:
            return Check(rule=rule, verdict="broken", why=self._failures[rule])
        tried = rule in self._playing.tried
        return Check(rule=rule, verdict="holds" if tried else "unknown", why="")


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 99th percentile; 0 without values."""
    if not values:
        return 0.0, 0.0
    ordered, last = sorted(values), len(values) - 1
    return ordered[last // 2], ordered[math.ceil(0.99 * last)]
