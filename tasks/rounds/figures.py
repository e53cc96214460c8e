"""A finished round in figures and as rows of the responses table: the fates of its tokens, the
times in which engines worked, and those in which the round waited for verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from artifacts.records import Fate, Generated, Prompt, Response, Span, response_id
from artifacts.reports.timeline import Interval, difference, generating
from artifacts.tables import ResponseRow
from tasks.engines.base import EngineStats
from tasks.rounds.records import RoundResult
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.ledger import account_tokens, fate_of


def trained_ids(result: RoundResult) -> frozenset[str]:
    """Ids of the responses in accepted groups."""
    trained = (response.generated for group in result.groups for response in group.responses)
    return frozenset(generated.response_id for generated in trained)


def filtered_ids(result: RoundResult) -> frozenset[str]:
    """Ids of all responses to prompts whose group was filtered."""
    generated, filtered = result.generated, result.filtered
    return frozenset(
        response.response_id for response in generated if response.prompt_id in filtered
    )  # fmt: skip


def lengths_of_decided(result: RoundResult) -> tuple[int, ...]:
    """Sampled tokens of every response to a prompt that the round trained, filtered or dropped. A
    stopped response counts with the tokens that it had.

    Deferred and carried prompts are left to the round that decides them: if a round counted prompts
    that are unfinished when it closes, long ones would be counted too often.
    """
    trained = {group.prompt.prompt_id for group in result.groups}
    decided = trained | {*result.filtered, *result.dropped}
    return tuple(
        response.num_sampled for response in result.generated if response.prompt_id in decided
    )


def unclaimed(result: RoundResult, readings: Sequence[EngineStats]) -> frozenset[str]:
    """Ids of the responses that engines still run though no round adopts them: none, normally."""
    left = {response.response_id for response in result.in_flight}
    return frozenset(name for reading in readings for name in reading.progress) - left


def ledger_of(result: RoundResult, *, is_evaluation: bool) -> dict[Fate, int]:
    """The token ledger of a round (`scheduling.ledger`)."""
    return account_tokens(
        result.generated,
        trained=trained_ids(result),
        filtered=filtered_ids(result),
        is_evaluation=is_evaluation,
        stale_tokens=result.stale_tokens,
    )


def rollout_spans(result: RoundResult, devices: Mapping[str, Sequence[str]]) -> tuple[Span, ...]:
    """The spans in which each engine had a response to generate, one for each of its devices.
    devices: by engine name.

    A response of an earlier attempt counts with its times. Of carried responses only the stopped
    ones count: the others belong to the round that trains them.
    """
    carried = (response.generated for response in result.carried_responses)
    stopped = (response for response in carried if response.finish_reason == "aborted")
    of_engine: dict[str, list[Generated]] = {engine: [] for engine in devices}
    for response in (*result.generated, *result.migrated, *stopped):
        if response.engine in of_engine:
            of_engine[response.engine].append(response)
    return tuple(
        Span(device=device, actor=engine, kind="rollout", start_s=start_s, end_s=end_s)
        for engine, names in devices.items()
        for start_s, end_s in generating(of_engine[engine])
        for device in names
    )


def reward_waits(result: RoundResult) -> tuple[Interval, ...]:
    """The intervals in which the round waited only for verdicts.

    In these, a verdict was missing on a response to a prompt that the round decided (accepted,
    filtered or dropped), and no such response was being generated. Aborted and deferred responses
    do not count: the round did not wait for them, so that in a short round they hide no missing
    verdict.
    """
    decided = {*result.accepted, *result.dropped, *result.filtered}
    whole = [response for response in result.generated if response.finish_reason != "aborted"]
    needed = [response for response in whole if response.prompt_id in decided]
    scores = result.scores
    scored = {response_id(score.prompt_id, score.index): score.finished_s for score in scores}
    verdicts = ((response.finished_s, scored.get(response.response_id)) for response in needed)
    out = [(finished_s, scored_s) for finished_s, scored_s in verdicts if scored_s is not None]
    return tuple(difference(out, generating(needed)))


def response_rows(
    plan: RoundPlan,
    prompts: Mapping[str, Prompt],
    result: RoundResult,
    advantages: Mapping[str, float],
    *,
    is_evaluation: bool,
) -> list[ResponseRow]:
    """Every response with its score and its fate as a row of the responses table. advantages: by
    response id, for responses in the loss."""
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
