"""How many devices hold one rollout replica, per layout of rounds (RollPacker, section 4.2). Pure.

    first sizes (a profile, or the configured one) ──▶ round of a layout
        ──▶ preemptions, KV use ──▶ observe ──▶ size of that layout's next round

A larger tensor-parallel size leaves more room for the KV cache (the weights are shared out) and
means fewer replicas. Short rounds launch more responses than they keep and so run out of room
first: in the paper they preempt 1.8 times as often as long ones and gain 25 % from the size that
costs long rounds 10 % (figure 6). Hence one size for each layout that the policy names in its
plans, doubled when preemptions jump, halved when they stay away.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.urls import Location

# preemptions of a round over those of the last round of its layout, above which the size doubles
# (paper, section 4.2)
JUMP = 1.05
# standard deviations of a count that are chance: a round of 10 after one of 8 is no jump, though
# the paper's rule says so
NOISE = 2.0
# rounds of a layout without a preemption after which its size halves (paper, section 4.2)
QUIET_ROUNDS = 4

Groups = tuple[tuple[int, ...], ...]


class PlannerConfig(FrozenConfig):
    """The parallelism planner: the size of the engines, chosen per kind of round."""

    enabled: bool = Field(
        False,
        description=(
            "Change engine.tensor_parallel_size between rounds as preemptions come and go; off"
            " keeps it as it is."
        ),
    )
    profile: Location = Field(
        "",
        description=(
            "JSON profile of 'rollflow calibrate' that gives the first sizes; empty"
            " begins with the engine's own."
        ),
    )
    rule: Literal["preemptions", "lengths"] = Field(
        "preemptions",
        description=(
            "What the size of a layout's next round follows from: 'preemptions', the paper's rule,"
            " less the sizes that the profile has as slower; 'lengths', the profile alone, for the"
            " lengths that the last round of the layout had, so that a long tail gets larger"
            " engines."
        ),
    )
    max_tensor_parallel_size: int = Field(
        8, ge=1, description="Largest number of devices that may hold one replica together."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReading:
    """Preemptions and KV-cache use that the engines reported of a round."""

    layout: str  # of the round, as its plan names it
    num_preemptions: int  # over all replicas
    kv_usage_max: float  # the fullest that any replica's KV cache was, 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutState:
    """What the planner remembers of the rounds of one layout."""

    size: int  # devices per replica in its next round
    preemptions: int | None = None  # of its last round; None before the first
    # rounds without a preemption since the last one with, or since the size changed
    quiet_rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """What the planner remembers of every layout; saved with each commit."""

    layouts: Mapping[str, LayoutState] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        return {layout: asdict(state) for layout, state in self.layouts.items()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:  # Any: JSON values
        """The inverse of to_json; an empty mapping is the state before any round."""
        return cls(layouts={layout: LayoutState(**state) for layout, state in raw.items()})

    def having(self, layout: str, state: LayoutState) -> PlannerState:
        """A copy of this state in which the layout has the given state."""
        return PlannerState(layouts={**self.layouts, layout: state})


def observe(
    state: PlannerState, reading: RoundReading, sizes: Sequence[int], kv_tokens: Mapping[int, int]
) -> PlannerState:
    """The state after a round with this reading. sizes: the possible sizes; kv_tokens: KV-cache
    capacity of a replica by size, where it is known."""
    before, preemptions = state.layouts[reading.layout], reading.num_preemptions
    size, quiet_rounds = before.size, 0 if preemptions else before.quiet_rounds + 1
    half, odd = divmod(size, 2)
    earlier = before.preemptions
    if earlier is not None and is_jump(earlier, preemptions) and 2 * size in sizes:
        size, quiet_rounds = 2 * size, 0
    elif (
        quiet_rounds >= QUIET_ROUNDS
        and not odd
        and half in sizes
        and _fits(reading.kv_usage_max, size, half, kv_tokens)
    ):
        size, quiet_rounds = half, 0
    after = LayoutState(size=size, preemptions=preemptions, quiet_rounds=quiet_rounds)
    return state.having(reading.layout, after)


def is_jump(before: int, after: int) -> bool:
    """True if preemptions rose by more than the paper's factor and by more than chance. Among
    thousands of preemptions the factor alone decides."""
    return after > JUMP * before and after > before + NOISE * math.sqrt(before + 1)


def _fits(kv_usage: float, size: int, half: int, kv_tokens: Mapping[int, int]) -> bool:
    """True if the fullest cache of the round would have fitted at half the size, with twice the
    replicas. Without known capacities the paper's rule stands alone."""
    if size not in kv_tokens or half not in kv_tokens:
        return True
    return kv_usage * kv_tokens[size] < 2 * kv_tokens[half]


def device_groups(devices: Sequence[int], size: int, devices_per_host: int) -> Groups:
    """The devices of every replica, in order. Raises ValueError unless size divides the number of
    devices on every host, because no replica spans two hosts.

    Device d lies on host d // devices_per_host.
    """
    for host, num in sorted(Counter(device // devices_per_host for device in devices).items()):
        if size < 1 or num % size:
            raise ValueError(
                "engine.tensor_parallel_size must divide the rollout devices of every host, got"
                f" {size} for the {num} of host {host}; change it, cluster.roles or"
                " cluster.devices_per_host"
            )
    ordered = sorted(devices)
    return tuple(tuple(ordered[start : start + size]) for start in range(0, len(ordered), size))


def possible_sizes(
    devices: Sequence[int], devices_per_host: int, num_heads: int, num_kv_heads: int, largest: int
) -> tuple[int, ...]:
    """The powers of two up to `largest` that divide each host's devices and the model's heads,
    smallest first; 1 is always one of them."""
    per_host = Counter(device // devices_per_host for device in devices).values()
    powers = [1 << exponent for exponent in range(max(per_host).bit_length())]
    return tuple(
        size
        for size in powers
        if size <= max(1, largest)
        and not any(num % size for num in per_host)
        and shares_heads(size, num_heads, num_kv_heads)
    )


def shares_heads(size: int, num_heads: int, num_kv_heads: int) -> bool:
    """True if so many devices can share a model's heads: vLLM gives each as many attention heads,
    and as many KV heads, or each KV head to as many devices (its QKVParallelLinear). 0: unknown."""
    repeats = num_kv_heads > 0 and size % num_kv_heads == 0
    return num_heads % size == 0 and (num_kv_heads % size == 0 or repeats)
