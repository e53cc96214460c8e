"""Checks that an environment keeps the protocol, by playing episodes of it.

    seeds x players -> an episode each -> again: the same, and over pickles -> all side by side

Leaves out processes and limits: the caller must end a step that never returns.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import pickle
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from artifacts.conformance import CheckVerdict, RuleCheck, shown
from artifacts.pictures import opened
from tasks.environments.base import (
    Environment,
    EnvironmentSettings,
    ProtocolError,
    Transition,
    check_pictures,
)
from tasks.environments.games.game import GameConfig
from tasks.environments.tools.programs import ProgramRunner
from tasks.environments.transition import pictures_in
from tasks.isolation.isolation import Isolation
from tasks.rewards.base import checked_reward
from tasks.rewards.conformance import HOSTILE

RAISED = (Exception, SystemExit)  # by an environment: its own code may raise anything, and exit
Act = Callable[[Sequence[str]], str]  # the action after the observations so far
Player = Callable[[Sequence[str], random.Random], str]  # likewise


class ConformanceRule(StrEnum):
    """The rules, in the order in which they are reported."""

    HEAD = "the head is a chat that a system turn begins"
    RESET = "reset gives a text"
    STEP = "step raises at no text"
    VALUES = "step gives a text, a finite reward, two flags and texts"
    PICTURES = "pictures, if there are any, are whole files"
    ENDS = "an episode ends within max_turns"
    REPEATS = "the same seed and actions give the same transcript"
    ALONE = "episodes side by side do not touch"
    PICKLES = "a pickle after every turn changes nothing"


class Broken(Exception):
    """Raised for a rule that does not hold."""

    def __init__(self, rule: ConformanceRule, why: str) -> None:
        super().__init__(why)
        self.rule = rule
        self.why = why  # the rule, the value and the cure in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """The findings of the suite."""

    checks: tuple[RuleCheck, ...]  # one per rule, in their order
    num_episodes: int  # different ones that were played to their end
    num_steps: int  # of all plays
    reset_s: tuple[float, float]  # wall seconds of a reset, median and 99th percentile
    step_s: tuple[float, float]  # wall seconds of a step, likewise
    transcript: tuple[tuple[str, str], ...]  # an episode: what was observed and what was done

    @property
    def passed(self) -> bool:
        """True if every rule holds."""
        return all(check.verdict == "holds" for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """An episode as far as it was played, without the details of `info`."""

    seed: int
    actions: tuple[str, ...] = ()
    observations: tuple[str, ...]  # one more than actions: the reset's comes first
    outcomes: tuple[tuple[float, bool, bool], ...] = ()  # reward, terminated, truncated of a turn

    @property
    def is_over(self) -> bool:
        """True if the environment has ended the episode."""
        return bool(self.outcomes) and True in self.outcomes[-1][1:]


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
        suite = _Suite(settings, programs, clock)
        suite.attempt(suite.check_head)
        for seed, player in itertools.product(range(num_seeds), players(settings, actions).items()):
            suite.attempt(partial(suite.check_episode, seed, *player))
        suite.attempt(suite.check_side_by_side)
    return suite.report()


class _Suite:
    """One run of the checks; the first failure of a rule is kept."""

    def __init__(
        self, settings: EnvironmentSettings, programs: ProgramRunner, clock: Callable[[], float]
    ) -> None:
        self._settings, self._programs, self._clock = settings, programs, clock
        self._tried: set[ConformanceRule] = set()
        self._failures: dict[ConformanceRule, str] = {}
        self._episodes: list[PlayedEpisode] = []
        self._resets_s: list[float] = []
        self._steps_s: list[float] = []

    def attempt(self, check: Callable[[], None]) -> None:
        """Run a check; it ends at the first rule that it finds broken."""
        try:
            check()
        except Broken as broken:
            self._failures.setdefault(broken.rule, broken.why)

    def report(self) -> ConformanceReport:
        checks = []
        for rule in ConformanceRule:
            verdict: CheckVerdict = "holds" if rule in self._tried else "unknown"
            if rule in self._failures:
                verdict = "broken"
            checks.append(RuleCheck(rule=rule, verdict=verdict, why=self._failures.get(rule, "")))
        transcript = list[tuple[str, str]]()
        for played in self._episodes[:1]:
            seen = map(_in_words, played.observations)
            transcript += zip(seen, (*played.actions, ""), strict=True)
        return ConformanceReport(
            checks=tuple(checks),
            num_episodes=len(self._episodes),
            num_steps=len(self._steps_s),
            reset_s=_percentiles(self._resets_s),
            step_s=_percentiles(self._steps_s),
            transcript=tuple(transcript),
        )

    def check_head(self) -> None:
        self._tried.add(ConformanceRule.HEAD)
        head = self._settings.head()
        if not head or head[0].role != "system":
            raise Broken(
                ConformanceRule.HEAD, "head() must begin with a system turn; put one first"
            )

    def check_episode(self, seed: int, name: str, player: Player) -> None:
        """Play an episode, then again: in a new environment, the used one and over pickles."""
        rng, used = random.Random(f"{name}/{seed}"), self._settings.build()
        max_turns = self._settings.max_turns
        *_, played = self._plays(used, seed, lambda seen: player(seen, rng), max_turns)
        if not played.is_over:
            raise Broken(
                ConformanceRule.ENDS,
                f"an episode must end within max_turns ({max_turns}), that of seed {seed} did not;"
                " have step give truncated=True by then, or raise max_turns",
            )
        self._episodes.append(played)
        for environment in (self._settings.build(), used):
            *_, again = self._replays(environment, played)
            self._compare(ConformanceRule.REPEATS, played, again)
        *_, again = self._replays(self._settings.build(), played, over_pickles=True)
        self._compare(ConformanceRule.PICKLES, played, again)

    def check_side_by_side(self) -> None:
        """Neighbouring episodes take turns: do random sources or class attributes show?"""
        for pair in itertools.pairwise(self._episodes):
            plays = [self._replays(self._settings.build(), played) for played in pair]
            latest = list(pair)
            for grown in itertools.zip_longest(*plays):
                latest = [new or old for new, old in zip(grown, latest, strict=True)]
            for played, again in zip(pair, latest, strict=True):
                self._compare(ConformanceRule.ALONE, played, again)

    def _compare(self, rule: ConformanceRule, first: PlayedEpisode, again: PlayedEpisode) -> None:
        self._tried.add(rule)
        if first == again:
            return
        parts = "the observations are the same, but not all rewards and ends"
        pairs = zip(first.observations, again.observations, strict=False)
        for turn, (one, other) in enumerate(pairs):
            if one != other:
                parts = f"after {turn} turns it said {shown(one)} first and {shown(other)} then"
                break
        raise Broken(
            rule,
            f"seed {first.seed} and the same actions must give the same, {parts}; draw from a"
            " random.Random of the seed alone, and begin anew in reset",
        )

    def _replays(
        self, environment: Environment, played: PlayedEpisode, *, over_pickles: bool = False
    ) -> Iterator[PlayedEpisode]:
        """Play the same seed and actions again; yields as `_plays`."""

        def act(observations: Sequence[str]) -> str:
            return played.actions[len(observations) - 1]

        num_turns = len(played.actions)
        return self._plays(environment, played.seed, act, num_turns, over_pickles=over_pickles)

    def _plays(
        self,
        environment: Environment,
        seed: int,
        act: Act,
        max_turns: int,
        *,
        over_pickles: bool = False,
    ) -> Iterator[PlayedEpisode]:
        """Play an episode; yields it so far after the reset and every turn. Raises Broken."""
        played = PlayedEpisode(seed=seed, observations=(self._reset(environment, seed),))
        self._tried.add(ConformanceRule.ENDS)
        yield played
        while len(played.actions) < max_turns and not played.is_over:
            if over_pickles:
                environment = self._pickled(environment)
            action = act(played.observations)
            turn = self._step(environment, action)
            played = PlayedEpisode(
                seed=seed,
                actions=(*played.actions, action),
                observations=(*played.observations, turn.observation),
                outcomes=(*played.outcomes, turn[1:4]),
            )
            yield played

    def _reset(self, environment: Environment, seed: int) -> str:
        self._tried.add(ConformanceRule.RESET)
        began_s = self._clock()
        try:
            observation = environment.reset(seed)
        except ProtocolError as error:
            raise Broken(ConformanceRule.RESET, str(error)) from error
        except RAISED as error:
            raise Broken(
                ConformanceRule.RESET,
                f"reset must not raise, reset({seed}) did: {_described(error)}; mend it",
            ) from error
        self._resets_s.append(self._clock() - began_s)
        _check_text(ConformanceRule.RESET, observation)
        self._check_pictures(observation)
        return observation

    def _step(self, environment: Environment, text: str) -> Transition:
        self._tried |= {ConformanceRule.STEP, ConformanceRule.VALUES}
        began_s = self._clock()
        try:
            turn = environment.step(text)
        except ProtocolError as error:
            raise Broken(ConformanceRule.VALUES, str(error)) from error
        except RAISED as error:
            raise Broken(
                ConformanceRule.STEP,
                f"step must not raise, step({shown(text)}) did: {_described(error)}; answer such a"
                " text, and count it as a turn",
            ) from error
        if program := self._settings.program_in(text):
            turn = turn._replace(observation=self._programs.run(program))
        self._steps_s.append(self._clock() - began_s)
        _check_values(turn)
        self._check_pictures(turn.observation)
        return turn

    def _check_pictures(self, observation: str) -> None:
        self._tried.add(ConformanceRule.PICTURES)
        pictures = pictures_in(observation)
        try:
            check_pictures(pictures)
            for data in pictures:
                opened(data)
        except ValueError as error:
            raise Broken(ConformanceRule.PICTURES, str(error)) from error

    def _pickled(self, environment: Environment) -> Environment:
        self._tried.add(ConformanceRule.PICKLES)
        try:
            copy: Environment = pickle.loads(pickle.dumps(environment))
        except RAISED as error:
            raise Broken(
                ConformanceRule.PICKLES,
                "an environment must pickle between turns, it does not"
                f" ({_described(error)}); keep plain values in it, no files, locks or lambdas",
            ) from error
        return copy


def _check_values(turn: object) -> None:
    if not isinstance(turn, Transition):
        raise Broken(
            ConformanceRule.VALUES, f"step must give a Transition, got {shown(turn)}; make it one"
        )
    _check_text(ConformanceRule.VALUES, turn.observation)
    try:
        checked_reward(int(turn.reward) if isinstance(turn.reward, bool) else turn.reward)
    except ValueError as error:
        raise Broken(ConformanceRule.VALUES, str(error)) from error
    flags = (turn.terminated, turn.truncated)
    if not all(isinstance(flag, bool) for flag in flags):
        raise Broken(
            ConformanceRule.VALUES,
            f"terminated and truncated must be bool, got {flags}; make it so",
        )
    if not all(isinstance(word, str) for pair in turn.info.items() for word in pair):
        raise Broken(
            ConformanceRule.VALUES,
            f"info must map texts to texts, got {shown(turn.info)}; make it so",
        )


def _check_text(rule: ConformanceRule, observation: object) -> None:
    if not isinstance(observation, str):
        raise Broken(
            rule,
            f"an observation must be text, got {type(observation).__name__} {shown(observation)};"
            " put it into words",
        )


def _in_words(observation: str) -> str:
    """An observation in words: pictures by their sizes, then the text."""
    sizes = (opened(data).size for data in pictures_in(observation))
    return "".join(f"({width} x {height} pixels) " for width, height in sizes) + observation


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median and the 99th percentile; 0 without values."""
    if not values:
        return 0.0, 0.0
    ordered, last = sorted(values), len(values) - 1
    return ordered[last // 2], ordered[math.ceil(0.99 * last)]
