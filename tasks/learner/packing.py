"""From samples to packed micro-batches: every shared prefix once, no padding.

    (few-shot prefix above A and B)    sequences, sorted, are inserted into a trie;
    prompt A ─┬─ response 0            its nodes in preorder are the packed row:
              ├─ response 1            tokens        the token of each node
              └─ response 2            positions     its depth, so positions restart per branch
                                       subtree_ends  one past its last descendant

Node j is an ancestor of node i, or i itself, exactly when j <= i < subtree_ends[j]: that one
comparison is the attention mask. Tokens of a response that the model did not sample (invariant 14,
docs/architecture.md) are read, never predicted; nothing is computed from the last sampled one on.
Tokens of pictures, which all have one id, are given ids of their own first (`pictures`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from artifacts.records import ShownPicture, VersionSpan
from tasks.learner.pictures import NumberedPicture, first_ids, rotary_positions

Ints = NDArray[np.int64]
NO_ROUTES = np.empty((0, 0), dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One response as training sees it."""

    prompt: Ints  # token ids of the prompt, at least one
    response: Ints  # token ids after the prompt, observations between turns included
    sampled: tuple[range, ...]  # where in `response` the sampled tokens lie, at least one
    sampling_logp: NDArray[np.float32]  # the engine's log-probability of each sampled token
    advantages: tuple[float, ...]  # one for the tokens of each range of `sampled`
    reward: float  # after overlong shaping
    weight: float  # weight of each of its token losses in the sum
    versions: tuple[VersionSpan, ...] = ()  # the weight versions of the sampled tokens
    # places of the response that the model read right behind the prompt, because its chat template
    # had written the history anew
    restarts: tuple[int, ...] = ()
    pictures: tuple[ShownPicture, ...] = ()  # in prompt and response
    # (tokens, width): the experts that computed the tokens of prompt and response, as far as they
    # were recorded
    routes: NDArray[np.uint8] | NDArray[np.int16] = field(default_factory=lambda: NO_ROUTES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sample) and _all_fields(self) == _all_fields(other)

    @property
    def tokens(self) -> Ints:
        """The token ids of prompt and response."""
        return np.concatenate([self.prompt, self.response])

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

    # token ids, from the prompt's first to the last that predicts; of pictures, ids of their own
    computed: Ints
    begin: int  # the place in the response whose token it has behind the prompt
    end: int  # the place in the response before which it ends
    key: bytes  # `computed` as bytes, which sort and compare as the token ids do


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePaths:
    """A sample with the sequences that the model read: one, and another for every restart.
    Together, in order, they predict all sampled tokens."""

    sample: Sample
    paths: tuple[Path, ...]


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
    pictures: tuple[NumberedPicture, ...] = ()  # distinct ones, by ascending id
    rotary: Ints | None = None  # (3, N) positions by time, row and column; None without pictures
    # (N, width): the experts that computed each node in the first sample that has it, -1 where none
    # were recorded; None where no sample has routes
    routes: NDArray[np.int16] | None = None


def paths_of(samples: Sequence[Sample]) -> list[SamplePaths]:
    """Read off the sequences that the model computes for each sample."""
    parts = chain.from_iterable((sample.prompt, sample.response) for sample in samples)
    tokens = np.concatenate([_NOTHING, *parts])
    _number_pictures(tokens, samples)
    keys = tokens.astype(_KEY).tobytes()
    found: list[SamplePaths] = []
    start = 0  # of the sample's prompt in `tokens`
    for sample in samples:
        after = start + len(sample.prompt)
        paths: list[Path] = []
        for begin, limit in pairwise((0, *sample.restarts, len(sample.response))):
            ends = [own.stop for own in sample.sampled if begin <= own.start < own.stop <= limit]
            if not ends:
                continue
            stop = after + ends[-1] - 1  # the last token is predicted, and predicts nothing
            computed = tokens[start:stop]
            key = keys[start * _KEY.itemsize : stop * _KEY.itemsize]
            if begin:
                computed = np.concatenate([tokens[start:after], tokens[after + begin : stop]])
                key = computed.astype(_KEY).tobytes()
            paths.append(Path(computed=computed, begin=begin, end=ends[-1], key=key))
        found.append(SamplePaths(sample=sample, paths=tuple(paths)))
        start = after + len(sample.response)
    return found


def _number_pictures(tokens: Ints, samples: Sequence[Sample]) -> None:
    """In place: give the tokens of pictures, in the joined tokens of the samples, their own ids."""
    ids = first_ids(picture for sample in samples for picture in sample.pictures)
    start = 0
    for sample in samples if ids else ():
        for picture in sample.pictures:
            begin, first = start + picture.begin, ids[picture.content]
            tokens[begin : begin + picture.num_tokens] = np.arange(
                first, first + picture.num_tokens
            )
        start += len(sample.prompt) + len(sample.response)


_NOTHING = np.empty(0, dtype=np.int64)
_KEY = np.dtype(">u4")  # the first byte decides first


def pack_samples(samples: Sequence[Sample]) -> PackedBatch:
    """Merge the samples' sequences into one prefix tree, its nodes in preorder."""
    return pack_paths(paths_of(samples))


def pack_paths(given: Sequence[SamplePaths]) -> PackedBatch:
    """As `pack_samples`, from sequences that were read off before."""
    paths = [(path, each.sample) for each in given for path in each.paths]
    order = sorted(range(len(paths)), key=lambda place: paths[place][0].key)
    ordered = [paths[place][0].computed for place in order]
    shared = num_shared(ordered)
    new = np.array([*map(len, ordered)], dtype=np.int64) - shared
    starts = np.cumsum(new) - new  # the first new node of each path
    size = int(new.sum())
    ends = np.full(size, size, dtype=np.int64)
    is_prompt = np.zeros(size, dtype=np.bool_)
    nodes = np.empty(max(map(len, ordered), default=0), dtype=np.int64)  # of the path at hand
    predictors: list[list[Ints]] = [[]] * len(paths)
    length = marked = 0  # nodes of the path before, and those that are marked as a prompt's
    for place, begin, start in zip(order, shared.tolist(), starts.tolist(), strict=True):
        path, sample = paths[place]
        num_prompt = len(sample.prompt)
        ends[nodes[begin:length]] = start
        length = len(path.computed)
        nodes[begin:length] = np.arange(start, start + length - begin)
        marked = min(marked, begin)
        if marked < num_prompt:
            is_prompt[nodes[marked:num_prompt]] = True
            marked = num_prompt
        moved = num_prompt - 1 - path.begin  # from places in the response to those that predict
        predictors[place] = [
            nodes[moved + own.start : moved + own.stop].copy()
            for own in sample.sampled
            if path.begin <= own.start < own.stop <= path.end
        ]
    texts = [(each.sample.response, each.sample.sampled) for each in given]
    targets = (tokens[own.start : own.stop] for tokens, sampled in texts for own in sampled)
    kept = zip(ordered, shared.tolist(), strict=True)
    pictures, rotary = _pictures_of(paths), None
    if pictures:
        parts = zip(order, shared.tolist(), strict=True)
        rotary = np.concatenate([_rotary(*paths[place])[:, begin:] for place, begin in parts], 1)
    return PackedBatch(
        tokens=np.concatenate([_NOTHING, *(computed[begin:] for computed, begin in kept)]),
        positions=np.arange(size) - np.repeat(starts - shared, new),
        subtree_ends=ends,
        predictors=np.concatenate([_NOTHING, *chain.from_iterable(predictors)]),
        targets=np.concatenate([_NOTHING, *targets]),
        samples=tuple(each.sample for each in given),
        num_prompt_nodes=int(is_prompt.sum()),
        pictures=pictures,
        rotary=rotary,
        routes=_routes(paths, order, shared.tolist(), starts.tolist(), size),
    )


def _pictures_of(paths: Sequence[tuple[Path, Sample]]) -> tuple[NumberedPicture, ...]:
    found = {
        int(path.computed[picture.begin]): picture
        for path, sample in paths
        for picture in _pictures_on(path, sample)
    }
    return tuple(
        NumberedPicture(first_id=first_id, content=each.content, num_tokens=each.num_tokens)
        for first_id, each in sorted(found.items())
    )


def _rotary(path: Path, sample: Sample) -> Ints:
    return rotary_positions(_pictures_on(path, sample), len(path.computed))


def _pictures_on(path: Path, sample: Sample) -> list[ShownPicture]:
    """The pictures of a sample that the path computes, by their places in it."""
    num_prompt, end = len(sample.prompt), path.begin + len(path.computed)
    of_prompt = [each for each in sample.pictures if each.begin < num_prompt]
    behind = [each for each in sample.pictures if num_prompt + path.begin <= each.begin < end]
    return of_prompt + [each.moved(-path.begin) for each in behind]


def _routes(
    paths: Sequence[tuple[Path, Sample]],
    order: Sequence[int],
    shared: Sequence[int],
    starts: Sequence[int],
    size: int,
) -> NDArray[np.int16] | None:
    """(nodes, width): the routes of every node, from the path that brought it into the tree."""
    widths = {sample.routes.shape[1] for _, sample in paths if len(sample.routes)}
    if not widths:
        return None
    if len(widths) > 1:
        raise ValueError(
            f"responses of a step must be routed by one model, got {sorted(widths)} experts a"
            " token; let all engines start from the same model"
        )
    routes = np.full((size, *widths), -1, dtype=np.int16)
    for place, begin, start in zip(order, shared, starts, strict=True):
        path, sample = paths[place]
        tokens = np.arange(begin, len(path.computed))  # their places in prompt and response
        tokens += np.where(tokens < len(sample.prompt), 0, path.begin)
        is_known = tokens < len(sample.routes)
        nodes = start + np.flatnonzero(is_known)
        routes[nodes] = sample.routes[tokens[is_known]]
    return routes


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[SamplePaths]]:
    """Deal the samples to rows of at most `max_tokens` computed tokens, to be packed, in whatever
    order they are given: sorted, those that share prefixes come together. A longer sequence gets a
    row of its own."""
    given = _in_order(paths_of(samples))
    paths = [path.computed for each in given for path in each.paths]
    shared = num_shared(paths)
    # upper bounds on the nodes that each path adds behind the one before
    adds = (np.array([*map(len, paths)], dtype=np.int64) - shared).tolist()
    num_paths = 0  # of the samples before
    rows: list[list[SamplePaths]] = []
    filled = max_tokens + 1
    for each in given:
        added = sum(adds[num_paths : num_paths + len(each.paths)])
        if added and filled + added > max_tokens:
            rows.append([])
            filled, added = 0, added + int(shared[num_paths])
        rows[-1].append(each)
        filled += added
        num_paths += len(each.paths)
    return rows


def _in_order(given: Iterable[SamplePaths]) -> list[SamplePaths]:
    """Sort by all token ids that are computed, then by all fields."""
    ordered: list[SamplePaths] = []
    for _, alike in groupby(sorted(given, key=_keys), _keys):
        same = list(alike)
        ordered += sorted(same, key=lambda each: _all_fields(each.sample)) if same[1:] else same
    return ordered


def _keys(given: SamplePaths) -> list[bytes]:
    return [path.key for path in given.paths]


def _all_fields(sample: Sample) -> tuple[object, ...]:
    """All fields of a sample as a sort key, so that only equal samples keep their given order."""
    return (
        sample.prompt.tolist(),
        sample.response.tolist(),
        tuple((places.start, places.stop) for places in sample.sampled),
        sample.sampling_logp.tolist(),
        sample.advantages,
        sample.reward,
        sample.weight,
        tuple((span.version, span.num_tokens) for span in sample.versions),
        sample.restarts,
        tuple((picture.begin, picture.content) for picture in sample.pictures),
        sample.routes.tobytes(),
    )


def num_shared(sequences: Sequence[Ints]) -> Ints:
    """(sequences,): the tokens of the longest common prefix of each sequence and the one before."""
    lengths = np.array([*map(len, sequences)], dtype=np.int64)
    compared = np.minimum(lengths, np.append(0, lengths)[:-1])
    ends = np.cumsum(compared)
    sizes = compared.tolist()
    before = [one[:size] for one, size in zip(sequences, sizes[1:], strict=False)]
    after = [one[:size] for one, size in zip(sequences, sizes, strict=True)]
    differ = np.concatenate([_NOTHING, *before]) != np.concatenate([_NOTHING, *after])
    places = np.append(np.flatnonzero(differ), ends[-1:])
    starts = ends - compared
    found: Ints = np.minimum(places[np.searchsorted(places[:-1], starts)] - starts, compared)
    return found


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
