"""From groups to packed micro-batches: every shared prefix once, no padding, and a fair share for every rank.

    prompt A ─┬─ response 0          sorted sequences inserted into a trie; its nodes, in preorder, are the packed row:
              ├─ response 1            tokens       the token of each node
              └─ response 2            positions    its depth, so positions restart per branch
    (few-shot prefix above A and B)    subtree_ends one past its last descendant

Node j is an ancestor of node i exactly when j <= i < subtree_ends[j]: that one comparison is the attention mask.
A response's last token predicts nothing and is not computed. Leaves out the attention itself and everything on tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from artifacts.records import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response to learn from."""

    prompt: tuple[int, ...]  # token ids of the prompt, at least one
    response: tuple[int, ...]  # generated token ids, at least one
    behaviour: tuple[float, ...]  # the engine's log-probability of each response token
    advantage: float  # group-relative advantage
    weight: float  # of each of its token losses in the sum

    @property
    def computed(self) -> tuple[int, ...]:
        """The tokens whose hidden states are needed."""
        return self.prompt + self.response[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """One packed row. N nodes, P predicted response tokens, ordered by sample as given and by position within a sample."""

    tokens: tuple[int, ...]  # (N,) token ids
    positions: tuple[int, ...]  # (N,) depth in the tree
    subtree_ends: tuple[int, ...]  # (N,) one past the last descendant
    predictors: tuple[int, ...]  # (P,) node whose hidden state predicts the token
    targets: tuple[int, ...]  # (P,) the token
    samples: tuple[Sample, ...]  # whose tokens these are
    num_prompt_nodes: int  # nodes that belong to a prompt


def pack_samples(samples: Sequence[Sample]) -> PackedBatch:
    """Merge the sequences into one prefix tree in preorder."""
    tokens: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    paths: dict[int, list[int]] = {}
    prompt_nodes: set[int] = set()
    path: list[int] = []
    previous: tuple[int, ...] = ()
    sequences = [sample.computed for sample in samples]
    for index in sorted(range(len(samples)), key=sequences.__getitem__):
        sequence = sequences[index]
        shared = shared_prefix(previous, sequence)
        for node in path[shared:]:
            ends[node] = len(tokens)
        path = path[:shared] + list(range(len(tokens), len(tokens) + len(sequence) - shared))
        tokens.extend(sequence[shared:])
        positions.extend(range(shared, len(sequence)))
        ends.extend([0] * (len(sequence) - shared))
        num_prompt = len(samples[index].prompt)
        prompt_nodes.update(path[:num_prompt])
        paths[index] = path[num_prompt - 1 :]
        previous = sequence
    for node in path:
        ends[node] = len(tokens)
    return PackedBatch(
        tokens=tuple(tokens),
        positions=tuple(positions),
        subtree_ends=tuple(ends),
        predictors=tuple(node for index in range(len(samples)) for node in paths[index]),
        targets=tuple(token for sample in samples for token in sample.response),
        samples=tuple(samples),
        num_prompt_nodes=len(prompt_nodes),
    )


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[PackedBatch]:
    """Pack the samples into rows of at most `max_tokens` computed tokens, whatever the order in which they are given.

    Sequences that share prefixes fall together because they are sorted. A sequence longer than the bound gets a row of its own.
    """
    ordered = sorted(samples, key=lambda sample: (sample.computed, sample.prompt, sample.response, sample.behaviour, sample.advantage))
    rows: list[list[Sample]] = []
    filled = max_tokens + 1
    previous: tuple[int, ...] = ()
    for sample in ordered:
        sequence = sample.computed
        added = len(sequence) - shared_prefix(previous, sequence)
        if added and filled + added > max_tokens:
            rows.append([])
            filled, added = 0, len(sequence)
        rows[-1].append(sample)
        filled += added
        previous = sequence
    return [pack_samples(row) for row in rows]


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix, by bisection on slices (comparing slices is fast, comparing elements is not)."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def balance(
    groups: Sequence[Group], num_ranks: int, quadratic_tokens: int = 8192, flat_costs: bool = False, loads: Sequence[float] = ()
) -> tuple[tuple[Group, ...], ...]:
    """Deal the groups to ranks so that the dearest rank is cheap, independent of the order in which they arrive.

    Dealt twice, group by group and by families of groups whose prompts share half their tokens or more; the better deal wins.
    A sequence of n tokens costs n + n**2 / quadratic_tokens: attention overtakes the rest at `quadratic_tokens`. A group whose
    rewards are all equal costs nothing unless `flat_costs`: the learner skips what has no gradient. `loads`: predicted cost, by
    rank, of what the ranks are busy with already (none); what they have behind them does not count.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be >= 1, got {num_ranks}; give the learner role at least one device")
    ordered = sorted(groups, key=lambda group: (group.prompt.token_ids, group.prompt.prompt_id))
    free = [group for group in ordered if not flat_costs and is_flat(group)]
    costly = [group for group in ordered if flat_costs or not is_flat(group)]
    before = list(loads) or [0.0] * num_ranks
    deals = [_deal(units, before, quadratic_tokens) for units in ([[group] for group in costly], _families(costly))]
    _, held = min(deals, key=lambda deal: max(deal[0]))
    held[0].extend(free)
    return tuple(tuple(sorted(part, key=lambda group: (group.prompt.token_ids, group.prompt.prompt_id))) for part in held)


def predicted_cost(groups: Sequence[Group], quadratic_tokens: int = 8192) -> float:
    """What a rank that gets these groups in one call has to do, in the unit of `balance`."""
    return _cost(groups, [], quadratic_tokens)


def is_flat(group: Group) -> bool:
    """Whether all verdicts of a group are equal, so that none of its advantages is other than zero."""
    return len({one.score.reward for one in group.responses if one.score is not None and one.score.reward is not None}) < 2


def _families(ordered: Sequence[Group]) -> list[list[Group]]:
    """Neighbours in prompt order that share at least half of their prompt."""
    families: list[list[Group]] = []
    for group in ordered:
        prompt = group.prompt.token_ids
        if families and 2 * shared_prefix(families[-1][-1].prompt.token_ids, prompt) >= len(prompt):
            families[-1].append(group)
        else:
            families.append([group])
    return families


def _deal(units: list[list[Group]], before: Sequence[float], quadratic_tokens: int) -> tuple[list[float], list[list[Group]]]:
    """Loads and groups by rank: the dearest unit first, each to the rank where the load ends lowest.

    A rank pays for a prompt only what its other prompts do not already hold.
    """
    loads = list(before)
    held: list[list[Group]] = [[] for _ in loads]
    for unit in sorted(units, key=lambda unit: -_cost(unit, [], quadratic_tokens)):
        ends = [load + _cost(unit, others, quadratic_tokens) for load, others in zip(loads, held, strict=True)]
        rank = min(range(len(loads)), key=ends.__getitem__)
        loads[rank] = ends[rank]
        held[rank].extend(unit)
    return loads, held


def _cost(unit: Sequence[Group], others: Sequence[Group], quadratic_tokens: int) -> float:
    """What a unit adds to a rank that holds the others already."""
    total, prompts = 0.0, [other.prompt.token_ids for other in others]
    for group in unit:
        prompt = group.prompt.token_ids
        shared = max((shared_prefix(other, prompt) for other in prompts), default=0)
        total += (len(prompt) - shared) * (1 + len(prompt) / quadratic_tokens)
        lengths = [len(response.generated.token_ids) for response in group.responses]
        total += sum(length * (1 + (len(prompt) + length) / quadratic_tokens) for length in lengths)
        prompts.append(prompt)
    return total
