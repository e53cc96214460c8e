"""Responses as episodes: the same sampled tokens, with given ones between. Needs no torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from artifacts.episodes import Ending, Episode, Turn
from artifacts.records import Generated, VersionSpan
from tasks.engines.simulation.replica import SimulatedEngine

VOCABULARY = 61


def as_episode(
    generated: Generated,
    turns: Sequence[tuple[tuple[int, ...], int]],
    ending: Ending | None = Ending.TERMINATED,
    restarts: Sequence[int] = (),
) -> Generated:
    """The response's tokens as those sampled in an episode: in each turn so many of them, after
    these given ones. restarts: numbers of the turns whose given ones are the whole history."""
    tokens: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    left = list(zip(generated.token_ids, generated.logprobs, versions_of(generated), strict=True))
    for given, num_sampled in turns:
        own, left = left[:num_sampled], left[num_sampled:]
        tokens += [*given, *(token for token, _, _ in own)]
        logprobs += [0.0] * len(given) + [logprob for _, logprob, _ in own]
        read_by = own[0][2] if own else generated.versions[-1].version if generated.versions else 0
        versions += [read_by] * len(given) + [version for _, _, version in own]
    assert not left, "all sampled tokens are in turns"
    return replace(
        generated,
        token_ids=tuple(tokens),
        logprobs=tuple(logprobs),
        versions=tuple(VersionSpan(version=version, num_tokens=1) for version in versions),
        episode=Episode(
            turns=tuple(
                replace(turn(len(given), num_sampled), starts_over=number in restarts)
                for number, (given, num_sampled) in enumerate(turns)
            ),
            ending=ending,
        ),
    )


def versions_of(generated: Generated) -> list[int]:
    """The weight version of each token."""
    return [span.version for span in generated.versions for _ in range(span.num_tokens)]


def turn(num_given: int, num_sampled: int, reward: float | None = 0.0, said: str = "") -> Turn:
    return Turn(
        num_given=num_given,
        num_sampled=num_sampled,
        observation=said,
        action="",
        reward=reward,
        asked_s=0.0,
        acted_s=0.0,
        answered_s=0.0,
    )


def random_turns(
    rng: random.Random, num_sampled: int, first: tuple[int, ...]
) -> list[tuple[tuple[int, ...], int]]:
    """Turns with so many sampled tokens, some of none; the first observation is that of the
    group."""
    turns, given = [], first
    while num_sampled or not turns:
        taken = min(num_sampled, rng.choice([0, 1, 2, 5]))
        turns.append((given, taken))
        num_sampled -= taken
        given = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4)))
    return [*turns, (given, 0)] if rng.random() < 0.3 else turns


class TalkingEngine(SimulatedEngine):
    """Hands every response back as the sampled tokens of an episode of random turns."""

    async def collect(self, wait_s: float) -> list[Generated]:
        return [_talked(generated) for generated in await super().collect(wait_s)]


def _talked(generated: Generated) -> Generated:
    rng = random.Random(generated.response_id)
    return as_episode(generated, random_turns(rng, generated.num_sampled, first=(7, 8)))
