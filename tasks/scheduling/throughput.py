"""What a replica of each size is worth: a measured profile, the planner's first choice from it, and
its veto. Pure.

`rollflow calibrate` measures, `flows.engine_layout` asks: before the first round of
each kind for the best size, and after every round, of which the lengths are known by then, for the
sizes that would be slower. The paper's rule looks at preemptions alone, and what it saves in them
can cost more in time: the exchange within a replica, and fewer replicas.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self

PROFILE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputPoint:
    """One measurement of one replica."""

    size: int  # devices that hold the replica
    batch: int  # responses that decode together
    length: int  # prompt tokens of each
    prefill_tokens_per_s: float  # prompt tokens of the whole batch, computed from scratch
    decode_tokens_per_s: float  # generated tokens of the whole batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The responses of a round."""

    num_responses: int  # launched
    prompt_tokens: int  # of each
    response_tokens: int  # of each, on average
    # tokens of equal shares of the responses, ascending; empty where the average stands for all
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputProfile:
    """Measured speed and room of a model's replicas."""

    model: str  # what was measured
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
        """The inverse of to_json. ValueError when it is something else."""
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
        """Seconds of a round on num_devices // size replicas: as many responses at a time as fit
        the cache, all of the same length unless their lengths are given."""
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
        share = (
            min(1.0, max(0.0, (batch - low.batch) / (high.batch - low.batch)))
            if high.batch > low.batch
            else 0.0
        )
        return (
            low.prefill_tokens_per_s
            + share * (high.prefill_tokens_per_s - low.prefill_tokens_per_s),
            low.decode_tokens_per_s + share * (high.decode_tokens_per_s - low.decode_tokens_per_s),
        )


def best_size(
    profile: ThroughputProfile, sizes: Sequence[int], num_devices: int, demand: Demand
) -> int:
    """The possible and measured size with the shortest predicted round; of equals the smaller.
    ValueError when none was measured."""
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
    """The sizes without those that the profile predicts to be slower than the present one for such
    a round; unmeasured ones stay."""
    known = [size for size in sizes if size in profile.sizes and size in profile.kv_tokens]
    if now not in known:
        return tuple(sizes)
    limit_s = profile.predicted_s(now, num_devices, demand)
    return tuple(
        size
        for size in sizes
        if size not in known or profile.predicted_s(size, num_devices, demand) <= limit_s
    )
