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

import numpy as np
from numpy.typing import NDArray

from artifacts.records import VersionSpan

Ints = NDArray[np.int64]


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """A token sequence that the model computes, from the prompt to the last predicting token."""

    computed: Ints  # token ids, from the prompt's first to the last that predicts
    predictors: Ints  # places in `computed` that predict a sampled token
    key: bytes  # `computed` as bytes, which sort and compare as the token ids do


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePaths:
    """A sample with the sequences that the model read: one, and another for every restart.
    Together, in order, they predict all sampled tokens."""

    sample: Sample
    paths: tuple[Path, ...]
    targets: Ints  # the sampled tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """One packed row of N nodes and P predicted tokens. The predicted tokens are the sampled ones,
    ordered by sample as given and by position within a sample."""

    tokens: Ints  # (N,) token ids
    positions: Ints  # (N,) depth in the tree
    subtree_ends: Ints  # (N,) one past the last descendant
    predictors: Ints  # (P,) node whose hidden state predicts the token
    targets: Ints  # (P,) the predicted token
    samples: tuple[Sample, ...]  # the samples that were packed
    num_prompt_nodes: int  # nodes that belong to a prompt


def paths_of(sample: Sample) -> SamplePaths:
    """Read off the sequences that the model computes for a sample."""
    num_prompt = len(sample.prompt)
    tokens = np.array(sample.prompt + sample.response, dtype=np.int64)
    places = np.concatenate([np.arange(each.start, each.stop) for each in sample.sampled])
    ends = (*sample.restarts, len(sample.response))
    found: list[Path] = []
    for begin, end in zip((0, *sample.restarts), ends, strict=True):
        own = places[(begin <= places) & (places < end)]
        if not len(own):
            continue
        stop = num_prompt + own[-1]
        computed = tokens[:stop]
        if begin:
            computed = np.concatenate([tokens[:num_prompt], tokens[num_prompt + begin : stop]])
        key = computed.astype(_KEY).tobytes()
        found.append(Path(computed=computed, predictors=own + (num_prompt - 1 - begin), key=key))
    return SamplePaths(sample=sample, paths=tuple(found), targets=tokens[num_prompt + places])


_KEY = np.dtype(">i8")  # the first byte decides first


def pack_samples(samples: Sequence[Sample]) -> PackedBatch:
    """Merge the samples' sequences into one prefix tree, its nodes in preorder."""
    return pack_paths([paths_of(sample) for sample in samples])


def pack_paths(given: Sequence[SamplePaths]) -> PackedBatch:
    """As `pack_samples`, from sequences that were read off before."""
    paths = [(path, len(each.sample.prompt)) for each in given for path in each.paths]
    most_nodes = sum(len(path.computed) for path, _ in paths)
    tokens, positions, ends = (np.empty(most_nodes, dtype=np.int64) for _ in range(3))
    is_prompt = np.zeros(most_nodes, dtype=np.bool_)
    predictors = [_NOTHING] * len(paths)
    nodes, previous, size = _NOTHING, b"", 0  # the nodes of the previous path, and its key
    for index in sorted(range(len(paths)), key=lambda place: paths[place][0].key):
        path, num_prompt = paths[index]
        shared = _num_shared(previous, path.key)
        end = size + len(path.computed) - shared
        ends[nodes[shared:]] = size
        nodes = np.concatenate([nodes[:shared], np.arange(size, end)])
        tokens[size:end] = path.computed[shared:]
        positions[size:end] = np.arange(shared, len(path.computed))
        is_prompt[nodes[:num_prompt]] = True
        predictors[index] = nodes[path.predictors]
        previous, size = path.key, end
    ends[nodes] = size
    return PackedBatch(
        tokens=tokens[:size],
        positions=positions[:size],
        subtree_ends=ends[:size],
        predictors=np.concatenate([_NOTHING, *predictors]),
        targets=np.concatenate([_NOTHING, *(each.targets for each in given)]),
        samples=tuple(each.sample for each in given),
        num_prompt_nodes=int(is_prompt.sum()),
    )


_NOTHING = np.empty(0, dtype=np.int64)


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[SamplePaths]]:
    """Deal the samples to rows of at most `max_tokens` computed tokens, to be packed, in whatever
    order they are given: sorted, those that share prefixes come together. A longer sequence gets a
    row of its own."""
    given = [paths_of(sample) for sample in samples]
    given.sort(key=lambda each: (tuple(path.key for path in each.paths), _all_fields(each.sample)))
    rows: list[list[SamplePaths]] = []
    filled = max_tokens + 1
    previous = b""
    for each in given:
        added = _num_added(previous, each.paths)
        if added and filled + added > max_tokens:
            rows.append([])
            filled, added = 0, _num_added(b"", each.paths)
        rows[-1].append(each)
        filled += added
        previous = each.paths[-1].key
    return rows


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


def _num_added(previous: bytes, paths: Sequence[Path]) -> int:
    """An upper bound on the nodes that these paths add to a row whose last path has this key."""
    num_added = 0
    for path in paths:
        num_added += len(path.computed) - _num_shared(previous, path.key)
        previous = path.key
    return num_added


def _num_shared(left: bytes, right: bytes) -> int:
    """The number of tokens in the longest common prefix of two keys."""
    return shared_prefix(left, right) // _KEY.itemsize


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
