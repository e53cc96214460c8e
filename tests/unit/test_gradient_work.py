"""Tokens that a rank computes of recorded responses: the nodes of the tree that a learner packs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from record_factories import make_generated

from artifacts.records import Group, Outcome, Prompt, Response, Score
from tasks.learner.dealing import GroupPart, as_part
from tasks.learner.packing import Sample, pack_samples
from tasks.simulation.protocols import every_token
from tasks.simulation.recorded import (
    PrefixTree,
    RecordedRun,
    RecordedStep,
    RecordedWork,
    recorded_work,
)
from tests.unit.test_replay import CONFIG, committed
from tests.unit.test_replay import row as blank_row

EXAMPLES = (7, 8, 9, 7)  # above every question


def sample(sequence: tuple[int, ...]) -> Sample:
    """One whose computed tokens are these: the last of a response predicts nothing."""
    return Sample(
        prompt=np.array(sequence[:1]),
        response=np.array([*sequence[1:], 0]),
        sampled=(range(len(sequence)),),
        sampling_logp=np.empty(0, dtype=np.float32),
        advantages=(1.0,),
        reward=1.0,
        weight=1.0,
    )


def sequences_of(seed: int, number: int = 40) -> list[tuple[int, ...]]:
    """Of few letters, so that they begin alike in many ways."""
    draws = random.Random(seed)
    return [tuple(draws.choices((1, 2), k=draws.randrange(1, 12))) for _ in range(number)]


def tree_of(sequences: Sequence[tuple[int, ...]]) -> PrefixTree:
    """Of sequences that are named by their places."""
    return PrefixTree({str(place): sequence for place, sequence in enumerate(sequences)})


@pytest.mark.parametrize("seed", range(5))
def test_nodes_are_those_that_a_learner_packs(seed: int) -> None:
    sequences = list(dict.fromkeys(sequences_of(seed)))
    tree = tree_of(sequences)
    draws = random.Random(seed)
    for size in (1, 2, 7, len(sequences)):
        places = draws.sample(range(len(sequences)), size)
        packed = pack_samples([sample(sequences[place]) for place in places])
        taken = [(str(place), len(sequences[place])) for place in places]
        assert tree.num_nodes(taken) == len(packed.tokens)
    assert tree.num_nodes([]) == 0


def test_a_sequence_that_is_cut_or_goes_on_shares_what_it_has() -> None:
    tree = tree_of([(1, 2, 3, 4), (1, 2, 3, 5)])
    assert tree.num_nodes([("0", 4), ("1", 4)]) == 5
    assert tree.num_nodes([("0", 2), ("1", 4)]) == 4
    assert tree.num_nodes([("0", 9), ("1", 9)]) == 15


def test_a_sequence_that_is_taken_twice_is_as_like_itself_as_its_likest_neighbour() -> None:
    tree = tree_of([(1, 2, 3), (1, 2, 4), (9, 9, 9)])
    assert tree.num_nodes([("0", 3), ("0", 3)]) == 3 + 1
    assert tree.num_nodes([("2", 3), ("2", 3)]) == 3 + 3


def work(**learner: object) -> RecordedWork:
    """Two prompts of two responses, with rewards that differ and rewards that agree."""
    answers = {(0, 0): (1, 2, 3), (0, 1): (1, 2, 4, 5), (1, 0): (3, 3), (1, 1): (4, 4)}
    rows = []
    for (prompt, index), tokens in answers.items():
        told = blank_row(prompt, index, len(tokens))
        generated = replace(told.response.generated, token_ids=tokens)
        asked = replace(told.prompt, token_ids=(*EXAMPLES, 50 + prompt))
        response = replace(told.response, generated=generated)
        rows.append(replace(told, prompt=asked, response=response))
    step = RecordedStep(commit=committed(), rows=tuple(rows))
    return recorded_work(RecordedRun(config=CONFIG | {"learner": learner}, steps=(step,)))


def part(prompt: int, rewards: Sequence[float], num_tokens: int) -> GroupPart:
    """A simulated group, whose responses say nothing."""
    name = f"0/{prompt}"
    responses = tuple(
        Response(
            generated=make_generated(token_ids=(1,) * num_tokens, prompt_id=name, index=index),
            score=Score(
                prompt_id=name,
                index=index,
                reward=reward,
                outcome=Outcome.OK if reward else Outcome.WRONG,
                detail="",
                scorer="simulated",
                started_s=0.0,
                finished_s=0.0,
            ),
        )
        for index, reward in enumerate(rewards)
    )
    asked = Prompt(prompt_id=name, domain="add", token_ids=(1,) * 5, gold="", text="")
    return as_part(Group(prompt=asked, responses=responses))


def test_groups_without_a_gradient_cost_what_they_cost_the_recorded_learner() -> None:
    mixed, flat = part(0, (1.0, 0.0), 3), part(1, (1.0, 1.0), 2)
    skipping, all_trained = work().gradients(0), work(kl_coefficient=0.1).gradients(0)
    assert not skipping.flat_costs
    assert all_trained.flat_costs
    assert skipping.num_tokens([flat]) == 0
    # the question with its examples, two tokens of one answer and none that the other does not have
    assert skipping.num_tokens([mixed, flat]) == 5 + 2
    assert all_trained.num_tokens([mixed, flat]) == 5 + 2 + 1 + 1 + 1


def test_drawn_work_shares_a_prompt_within_its_part() -> None:
    assert every_token([part(0, (1.0, 0.0), 3), part(1, (1.0, 1.0), 2)]) == 5 + 6 + 5 + 4
