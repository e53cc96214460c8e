"""What the responses table says of a round: fates, and the advantages that training uses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from learner_factories import make_group, random_groups
from plan_factories import make_step_plan

from artifacts.records import Fate, Group
from artifacts.tables import ResponseRow
from tasks.learner.advantage import DrGrpoAdvantage, GrpoAdvantage
from tasks.learner.overlong import AS_SCORED, MaskTruncated, Overlong, SoftPunishment
from tasks.learner.samples import TokenMean, advantages_of, training_set
from tasks.rollout import rows_of
from tasks.rounds.records import RoundResult

KINDS = [
    (advantage, overlong)
    for advantage in (GrpoAdvantage(), DrGrpoAdvantage())
    for overlong in (AS_SCORED, MaskTruncated(), SoftPunishment(max_tokens=30, buffer_tokens=25))
]


def truncated(group: Group) -> Group:
    """The group, its longest responses cut by the bound."""
    longest = max(len(response.generated.token_ids) for response in group.responses)
    responses = (
        replace(response, generated=replace(response.generated, finish_reason="length"))
        if len(response.generated.token_ids) == longest
        else response
        for response in group.responses
    )
    return replace(group, responses=tuple(responses))


@pytest.mark.parametrize(("advantage", "overlong"), KINDS)
def test_recorded_advantages_are_those_that_are_trained(
    advantage: GrpoAdvantage | DrGrpoAdvantage,
    overlong: Overlong,
) -> None:
    for group in map(truncated, random_groups(5, num_groups=12)):
        samples = training_set([group], advantage, TokenMean(), overlong).samples
        recorded = advantages_of([group], advantage, overlong)
        assert [sample.advantages[0] for sample in samples] == list(recorded.values())


def rows(kind: str) -> dict[str, ResponseRow]:
    """The rows of a round that accepts one group and discards another."""
    accepted = make_group((1, 2), [(3,), (4, 5), (6,)], [1.0, 0.0, None])
    given_up = make_group((1, 3), [(3,), (4, 5)], [1.0, 0.0], prompt_id="0/1")
    responses = (*accepted.responses, *given_up.responses)
    result = RoundResult(
        accepted=("0/0",),
        groups=(accepted,),
        deferred=(),
        dropped=(),
        filtered=(),
        generated=tuple(response.generated for response in responses),
        migrated=(),
        scores=tuple(response.score for response in responses if response.score is not None),
    )
    prompts = {group.prompt.prompt_id: group.prompt for group in (accepted, given_up)}
    found = rows_of(make_step_plan(kind=kind), prompts, result)
    return {row.response.generated.response_id: row for row in found}


def test_rows_of_trained_responses_have_their_advantage() -> None:
    found = rows("short")
    assert {name: row.advantage for name, row in found.items()} == {
        "0/0:0": pytest.approx(1.0, abs=1e-5),
        "0/0:1": pytest.approx(-1.0, abs=1e-5),
        "0/0:2": None,
        "0/1:0": None,
        "0/1:1": None,
    }
    assert found["0/0:0"].fate is Fate.TRAINED


def test_rows_of_an_evaluation_have_no_advantage() -> None:
    assert {row.advantage for row in rows("evaluate").values()} == {None}
