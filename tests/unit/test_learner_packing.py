"""The prefix tree and micro-batches."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

from tasks.learner.packing import Sample, micro_batches, num_shared, pack_samples, shared_prefix
from tasks.learner.tree_attention import TreePlan, is_ancestor

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


def sample(
    prompt: tuple[int, ...],
    response: tuple[int, ...],
    sampled: tuple[range, ...] = (),
    restarts: tuple[int, ...] = (),
) -> Sample:
    """Of sampled tokens alone, unless it says which they are."""
    sampled = sampled or (range(len(response)),)
    return Sample(
        prompt=np.array(prompt),
        response=np.array(response),
        sampled=sampled,
        sampling_logp=np.full(sum(map(len, sampled)), -1.0, dtype=np.float32),
        advantages=(1.0,) * len(sampled),
        reward=1.0,
        weight=1.0,
        restarts=restarts,
    )


@st.composite
def samples_of_turns(draw: st.DrawFn) -> Sample:
    """With given tokens anywhere in the response, and at least one sampled one; before some of them
    the history is written anew."""
    response = draw(TOKENS)
    cuts = sorted(draw(st.lists(st.integers(0, len(response)), max_size=6)))
    sampled = tuple(range(start, stop) for start, stop in zip(cuts[::2], cuts[1::2], strict=False))
    sampled = sampled if sum(map(len, sampled)) else (range(len(response)),)
    begins = sorted({0, *(places.start for places in sampled if places)})
    restarts = tuple(begin for begin in begins[1:] if draw(st.booleans()))
    return sample(draw(TOKENS), response, sampled, restarts)


SAMPLES = st.lists(samples_of_turns(), min_size=1, max_size=8)


def test_a_groups_prompt_is_computed_once() -> None:
    batch = pack_samples(
        [sample((1, 2, 3), (7, 8)), sample((1, 2, 3), (9, 4, 5)), sample((1, 2, 6), (7,))]
    )
    assert batch.tokens.tolist() == [1, 2, 3, 7, 9, 4, 6]
    assert batch.positions.tolist() == [0, 1, 2, 3, 3, 4, 2]
    assert batch.subtree_ends.tolist() == [7, 7, 6, 4, 6, 6, 7]
    assert batch.predictors.tolist() == [2, 3, 2, 4, 5, 6]
    assert batch.targets.tolist() == [7, 8, 9, 4, 5, 7]
    assert batch.num_prompt_nodes == 4


@given(SAMPLES)
def test_nodes_are_those_of_a_trie_in_preorder(samples: list[Sample]) -> None:
    """Of all sequences that end in a predicted token; an insertion for each token."""
    trie: dict[int, Any] = {}  # Any: the same below each token
    for item in samples:
        for place in item.places:
            node = trie
            begin = max((begin for begin in item.restarts if begin <= place), default=0)
            for token in (*item.prompt.tolist(), *item.response[begin:place].tolist()):
                node = node.setdefault(token, {})
    nodes: list[list[int]] = []  # token, depth, end of each

    def walk(below: dict[int, Any], depth: int) -> None:
        for token in sorted(below):
            nodes.append([token, depth, 0])
            place = len(nodes) - 1
            walk(below[token], depth + 1)
            nodes[place][2] = len(nodes)

    walk(trie, 0)
    batch = pack_samples(samples)
    found = np.stack([batch.tokens, batch.positions, batch.subtree_ends], 1)
    assert found.tolist() == nodes


def test_siblings_share_the_first_observation_and_nothing_after_the_last_action_is_a_node() -> None:
    """Head 1 2, observation 3 4; then 7 8, or 9 and after an observation of 5 a 6, or 7 alone."""
    batch = pack_samples(
        [
            sample((1, 2), (3, 4, 7, 8, 5, 5), (range(2, 4), range(6, 6))),
            sample((1, 2), (3, 4, 9, 5, 6), (range(2, 3), range(4, 5))),
            sample((1, 2), (3, 4, 7, 5), (range(2, 3),)),
        ]
    )
    assert batch.tokens.tolist() == [1, 2, 3, 4, 7, 9, 5]
    assert batch.subtree_ends.tolist() == [7, 7, 7, 7, 5, 7, 7]
    assert batch.predictors.tolist() == [3, 4, 3, 6, 3]
    assert batch.targets.tolist() == [7, 8, 9, 6, 7]
    assert batch.num_prompt_nodes == 2


@given(SAMPLES)
def test_every_predictor_sees_exactly_its_own_sequence(samples: list[Sample]) -> None:
    batch = pack_samples(samples)
    ends = torch.tensor(batch.subtree_ends)
    nodes = torch.arange(len(batch.tokens))
    sees = is_ancestor(ends, nodes[:, None], nodes[None, :])
    predictors = iter(batch.predictors)
    for item in samples:
        for place in item.places:
            path = torch.nonzero(sees[next(predictors)]).flatten().tolist()
            begin = max((begin for begin in item.restarts if begin <= place), default=0)
            read = [*item.prompt, *item.response[begin:place]]
            assert batch.tokens[path].tolist() == read
            assert [batch.positions[node] for node in path] == list(range(len(read)))


@given(SAMPLES, st.integers(1, 20), st.none() | st.integers(1, 6))
def test_query_blocks_hold_every_visible_key_once(
    samples: list[Sample], queries_per_block: int, window: int | None
) -> None:
    batch = pack_samples(samples)
    ends, depths = torch.tensor(batch.subtree_ends), torch.tensor(batch.positions)
    nodes = torch.arange(len(batch.tokens))
    dense = is_ancestor(ends, nodes[:, None], nodes[None, :])
    if window is not None:
        dense &= depths[:, None] - depths[None, :] < window
    rebuilt = torch.zeros_like(dense)
    for block in TreePlan(ends, depths, queries_per_block).within(window).blocks:
        keys = torch.cat([torch.arange(start, end) for start, end in block.key_spans])
        rebuilt[block.start : block.end, keys] = ~block.hidden
    assert torch.equal(rebuilt, dense)


@example([sample((0,) * 30, (1,) * 30), sample((0,) * 30, (2,) * 30)], 8, None)
@given(SAMPLES, st.integers(2, 20), st.none() | st.integers(1, 6))
def test_a_gpu_needs_the_blocks_of_keys_that_torch_finds_in_the_whole_matrix(
    samples: list[Sample], size: int, window: int | None
) -> None:
    """With a window, more blocks may be read for a partial one, never fewer."""
    batch = pack_samples(samples)
    ends, depths = torch.tensor(batch.subtree_ends), torch.tensor(batch.positions)
    plan = TreePlan(ends, depths, size).within(window)
    found, num = plan.block_mask, len(batch.tokens)
    expected = create_block_mask(
        lambda batch, head, query, key: plan.sees(query, key), None, None, num, num, "cpu", size
    )
    full = in_blocks(expected.full_kv_num_blocks, expected.full_kv_indices)
    needed = full | in_blocks(expected.kv_num_blocks, expected.kv_indices)
    found_full = in_blocks(found.full_kv_num_blocks, found.full_kv_indices)
    found_needed = found_full | in_blocks(found.kv_num_blocks, found.kv_indices)
    assert found.seq_lengths == expected.seq_lengths
    if plan.window is None:
        assert torch.equal(found_full, full)
        assert torch.equal(found_needed, needed)
    assert not (needed & ~found_needed).any()
    assert not (found_full & ~full).any()


def in_blocks(number: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Booleans (query blocks, key blocks) of a mask that lists the first `number` of each row."""
    listed = torch.arange(indices.shape[-1]) < number[0, 0, :, None]
    return torch.zeros(indices.shape[-2:], dtype=torch.bool).scatter(
        1, indices[0, 0].long(), listed
    )


@example([sample((0,), (0,)), sample((0,), (1,)), sample((0,), (0, 0))], 1, random.Random(0))
@example(
    [
        sample((0,), (0,), (range(0), range(0), range(1))),
        sample((0,), (0,), (range(0), range(1), range(1, 1))),
    ],
    1,
    random.Random(1),
)
@example(
    [sample((0,), (0,)), replace(sample((0,), (0,)), weight=0.5)],
    1,
    random.Random(1),
)
@given(SAMPLES, st.integers(1, 40), st.randoms())
def test_micro_batches_depend_on_the_set_of_samples_only(
    samples: list[Sample], max_tokens: int, rng: random.Random
) -> None:
    rows = in_rows(samples, max_tokens)
    shuffled = list(samples)
    rng.shuffle(shuffled)
    assert in_rows(shuffled, max_tokens) == rows
    assert sum(map(len, rows)) == len(samples)
    for row in rows:
        alone = max(len(pack_samples([each]).tokens) for each in row)
        assert len(pack_samples(row).tokens) <= max(max_tokens, alone)


def in_rows(samples: list[Sample], max_tokens: int) -> list[list[Sample]]:
    """The samples of each row."""
    return [[each.sample for each in row] for row in micro_batches(samples, max_tokens)]


@given(st.lists(TOKENS, max_size=6))
def test_shared_prefixes_of_neighbours_are_the_longest_common_ones(
    sequences: list[tuple[int, ...]],
) -> None:
    found = num_shared([np.array(each) for each in sequences]).tolist()
    pairs = zip(((), *sequences), sequences, strict=False)
    assert found == [shared_prefix(before, each) for before, each in pairs]


@given(TOKENS, TOKENS)
def test_shared_prefix_is_the_longest_common_one(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    length = shared_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]
