"""Deals groups to learner ranks by predicted cost: whole where that is fair, cut where one group
outweighs the rest. Also deals a step's groups to its mini-batches.

The parts of a group have the advantages of the whole group; sums of gradients add up however
groups are cut (invariants 4 and 5, docs/architecture.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from artifacts.records import Group, num_computed
from tasks.learner.advantage import Moments
from tasks.learner.packing import shared_prefix

# length in tokens at which the attention of a sequence costs as much as the rest of the model
QUADRATIC_TOKENS = 8192
CUT_SHARE = 0.125  # groups cheaper than this share of a rank's fair load are never cut
# a cut must bring the dearest rank below this share of what whole groups would give it
CUT_GAIN = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPart:
    """The responses of a group that a rank trains; the others serve to compute advantages."""

    group: Group  # the whole group
    places: tuple[int, ...]  # which of its responses are trained, ascending
    moments: Moments | None = None  # of the step's rewards, where the advantages depend on them

    @property
    def is_first(self) -> bool:
        """True for the part with the first response, by which statistics count the group."""
        return self.places[:1] == (0,)


def as_part(group: Group | GroupPart) -> GroupPart:
    """Return a whole group as a part with all of its responses; return a part unchanged."""
    if isinstance(group, GroupPart):
        return group
    return GroupPart(group=group, places=tuple(range(len(group.responses))))


def rows_of(group: Group, row_tokens: int) -> list[GroupPart]:
    """Cut a group where it fills learner rows of `row_tokens` tokens: the prompt is computed once
    in every row anyway."""
    rows: list[list[int]] = [[]]
    room = row_tokens - len(group.prompt.token_ids)
    left = room
    for place, response in enumerate(group.responses):
        num_tokens = num_computed(response.generated)
        if rows[-1] and num_tokens > left:
            rows.append([])
            left = room
        rows[-1].append(place)
        left -= num_tokens
    return [GroupPart(group=group, places=tuple(places)) for places in rows]


def balance(
    groups: Sequence[Group | GroupPart],
    num_ranks: int,
    flat_costs: bool = False,
    loads: Sequence[float] = (),
) -> tuple[tuple[GroupPart, ...], ...]:
    """Deal the groups to ranks so that the largest load is small, independent of the order in which
    they arrive. Returns the parts of each rank. The best of three deals wins: group by group, by
    families of groups whose prompts share half their tokens, and response by response, which must
    be clearly better. A group whose rewards are all equal costs nothing unless `flat_costs`: the
    learner skips responses without a gradient. `loads`: predicted cost, by rank, of the calls that
    the ranks are busy with (default none)."""
    if num_ranks < 1:
        raise ValueError(
            f"num_ranks must be >= 1, got {num_ranks}; give the learner role at least one device"
        )
    ordered = sorted(map(as_part, groups), key=_order)
    free = [part for part in ordered if not flat_costs and has_equal_rewards(part.group)]
    costly = [part for part in ordered if flat_costs or not has_equal_rewards(part.group)]
    before = list(loads) or [0.0] * num_ranks
    deals = [_deal(units, before) for units in ([[part] for part in costly], _families(costly))]
    best = min(deals, key=lambda deal: max(deal[0]))
    cut = _deal(_cut(costly, sum(before), num_ranks), before)
    _, held = cut if max(cut[0]) < CUT_GAIN * max(best[0]) else best
    held[0].extend(free)
    return tuple(_joined(parts) for parts in held)


def predicted_cost(parts: Sequence[GroupPart]) -> float:
    """The cost of a call: n + n**2 / QUADRATIC_TOKENS of n tokens, shared prompts once."""
    return _cost(parts, [])


def has_equal_rewards(group: Group) -> bool:
    """True if a group has no two different verdicts, so that its advantages are zero."""
    scores = [response.score for response in group.responses if response.score is not None]
    return len({score.reward for score in scores if score.reward is not None}) < 2


def _order(part: GroupPart) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    return part.group.prompt.token_ids, part.group.prompt.prompt_id, part.places


def _families(ordered: Sequence[GroupPart]) -> list[list[GroupPart]]:
    """Runs of groups, in order, that share half of their prompt with the one before."""
    families: list[list[GroupPart]] = []
    for part in ordered:
        prompt = part.group.prompt.token_ids
        if families and 2 * shared_prefix(families[-1][-1].group.prompt.token_ids, prompt) >= len(
            prompt
        ):
            families[-1].append(part)
        else:
            families.append([part])
    return families


def _cut(parts: Sequence[GroupPart], busy: float, num_ranks: int) -> list[list[GroupPart]]:
    """Units to deal: expensive groups response by response, the others whole."""
    costs = [predicted_cost([part]) for part in parts]
    dear = CUT_SHARE * (busy + sum(costs)) / num_ranks
    units: list[list[GroupPart]] = []
    for part, cost in zip(parts, costs, strict=True):
        units += (
            [[part]]
            if cost < dear
            else [[GroupPart(group=part.group, places=(place,))] for place in part.places]
        )
    return units


def _deal(
    units: list[list[GroupPart]], before: Sequence[float]
) -> tuple[list[float], list[list[GroupPart]]]:
    """Loads and parts by rank. The most expensive unit is dealt first, each to the rank whose load
    is then lowest; a rank pays only for the part of a prompt that its other prompts do not
    share."""
    loads = list(before)
    held: list[list[GroupPart]] = [[] for _ in loads]
    for unit in sorted(units, key=lambda unit: -_cost(unit, [])):
        ends = [load + _cost(unit, others) for load, others in zip(loads, held, strict=True)]
        rank = min(range(len(loads)), key=ends.__getitem__)
        loads[rank] = ends[rank]
        held[rank].extend(unit)
    return loads, held


def _cost(unit: Sequence[GroupPart], others: Sequence[GroupPart]) -> float:
    """The cost that a unit adds to a rank that already holds the others."""
    total, prompts = 0.0, [other.group.prompt.token_ids for other in others]
    for part in unit:
        prompt = part.group.prompt.token_ids
        shared = max((shared_prefix(other, prompt) for other in prompts), default=0)
        total += (len(prompt) - shared) * (1 + len(prompt) / QUADRATIC_TOKENS)
        lengths = [num_computed(part.group.responses[place].generated) for place in part.places]
        total += sum(length * (1 + (len(prompt) + length) / QUADRATIC_TOKENS) for length in lengths)
        prompts.append(prompt)
    return total


def _joined(parts: Sequence[GroupPart]) -> tuple[GroupPart, ...]:
    """One part per group, in prompt order."""
    places: dict[str, list[int]] = {}
    groups = {part.group.prompt.prompt_id: part.group for part in sorted(parts, key=_order)}
    for part in parts:
        places.setdefault(part.group.prompt.prompt_id, []).extend(part.places)
    return tuple(
        GroupPart(group=group, places=tuple(sorted(places[name]))) for name, group in groups.items()
    )


def mini_batches(groups: Sequence[Group], step: int, number: int) -> tuple[tuple[Group, ...], ...]:
    """Deal the groups to `number` mini-batches whose sizes differ by one group at most. A function
    of the step and its groups alone, in whatever order they come, and not of the number of ranks.
    Groups are ordered by a hash: neighbours in the data set are separated, differently in every
    step."""

    def place(group: Group) -> bytes:
        return hashlib.sha256(f"{step}:{group.prompt.prompt_id}".encode()).digest()

    ordered = sorted(groups, key=place)
    return tuple(tuple(ordered[first::number]) for first in range(number))
