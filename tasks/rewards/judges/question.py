"""Encodes a judge's question as tokens, and finds the tokens that mean yes and no.

The chat template's special tokens frame the question. The question itself is encoded as plain text,
so that an end-of-turn marker in a response is encoded as characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from artifacts.judgements import Judgement, JudgeQuestion
from tasks.engines.chat_tokens import chat_tokens

GAP = "\n[...]\n"  # between head and tail of an answer that was cut
PLACE = "\x00question\x00"  # never in a template; replaced before anything is encoded
Part = TypeVar("Part")  # a token or a character


def no_verdict(question: JudgeQuestion, detail: str) -> Judgement:
    """Judgement without a verdict; `detail` is the reason. Counts no tokens."""
    return Judgement(key=question.key, p_yes=None, prompt_tokens=0, new_tokens=0, detail=detail)


class QuestionEncoder:
    """Encodes questions with a judge's tokenizer."""

    # Any: transformers' tokenizers have no useful common type
    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        """`max_tokens`: length of the judge's context."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        frame = PLACE
        if tokenizer.chat_template:
            chat = [{"role": "user", "content": PLACE}]
            frame = str(
                tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            )
        opening, _, closing = frame.partition(PLACE)
        self._opening = tokenizer.encode(opening, add_special_tokens=not tokenizer.chat_template)
        self._closing = tokenizer.encode(closing, add_special_tokens=False)
        self._gap = self._plain(GAP)

    def encode(self, question: JudgeQuestion) -> list[int] | None:
        """The prompt's tokens, a long answer cut; None if not even an empty answer fits."""
        before = [*self._opening, *self._plain(question.before)]
        after = [*self._plain(question.after), *self._closing]
        room = self._max_tokens - question.max_new_tokens - len(before) - len(after)
        answer = self._plain(question.answer)
        if len(answer) > room and room <= len(self._gap):
            return None
        return [*before, *head_and_tail(answer, room, self._gap), *after]

    def _plain(self, text: str) -> tuple[int, ...]:
        return chat_tokens(self._tokenizer).plain(text)


def head_and_tail(whole: Sequence[Part], room: int, gap: Sequence[Part]) -> list[Part]:
    """Cut a longer sequence of tokens or characters to `room` of them: its first and last ones with
    `gap` between them. The tail, which often holds the conclusion, gets the odd one."""
    if len(whole) <= room:
        return [*whole]
    kept = room - len(gap)
    head = kept // 2
    return [*whole[:head], *gap, *whole[len(whole) - (kept - head) :]]


# Any: see QuestionEncoder
def verdict_tokens(tokenizer: Any, yes: str, no: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that mean yes, and the tokens that mean no: spellings of the word that are a
    single token, else the first tokens of all spellings. Tokens of both words are left out.

    Raises ValueError if a word has no token left.
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
    # with and without the space that a tokenizer may draw into a word
    forms = [f"{space}{form}" for form in (word, word.lower(), word.upper()) for space in ("", " ")]
    encoded = [tokenizer.encode(form, add_special_tokens=False) for form in forms]
    known = [tokens for tokens in encoded if tokens and tokenizer.unk_token_id not in tokens]
    whole = {tokens[0] for tokens in known if len(tokens) == 1}
    return whole or {tokens[0] for tokens in known}
