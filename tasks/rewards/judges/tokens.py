"""A judge's question as tokens, and the tokens that are its verdict.

The chat template's own special tokens frame the question; everything inside is encoded as plain
text, so that a response that writes an end-of-turn marker writes characters. A long answer keeps
its head and its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from artifacts.judgements import JudgeQuestion
from tasks.engines.chat_tokens import chat_tokens

PLACE = "\x00question\x00"  # never in a template; replaced before anything is encoded
GAP = "\n[...]\n"  # between head and tail of an answer that was cut


class QuestionEncoder:
    """Encodes for one tokenizer."""

    def __init__(
        self, tokenizer: Any, max_tokens: int
    ) -> None:  # Any: transformers' tokenizers have no useful common type
        """max_tokens: what fits the judge's context beside what it writes."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        opening, _, closing = self._frame().partition(PLACE)
        self._opening = tokenizer.encode(opening, add_special_tokens=not tokenizer.chat_template)
        self._closing = tokenizer.encode(closing, add_special_tokens=False)
        self._gap = self._plain(GAP)

    def encode(self, question: JudgeQuestion) -> list[int] | None:
        """The prompt; None when even without the answer it does not fit."""
        before = [*self._opening, *self._plain(question.before)]
        after = [*self._plain(question.after), *self._closing]
        room = self._max_tokens - question.max_new_tokens - len(before) - len(after)
        answer = self._plain(question.answer)
        if len(answer) > room:
            if room <= len(self._gap):
                return None
            answer = tuple(head_and_tail(answer, room, self._gap))
        return [*before, *answer, *after]

    def _plain(self, text: str) -> tuple[int, ...]:
        return chat_tokens(self._tokenizer).plain(text)

    def _frame(self) -> str:
        if not self._tokenizer.chat_template:
            return PLACE
        chat = [{"role": "user", "content": PLACE}]
        return str(
            self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        )


def head_and_tail(tokens: Sequence[int], room: int, gap: Sequence[int]) -> list[int]:
    """`room` tokens: the first and the last ones with `gap` between; the tail, where conclusions
    stand, gets the odd one."""
    kept = room - len(gap)
    head = kept // 2
    return [*tokens[:head], *gap, *tokens[len(tokens) - (kept - head) :]]


def verdict_tokens(
    tokenizer: Any, yes: str, no: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:  # Any: see QuestionEncoder
    """The tokens that mean yes and those that mean no: the word's spellings that are one token,
    else the first tokens of them all.

    ValueError when nothing tells the two words apart in this vocabulary.
    """
    found = [_spellings(tokenizer, word) for word in (yes, no)]
    shared = found[0] & found[1]
    kept = [tuple(sorted(spellings - shared)) for spellings in found]
    if not all(kept):
        raise ValueError(
            "a judge's two verdicts must begin with different tokens of its vocabulary, got"
            f" {yes!r} and {no!r}; set yes and no to words that its tokenizer knows"
        )
    return kept[0], kept[1]


def _spellings(tokenizer: Any, word: str) -> set[int]:
    encoded = [tokenizer.encode(form, add_special_tokens=False) for form in _forms(word)]
    known = [tokens for tokens in encoded if tokens and tokenizer.unk_token_id not in tokens]
    whole = {tokens[0] for tokens in known if len(tokens) == 1}
    return whole or {tokens[0] for tokens in known}


def _forms(word: str) -> tuple[str, ...]:
    """With and without the space that a tokenizer may draw into a word, as written, in lower and in
    upper case."""
    cases = dict.fromkeys((word, word.lower(), word.upper()))
    return tuple(f"{space}{form}" for form in cases for space in ("", " "))
