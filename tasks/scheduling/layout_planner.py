"""Plans how many devices each engine has in the next round of a layout, from preemptions and from a
profile of measured throughput. Pure.

    first round of a layout ─▶ `begun`: the best size of a profile, or the configured one
    round is over ──────────▶ `after`: the paper's rule (`parallelism`), without sizes that a
                              profile has as slower; or the best size of a profile for the measured
                              lengths
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

from tasks.scheduling.batch import RoundShape
from tasks.scheduling.parallelism import LayoutState, PlannerState, RoundReading, observe

PROFILE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputPoint:
    """Measured throughput of one replica for one size, batch and length."""

    size: int  # devices that hold the replica
    batch: int  # responses that decode together
    length: int  # prompt tokens of each
    prefill_tokens_per_s: float  # prompt tokens of the whole batch, computed from scratch
    decode_tokens_per_s: float  # generated tokens of the whole batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The responses that a round asks of the engines: number and lengths."""

    num_responses: int  # launched
    prompt_tokens: int  # of each
    response_tokens: int  # of each, on average
    # tokens of equal shares of the responses, ascending; empty where the average stands for all
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputProfile:
    """Measured throughput and KV-cache capacity of a model's replicas, by size."""

    model: str  # the model that was measured
    device: str  # what a device is, for example "1 CPU core"
    kv_tokens: Mapping[int, int]  # tokens that fit the KV cache of a replica, by size
    points: tuple[ThroughputPoint, ...]
    version: int = PROFILE_VERSION

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that were measured, smallest first."""
        return tuple(sorted({point.size for point in self.points}))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of to_json. Raises ValueError for any other text."""
        try:
            raw = json.loads(text)
            if raw["version"] != PROFILE_VERSION:
                raise ValueError(f"version {raw['version']}")
            points = tuple(ThroughputPoint(**point) for point in raw.pop("points"))
            kv_tokens = {int(size): tokens for size, tokens in raw.pop("kv_tokens").items()}
            return cls(kv_tokens=kv_tokens, points=points, **raw)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                "a profile must be the JSON of 'rollflow calibrate', version"
                f" {PROFILE_VERSION}, got {error!r}; measure again"
            ) from error

    def predicted_s(self, size: int, num_devices: int, demand: Demand) -> float:
        """Predicted seconds of a round on num_devices // size replicas. As many responses decode at
        a time as fit the KV cache; all have the mean length, unless demand.lengths is given."""
        num_each = math.ceil(demand.num_responses / (num_devices // size))
        if demand.lengths:
            return self._thinning_s(size, num_each, demand)
        room = self.kv_tokens[size] // (demand.prompt_tokens + demand.response_tokens)
        batch = max(1, min(num_each, room))
        prefill, decode = self._rates(size, batch, demand.prompt_tokens)
        return num_each * (demand.prompt_tokens / prefill + demand.response_tokens / decode)

    def _thinning_s(self, size: int, num_each: int, demand: Demand) -> float:
        """Seconds of a replica whose responses end one share after the other: the batch gets
        smaller, and the last ones decode nearly alone."""
        prefill, _ = self._rates(size, num_each, demand.prompt_tokens)
        seconds, reached = num_each * demand.prompt_tokens / prefill, 0
        for place, length in enumerate(demand.lengths):
            batch = max(1.0, num_each * (1 - place / len(demand.lengths)))
            held_tokens = demand.prompt_tokens + reached
            room = max(1, self.kv_tokens[size] // held_tokens)
            _, decode = self._rates(size, min(batch, room), held_tokens)
            seconds += (length - reached) * batch / decode
            reached = length
        return seconds

    def _rates(self, size: int, batch: float, length: int) -> tuple[float, float]:
        """(prefill, decode) tokens per second, between the measured batches by interpolation; of
        the nearest measured length."""
        measured = [point for point in self.points if point.size == size]
        nearest = min(
            {point.length for point in measured},
            key=lambda tokens: (abs(tokens - length), tokens),
        )
        curve = sorted(
            (point for point in measured if point.length == nearest), key=lambda point: point.batch
        )
        above = min(bisect_left([point.batch for point in curve], batch), len(curve) - 1)
        high, low = curve[above], curve[max(0, above - 1)]
        share = 0.0
        if high.batch > low.batch:
            share = min(1.0, max(0.0, (batch - low.batch) / (high.batch - low.batch)))
        return (
            low.prefill_tokens_per_s
            + share * (high.prefill_tokens_per_s - low.prefill_tokens_per_s),
            low.decode_tokens_per_s + share * (high.decode_tokens_per_s - low.decode_tokens_per_s),
        )


def best_size(
    profile: ThroughputProfile, sizes: Sequence[int], num_devices: int, demand: Demand
) -> int:
    """The size with the shortest predicted round, among the possible sizes that were measured; of
    equals the smaller. Raises ValueError if no possible size was measured."""
    known = [size for size in sizes if size in profile.sizes and size in profile.kv_tokens]
    if not known:
        raise ValueError(
            f"planner.profile must have measured a possible size ({', '.join(map(str, sizes))}), it"
            f" has {profile.sizes}; measure again with --sizes {sizes[0]}"
        )
    return min(known, key=lambda size: (profile.predicted_s(size, num_devices, demand), size))


def not_slower(
    profile: ThroughputProfile, sizes: Sequence[int], now: int, num_devices: int, demand: Demand
) -> tuple[int, ...]:
    """The possible sizes, without those that the profile predicts to be slower than the present
    size (`now`) for this demand. Unmeasured sizes stay."""
    known = [size for size in sizes if size in profile.sizes and size in profile.kv_tokens]
    if now not in known:
        return tuple(sizes)
    limit_s = profile.predicted_s(now, num_devices, demand)
    return tuple(
        size
        for size in sizes
        if size not in known or profile.predicted_s(size, num_devices, demand) <= limit_s
    )


# bound on the length of a response over the mean length: 16 in the paper's tasks, 7 to 14 in
# tiny-mix
BOUND_PER_MEAN = 8
SHARES = 64  # equal shares of a round's responses, each with a length of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlanner:
    """Chooses the size of a run's engines for every layout of rounds."""

    sizes: tuple[int, ...]  # possible tensor-parallel sizes
    num_devices: int  # that generate
    first_size: int  # of a layout of which nothing is known
    profile: ThroughputProfile | None = None  # throughput of replicas, if it was measured
    by_lengths: bool = False  # whether the profile alone decides, by how long responses get

    def begun(self, state: PlannerState, layout: str, demand: Demand) -> PlannerState:
        """The state with a size for this layout: the known one if it is still possible, else a
        first size. A size may become impossible when a run is resumed with other devices. Raises
        ValueError if the profile has measured no possible size."""
        known = state.layouts.get(layout)
        if known is not None and known.size in self.sizes:
            return state
        size = self.first_size
        if self.profile is not None:
            size = self._best(self.profile, demand)
        return state.having(layout, LayoutState(size=size))

    def after(self, state: PlannerState, reading: RoundReading, demand: Demand) -> PlannerState:
        """The state after a round with this reading and this demand."""
        if self.profile is None:
            return observe(state, reading, self.sizes, {})
        if self.by_lengths:
            return state.having(reading.layout, LayoutState(size=self._best(self.profile, demand)))
        now = state.layouts[reading.layout].size
        demand = replace(demand, lengths=())
        sizes = not_slower(self.profile, self.sizes, now, self.num_devices, demand)
        return observe(state, reading, sizes, self.profile.kv_tokens)

    def _best(self, profile: ThroughputProfile, demand: Demand) -> int:
        used = demand if self.by_lengths else replace(demand, lengths=())
        return best_size(profile, self.sizes, self.num_devices, used)


def expected_demand(shape: RoundShape, prompt_tokens: int, longest_tokens: int) -> Demand:
    """The demand of a round of which only the shape and the bound on lengths (longest_tokens) are
    known. Lengths are assumed to fall off exponentially, with a mean of the bound over
    `BOUND_PER_MEAN`."""
    mean_tokens = max(1, longest_tokens // BOUND_PER_MEAN)
    scores = (-math.log(1 - (place + 0.5) / SHARES) for place in range(SHARES - 1))
    lengths = (min(longest_tokens, round(mean_tokens * score)) for score in scores)
    return Demand(
        num_responses=shape.launch_responses,
        prompt_tokens=prompt_tokens,
        response_tokens=mean_tokens,
        lengths=(*lengths, longest_tokens),
    )


def seen_demand(
    num_responses: int, prompt_tokens: int, num_tokens: int, ended: Sequence[int] = ()
) -> Demand:
    """The demand of a round that was played, with num_tokens in all its responses. ended: lengths
    of the responses that were not stopped; stopped ones are assumed to have the longest of these
    lengths."""
    known = sorted(ended)
    known += known[-1:] * (num_responses - len(known))
    last = len(known) - 1
    lengths = (known[last * place // (SHARES - 1)] for place in range(SHARES))
    return Demand(
        num_responses=num_responses,
        prompt_tokens=prompt_tokens,
        response_tokens=max(1, num_tokens // num_responses),
        lengths=tuple(lengths) if known else (),
    )
