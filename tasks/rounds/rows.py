"""A played round as rows of the responses table."""

from __future__ import annotations

from collections.abc import Mapping

from artifacts.records import Prompt, Response
from artifacts.tables import ResponseRow
from tasks.rounds.figures import filtered_ids, trained_ids
from tasks.rounds.records import RoundResult
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.ledger import fate_of


def response_rows(
    plan: RoundPlan,
    prompts: Mapping[str, Prompt],
    result: RoundResult,
    advantages: Mapping[str, float],
    *,
    is_evaluation: bool,
) -> list[ResponseRow]:
    """Every response with its score and its fate; `advantages` by response id, of those that are
    in the loss."""
    scores = {(score.prompt_id, score.index): score for score in result.scores}
    trained = trained_ids(result)
    filtered = filtered_ids(result)
    return [
        ResponseRow(
            step=plan.step,
            kind=plan.kind,
            prompt=prompts[response.prompt_id],
            response=Response(
                generated=response,
                score=scores.get((response.prompt_id, response.index)),
            ),
            fate=fate_of(response, trained, filtered, is_evaluation=is_evaluation),
            advantage=advantages.get(response.response_id),
        )
        for response in result.generated
    ]
