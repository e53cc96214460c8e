"""Plays episodes for the conformance suite: every call is timed, and every answer held against the
protocol.

A call that breaks the protocol raises `Broken`; `tried` has the rules that were checked.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from tasks.environments.adapters.adapter import ProtocolError
from tasks.environments.base import Environment, Transition
from tasks.rewards.base import checked_reward

Verdict = Literal["holds", "broken", "unknown"]  # unknown: an earlier rule kept it from being tried


class ConformanceRule(StrEnum):
    """The rules, in the order in which they are reported."""

    HEAD = "the head is a chat that a system turn begins"
    RESET = "reset gives a text"
    STEP = "step raises at no text"
    VALUES = "step gives a text, a finite reward, two flags and texts"
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
class Check:
    """The verdict on one rule."""

    rule: ConformanceRule
    verdict: Verdict
    why: str  # what broke it; empty where nothing did


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """The findings of the suite."""

    checks: tuple[Check, ...]  # one per rule, in their order
    num_episodes: int  # different ones that were played to their end
    num_steps: int  # of all plays
    reset_s: tuple[float, float]  # wall seconds of a reset, median and 99th percentile
    step_s: tuple[float, float]  # wall seconds of a step, likewise
    transcript: tuple[tuple[str, str], ...]  # an episode: what was observed and what was done

    @property
    def passed(self) -> bool:
        """True if every rule holds."""
        return all(check.verdict == "holds" for check in self.checks)


CUT = 60  # characters of a text that a sentence shows
RAISED = (Exception, SystemExit)  # by an environment: its own code may raise anything, and exit


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """A played episode, without the details of `info`."""

    seed: int
    actions: tuple[str, ...]
    observations: tuple[str, ...]  # one more than actions: the reset's comes first
    rewards: tuple[float, ...]
    ends: tuple[tuple[bool, bool], ...]  # terminated and truncated of every turn


class Playing:
    """Resets and steps environments, times every call and checks every answer."""

    def __init__(
        self, clock: Callable[[], float], observe: Callable[[str, Transition], Transition]
    ) -> None:
        """observe: returns the transition as the model reads it, from the action's text and the
        environment's answer."""
        self._clock, self._observe = clock, observe
        self.tried: set[ConformanceRule] = set()
        self.resets_s: list[float] = []
        self.steps_s: list[float] = []

    def play(
        self,
        environment: Environment,
        seed: int,
        act: Callable[[Sequence[str]], str],
        max_turns: int,
    ) -> PlayedEpisode:
        """Play an episode to its end, with the actions that `act` chooses. Raises Broken."""
        observations, actions = [self._reset(environment, seed)], list[str]()
        turns = list[Transition]()
        self.tried.add(ConformanceRule.ENDS)
        while len(actions) < max_turns:
            actions.append(act(observations))
            turns.append(self._step(environment, actions[-1]))
            observations.append(turns[-1].observation)
            if turns[-1].terminated or turns[-1].truncated:
                return episode(seed, actions, observations[0], turns)
        raise Broken(
            ConformanceRule.ENDS,
            f"an episode must end within max_turns ({max_turns}), that of seed {seed} did not; have"
            " step give truncated=True by then, or raise max_turns",
        )

    def replay(
        self, environment: Environment, played: PlayedEpisode, *, over_pickles: bool = False
    ) -> PlayedEpisode:
        """Play the same seed and actions again."""
        *_, again = self.growing(environment, played, over_pickles=over_pickles)
        return again

    def growing(
        self, environment: Environment, played: PlayedEpisode, *, over_pickles: bool = False
    ) -> Iterator[PlayedEpisode]:
        """Play the same seed and actions again; yields the episode so far after the reset and after
        every turn."""
        first, turns = self._reset(environment, played.seed), list[Transition]()
        yield episode(played.seed, (), first, turns)
        for number, action in enumerate(played.actions, start=1):
            if over_pickles:
                environment = self._pickled(environment)
            turns.append(self._step(environment, action))
            yield episode(played.seed, played.actions[:number], first, turns)
            if turns[-1].terminated or turns[-1].truncated:
                return

    def _reset(self, environment: Environment, seed: int) -> str:
        self.tried.add(ConformanceRule.RESET)
        began_s = self._clock()
        try:
            observation = environment.reset(seed)
        except ProtocolError as error:
            raise Broken(ConformanceRule.RESET, str(error)) from error
        except RAISED as error:
            raise Broken(
                ConformanceRule.RESET,
                f"reset must not raise, reset({seed}) did: {described(error)}; mend it",
            ) from error
        self.resets_s.append(self._clock() - began_s)
        _check_text(ConformanceRule.RESET, observation)
        return observation

    def _step(self, environment: Environment, text: str) -> Transition:
        self.tried |= {ConformanceRule.STEP, ConformanceRule.VALUES}
        began_s = self._clock()
        try:
            turn = environment.step(text)
        except ProtocolError as error:
            raise Broken(ConformanceRule.VALUES, str(error)) from error
        except RAISED as error:
            raise Broken(
                ConformanceRule.STEP,
                f"step must not raise, step({shown(text)}) did: {described(error)}; answer such a"
                " text, and count it as a turn",
            ) from error
        turn = self._observe(text, turn)
        self.steps_s.append(self._clock() - began_s)
        _check_values(turn)
        return turn

    def _pickled(self, environment: Environment) -> Environment:
        self.tried.add(ConformanceRule.PICKLES)
        try:
            copy: Environment = pickle.loads(pickle.dumps(environment))
        except RAISED as error:
            raise Broken(
                ConformanceRule.PICKLES,
                f"an environment must pickle between turns, it does not ({described(error)}); keep"
                " plain values in it, no files, locks or lambdas",
            ) from error
        return copy


def episode(
    seed: int, actions: Sequence[str], first: str, turns: Sequence[Transition]
) -> PlayedEpisode:
    """Returns the record of a reset and its steps."""
    return PlayedEpisode(
        seed=seed,
        actions=tuple(actions),
        observations=(first, *(turn.observation for turn in turns)),
        rewards=tuple(turn.reward for turn in turns),
        ends=tuple((turn.terminated, turn.truncated) for turn in turns),
    )


def difference(first: PlayedEpisode, again: PlayedEpisode) -> str:
    """Describe where two plays of an episode differ, in a few words; empty if they do not."""
    for turn, (one, other) in enumerate(zip(first.observations, again.observations, strict=False)):
        if one != other:
            return f"after {turn} turns it said {shown(one)} first and {shown(other)} then"
    if first != again:
        return "the observations are the same, but not all rewards and ends"
    return ""


def _check_values(turn: object) -> None:
    """Raise Broken unless the answer is one that a step may give."""
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


def shown(value: object) -> str:
    """Returns a value as text for a sentence, shortened."""
    text = repr(value)
    return text if len(text) <= CUT else f"{text[:CUT]}..."


def described(error: BaseException) -> str:
    """Returns an exception as text for a sentence."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
