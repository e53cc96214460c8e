"""What is left of responses that were given up: drafts for the round that asks their prompts again.

    round ─▶ deferred prompts ─▶ tokens of their responses ─▶ Request.draft_tokens of a later round

A response draws with the same noise whenever it is asked, so that as long as the weights have
hardly moved most of its tokens come back. Leaves out where drafts wait, and who verifies them
(`engines`). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from artifacts.records import Generated, prompt_of
from tasks.rounds.records import RoundResult

Drafts = Mapping[str, tuple[int, ...]]  # tokens by response id


def drafts_from(responses: Iterable[Generated], prompts: Collection[str]) -> Drafts:
    """What responses to these prompts have; nothing of episodes, whose tokens are not all drawn,
    and of responses without a token."""
    return {
        response.response_id: response.token_ids
        for response in responses
        if response.prompt_id in prompts and response.token_ids and response.episode is None
    }


def drafts_after(drafts: Drafts, result: RoundResult) -> Drafts:
    """What is there after a round: of prompts that it deferred what it had of them, of those that
    it did not ask what there was."""
    asked = {response.prompt_id for response in result.generated}
    waiting = {name: tokens for name, tokens in drafts.items() if prompt_of(name) not in asked}
    return {**waiting, **drafts_from(result.generated, frozenset(result.deferred))}
