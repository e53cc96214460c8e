"""From samples to packed micro-batches: every shared prefix once, no padding.

    (few-shot prefix above A and B)    sequences, sorted, are inserted into a trie;
    prompt A ─┬─ response 0            its nodes in preorder are the packed row:
              ├─ response 1            tokens        the token of each node
              └─ response 2            positions     its depth, so positions restart per branch
                                       subtree_ends  one past its last descendant

Node j is an ancestor of node i, or i itself, exactly when j <= i < subtree_ends[j]: that one
comparison is the attention mask. Tokens of a response that the model did not sample (invariant 14,
docs/architecture.md) are read, never predicted; nothing is computed from the last sampled one on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from artifacts.records import VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A token sequence that the model computes, from the prompt to the last predicting token."""

    computed: tuple[int, ...]  # token ids, from the prompt's first to the last that predicts
    predictors: tuple[int, ...]  # places in `computed` that predict a sampled token


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One response as training sees it."""

    prompt: tuple[int, ...]  # token ids of the prompt, at least one
    response: tuple[int, ...]  # token ids after the prompt, observations between turns included
    sampled: tuple[range, ...]  # where in `response` the sampled tokens lie, at least one
    sampling_logp: tuple[float, ...]  # the engine's log-probability of each sampled token
    advantages: tuple[float, ...]  # one for the tokens of each range of `sampled`
    reward: float  # after overlong shaping
    weight: float  # weight of each of its token losses in the sum
    versions: tuple[VersionSpan, ...] = ()  # the weight versions of the sampled tokens
    # places of the response that the model read right behind the prompt, because its chat template
    # had written the history anew
    restarts: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """The place of each sampled token in the response."""
        return tuple(chain.from_iterable(self.sampled))

    @property
    def num_sampled(self) -> int:
        """The number of sampled tokens, which are those that are trained."""
        return sum(map(len, self.sampled))

    @property
    def token_advantages(self) -> tuple[float, ...]:
        """The advantage of each sampled token."""
        of_turns = zip(self.advantages, self.sampled, strict=True)
        return tuple(own for own, places in of_turns for _ in places)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The sequences that the model read: one, and another for every restart. Together, in
        order, they predict all sampled tokens."""
        begins = (0, *self.restarts)
        found: list[Path] = []
        for begin, end in zip(begins, (*self.restarts, len(self.response)), strict=True):
            places = tuple(place for place in self.places if begin <= place < end)
            if places:
                computed = self.prompt + self.response[begin : places[-1]]
                nodes = tuple(len(self.prompt) - 1 + place - begin for place in places)
                found.append(Path(computed=computed, predictors=nodes))
        return tuple(found)

    @property
    def computed(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each path whose hidden states are needed."""
        return tuple(path.computed for path in self.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """One packed row of N nodes and P predicted tokens. The predicted tokens are the sampled ones,
    ordered by sample as given and by position within a sample."""

    tokens: tuple[int, ...]  # (N,) token ids
    positions: tuple[int, ...]  # (N,) depth in the tree
    subtree_ends: tuple[int, ...]  # (N,) one past the last descendant
    predictors: tuple[int, ...]  # (P,) node whose hidden state predicts the token
    targets: tuple[int, ...]  # (P,) the predicted token
    samples: tuple[Sample, ...]  # the samples that were packed
    num_prompt_nodes: int  # nodes that belong to a prompt


def pack_samples(samples: Sequence[Sample]) -> PackedBatch:
    """Merge the samples' sequences into one prefix tree, its nodes in preorder."""
    tokens: list[int] = []
    positions: list[int] = []
    ends: list[int] = []
    predictors: dict[int, list[int]] = {}
    prompt_nodes: set[int] = set()
    path: list[int] = []
    previous: tuple[int, ...] = ()
    paths = [(each, len(sample.prompt)) for sample in samples for each in sample.paths]
    for index in sorted(range(len(paths)), key=lambda place: paths[place][0].computed):
        sequence, num_prompt = paths[index][0].computed, paths[index][1]
        shared = shared_prefix(previous, sequence)
        for node in path[shared:]:
            ends[node] = len(tokens)
        path = path[:shared] + list(range(len(tokens), len(tokens) + len(sequence) - shared))
        tokens.extend(sequence[shared:])
        positions.extend(range(shared, len(sequence)))
        ends.extend([0] * (len(sequence) - shared))
        prompt_nodes.update(path[:num_prompt])
        predictors[index] = [path[place] for place in paths[index][0].predictors]
        previous = sequence
    for node in path:
        ends[node] = len(tokens)
    return PackedBatch(
        tokens=tuple(tokens),
        positions=tuple(positions),
        subtree_ends=tuple(ends),
        predictors=tuple(node for index in range(len(paths)) for node in predictors[index]),
        targets=tuple(sample.response[place] for sample in samples for place in sample.places),
        samples=tuple(samples),
        num_prompt_nodes=len(prompt_nodes),
    )


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[PackedBatch]:
    """Pack the samples into rows of at most `max_tokens` computed tokens, in whatever order they
    are given: sorted, those that share prefixes come together. A longer sequence gets a row of its
    own."""
    computed = [(sample.computed, sample) for sample in samples]
    computed.sort(key=lambda pair: (pair[0], _all_fields(pair[1])))
    rows: list[list[Sample]] = []
    filled = max_tokens + 1
    previous: tuple[int, ...] = ()
    for sequences, sample in computed:
        added = _num_added(previous, sequences)
        if added and filled + added > max_tokens:
            rows.append([])
            filled, added = 0, _num_added((), sequences)
        rows[-1].append(sample)
        filled += added
        previous = sequences[-1]
    return [pack_samples(row) for row in rows]


def _all_fields(sample: Sample) -> tuple[object, ...]:
    """All fields of a sample as a sort key, so that only equal samples keep their given order."""
    return (
        sample.prompt,
        sample.response,
        tuple((places.start, places.stop) for places in sample.sampled),
        sample.sampling_logp,
        sample.advantages,
        sample.reward,
        sample.weight,
        tuple((span.version, span.num_tokens) for span in sample.versions),
        sample.restarts,
    )


def _num_added(previous: tuple[int, ...], sequences: Sequence[tuple[int, ...]]) -> int:
    """An upper bound on the nodes that these paths add to a row whose last path is `previous`."""
    num_added = 0
    for sequence in sequences:
        num_added += len(sequence) - shared_prefix(previous, sequence)
        previous = sequence
    return num_added


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix, by bisection: comparing slices is fast."""
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
