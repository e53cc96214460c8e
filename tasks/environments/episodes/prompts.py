"""Turns rows into prompts: a question by the chat template, or an episode's seed with its
environment's head."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from artifacts.datasets.rows import Row
from artifacts.records import Prompt, ShownPicture
from tasks.engines.chat_tokens import chat_tokens
from tasks.environments.episodes.bridge import Bridge

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Show = Callable[
    [tuple[int, ...], tuple[str, ...]], tuple[tuple[int, ...], tuple[ShownPicture, ...]]
]


def no_pictures(
    token_ids: tuple[int, ...], sources: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[ShownPicture, ...]]:
    """Show none: the row has none."""
    assert not sources, "rows with pictures are shown by `tasks.engines.picture_prompts`"
    return token_ids, ()


def render(
    row: Row,
    tokenizer: PreTrainedTokenizerBase,
    prompt_id: str,
    max_prompt_tokens: int,
    show: Show = no_pictures,
) -> Prompt:
    """Render a row as a prompt by the tokenizer's chat template; control tokens that the row quotes
    become plain characters. show: puts the row's pictures into what the template has written.

    Raises ValueError for a prompt of no token or of more than max_prompt_tokens, and for a row that
    the template or the tokenizer refuses.
    """
    from jinja2 import TemplateError  # with the tokenizer, not with the settings of episodes

    try:
        written = chat_tokens(tokenizer).chat(row.messages, len(row.pictures))
        token_ids, pictures = show(written, row.pictures)
        f"{row.domain}{row.gold}".encode()  # no table holds half of a surrogate pair
    # a role that the template forbids, text that is no Unicode
    except (TemplateError, UnicodeError, TypeError) as error:
        raise ValueError(
            f"a prompt must be text and roles that the model's tokenizer takes, row {prompt_id}"
            f" ({row.text[:60]!r}) is refused: {error}; mend or drop the row"
        ) from error
    if not token_ids:
        raise ValueError(
            f"a prompt must have at least one token, row {prompt_id} has none; mend or drop the row"
        )
    if len(token_ids) > max_prompt_tokens:
        raise ValueError(
            f"a prompt must fit in {max_prompt_tokens} tokens (the engine's context less the"
            f" longest response), row {prompt_id} has {len(token_ids)} ({row.text[:60]!r}); drop"
            " the row, raise engine.max_model_len or lower sampling.max_response_tokens"
        )
    return Prompt(
        prompt_id=prompt_id,
        domain=row.domain,
        token_ids=token_ids,
        gold=row.gold,
        text=row.conversation,
        pictures=pictures,
    )


MOST_DIGITS = 18  # of a seed: tables have 64 bits for it


def episode_prompt(row: Row, bridge: Bridge, prompt_id: str, max_prompt_tokens: int) -> Prompt:
    """Make the prompt of an episode: the environment's head, and the row's answer as the seed of
    the reset. Raises ValueError for a row without a seed, and for a head that leaves no room."""
    if not row.gold.isdecimal() or len(row.gold) > MOST_DIGITS:
        raise ValueError(
            "a row of a domain with an environment must have a seed as its answer, a whole number"
            f" of at most {MOST_DIGITS} digits, row {prompt_id} of {row.domain!r} has"
            f" {row.gold[:60]!r}; use task.kind=seeds, or take environments.{row.domain} away"
        )
    if len(bridge.head) > max_prompt_tokens:
        raise ValueError(
            f"the head of an environment must fit in {max_prompt_tokens} tokens (the engine's"
            f" context less the longest episode), that of {row.domain!r} has {len(bridge.head)};"
            " raise engine.max_model_len or lower sampling.max_response_tokens"
        )
    return Prompt(
        prompt_id=prompt_id,
        domain=row.domain,
        token_ids=bridge.head,
        gold=row.gold,
        text=row.text,
        episode_seed=int(row.gold),
    )
