"""Continuous balancing (PolyRL, Algorithm 2): which running responses move to an engine that has
less to do. Pure.

    loads of all engines ─▶ balance ─▶ moves ─▶ (stopped there, resumed here) ─▶ loads ─▶ ...

A move costs the target engine a prefill of all tokens that the response has. So the youngest
responses move, only to engines that have less to do even after the move, and never to an engine
where they were before: no response moves back and forth, whatever the loads do between two
readings. An engine that decodes few responses gives none up: fewer would be no faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import Fixed


class BalancingConfig(FrozenConfig):
    """How often the loads of a round's engines are compared, and what each comparison may move."""

    enabled: bool = Field(
        True,
        description=(
            "Move running responses to elastic workers and between engines beside elastic workers,"
            " and among the run's own where its policy says so (scheduling.moves_running)."
        ),
    )
    # seconds between two comparisons of loads; a worker that joins causes one more
    interval_s: Fixed[float] = 5.0
    # share by which an engine must have more to do than the one that takes a response from it
    # will then have
    threshold: Fixed[float] = 0.25
    max_moves: Fixed[int] = 32  # responses that one comparison moves at most
    # responses that an engine keeps: so few are decoded as fast as one
    keep_running: Fixed[int] = 4
    # requests that each of the run's own engines has at a time in a round that elastic workers
    # may join, while the others wait for an engine with room; 0 for any number
    max_running: Fixed[int] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MovableResponse:
    """A response that an engine runs or has queued, and that may move to another engine."""

    response_id: str
    remaining_tokens: int  # up to its bound
    # engines that the response never goes to: those where it has been, the present one among them,
    # and those whose weights are too old for it
    closed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The work that an engine has left, and the responses that it may give up."""

    engine: str  # name of the replica
    remaining_tokens: int  # of all its requests, up to their bounds
    responses: tuple[MovableResponse, ...]  # those that may move
    room: int | None  # further requests that it takes; None for any number
    tokens_per_s: float | None  # of a full batch; None as long as it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Decision: this response goes on in another engine."""

    response_id: str
    source: str  # the engine that runs it
    target: str  # the engine that is to go on with it


@dataclass(slots=True, kw_only=True)
class _Shared:
    """An engine after the moves that are decided."""

    name: str
    tokens: int
    speed: float  # tokens/s
    responses: list[MovableResponse]  # those with the most to generate last
    room: int | None

    @property
    def seconds(self) -> float:
        """Seconds of its work."""
        return self.tokens / self.speed

    def seconds_with(self, response: MovableResponse) -> float:
        """Seconds of its work with this response."""
        return (self.tokens + response.remaining_tokens) / self.speed


def balance(config: BalancingConfig, loads: Sequence[EngineLoad]) -> list[Move]:
    """Decide which responses move, in order, given the loads of all engines. An engine of unknown
    speed counts as fast as the others on average."""
    if not config.enabled:
        return []
    engines = _shared(loads)
    moves: list[Move] = []
    while len(moves) < config.max_moves:
        found = next(_worthwhile(config, engines), None)
        if found is None:
            break
        source, target, response = found
        source.responses.remove(response)
        source.tokens -= response.remaining_tokens
        target.tokens += response.remaining_tokens
        target.room = None if target.room is None else target.room - 1
        moves.append(Move(response_id=response.response_id, source=source.name, target=target.name))
    return moves


def _worthwhile(
    config: BalancingConfig, engines: Sequence[_Shared]
) -> Iterator[tuple[_Shared, _Shared, MovableResponse]]:
    """Moves worth their cost, from the busiest engine to the idlest first."""
    by_load = sorted(engines, key=lambda engine: (engine.seconds, engine.name))
    for source in reversed(by_load):
        if len(source.responses) <= config.keep_running:
            continue
        for target in by_load:
            if target is source or target.room == 0:
                continue
            may_go = (each for each in reversed(source.responses) if target.name not in each.closed)
            response = next(may_go, None)  # the one with the most to generate
            if response is None:
                continue
            if source.seconds > (1 + config.threshold) * target.seconds_with(response):
                yield source, target, response


def _shared(loads: Sequence[EngineLoad]) -> list[_Shared]:
    known = [load.tokens_per_s for load in loads if load.tokens_per_s is not None]
    usual = sum(known) / len(known) if known else 1.0
    return [
        _Shared(
            name=load.engine,
            tokens=load.remaining_tokens,
            speed=usual if load.tokens_per_s is None else load.tokens_per_s,
            responses=sorted(
                load.responses, key=lambda each: (each.remaining_tokens, each.response_id)
            ),
            room=load.room,
        )
        for load in loads
    ]


class Speeds:
    """Tokens per second of each engine under load: the highest rate between two readings."""

    def __init__(self, keep_running: int) -> None:
        """keep_running: an engine is measured only while it runs more responses than this."""
        self._keep_running = keep_running
        self._best: dict[str, float] = {}
        self._before: dict[str, tuple[float, int]] = {}  # when, and tokens generated until then

    def measure(self, engine: str, num_running: int, tokens_generated: int, now_s: float) -> None:
        """Record a reading of an engine: the responses that it runs, and the tokens that it has
        generated since its start. now_s: by a clock that all readings share."""
        before = self._before.pop(engine, None)
        if num_running <= self._keep_running:
            return
        self._before[engine] = now_s, tokens_generated
        if before is not None and now_s > before[0] and tokens_generated > before[1]:
            speed = (tokens_generated - before[1]) / (now_s - before[0])
            self._best[engine] = max(speed, self._best.get(engine, 0.0))

    def of(self, engine: str) -> float | None:
        """Highest measured tokens per second of an engine; None before the first measurement."""
        return self._best.get(engine)
