"""Drafts for the responses of a round's deferred prompts, from the records of the rounds that gave
them up.

They are looked up, not kept: a run that was killed finds what it would have had.
"""

from __future__ import annotations

import logging

from artifacts.journal import Journal
from tasks.plan import StepPlan, journal_of
from tasks.rounds.drafts import Drafts, drafts_from

logger = logging.getLogger(__name__)


def drafts_of(plan: StepPlan) -> Drafts:
    """What the responses of the prompts that this round takes from the long-prompt queue had when
    they were given up; nothing where engines do not verify it, and in rounds that overlap training,
    which go on with what they have."""
    if plan.is_evaluation or plan.overlaps or not plan.run.engine.verify_deferred:
        return {}
    begin = plan.round.num_carried
    queued = plan.round.candidates[begin : begin + plan.round.num_queued]
    return _latest(journal_of(plan), plan.step, {ref.prompt_id for ref in queued})


def _latest(journal: Journal, step: int, prompts: set[str]) -> Drafts:
    """Of each of these prompts what the last round before this step had that asked it."""
    found: dict[str, tuple[int, ...]] = {}
    for before in reversed([known for known in journal.steps() if known < step]):
        if not prompts:
            break
        try:
            rows = journal.read(before, prompts)
        except ValueError as error:  # a draft is a gain, not a need
            logger.warning("step=%d no_drafts_from=%d reason=%s", step, before, error)
            continue
        responses = [row.response.generated for row in rows]
        found |= drafts_from(responses, prompts)
        prompts = prompts - {response.prompt_id for response in responses}
    return found
