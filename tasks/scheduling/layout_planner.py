"""Which size the parallelism planner wants for the next round of a layout. Pure.

    first round of a layout ─▶ `begun`: the best size of a profile, or the configured one
    round is over ──────────▶ `after`: the paper's rule, less what a profile has as slower;
                              or the best size of a profile for the lengths that were seen

`parallelism` has the rule and `throughput` the profile; here they come together, for a run on real
engines (`flows.engine_layout`) as for a simulated one (`tasks.simulation`). Leaves out how engines
are rebuilt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.scheduling.batch import RoundShape
from tasks.scheduling.parallelism import LayoutState, PlannerState, RoundReading, observe
from tasks.scheduling.throughput import Demand, ThroughputProfile, best_size, not_slower

# tokens that a response may have over those it has on average: 16 in the paper's tasks, 7 to 14 in
# tiny-mix
BOUND_PER_MEAN = 8
SHARES = 64  # of the responses of a round, whose lengths are told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPlanner:
    """What the planner of a run goes by."""

    sizes: tuple[int, ...]  # possible tensor-parallel sizes
    num_devices: int  # that generate
    first_size: int  # of a layout of which nothing is known
    profile: ThroughputProfile | None = None  # what replicas are worth, if it was measured
    by_lengths: bool = False  # whether the profile alone decides, by how long responses get

    def begun(self, state: PlannerState, layout: str, demand: Demand) -> PlannerState:
        """The state that has a size for this layout, the first one if it had none, or one that is
        not possible any more since the run was resumed. ValueError when the profile has measured no
        possible size."""
        known = state.layouts.get(layout)
        if known is not None and known.size in self.sizes:
            return state
        size = self.first_size
        if self.profile is not None:
            size = self._best(self.profile, demand)
        return state.having(layout, LayoutState(size=size))

    def after(self, state: PlannerState, reading: RoundReading, demand: Demand) -> PlannerState:
        """The state after a round that asked for this."""
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
    """What a round asks of the engines before anything is known of its responses but their bound:
    lengths are taken to fall off exponentially."""
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
    """What a round did ask of them: num_tokens in all its responses. `ended`: the tokens of those
    that were not stopped; the others are taken to have come as far as the longest of these."""
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
