"""Chats as token ids, and responses as text, for one tokenizer. Control tokens that the chat
template writes are control; the same characters inside a message are plain text.

    messages ─▶ controls in their contents become stand-ins ─▶ template ─▶ text ─▶ ids
    ids of a response ─▶ without those that frame a turn ─▶ text

In an assistant's turn this holds only for the tokens that frame a turn: others, such as `<think>`,
are part of what a model says, and stay in the text of a response, too.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from artifacts.datasets.rows import Message, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Controls = dict[str, int]  # id of every control token, by its text
Encode = Callable[[str], tuple[int, ...]]  # of text in which nothing is a control token
Decode = Callable[[Sequence[int]], str]  # of a response

BLANK_LINE = "\n\n"  # between messages without a chat template
STAND_IN = 0xF0000  # of the first control token, in Unicode's private use
NAMED = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id",
         "cls_token_id", "mask_token_id")  # fmt: skip
SAID = frozenset({"<think>", "</think>"})  # never a frame: rewards look for where a thought ends
_MARKUP = re.compile(r"<\S+>|\[\S+\]")  # what an added token that frames a turn looks like
# whether control tokens are split is a setting of the whole tokenizer, which threads share
_ENCODING = threading.Lock()
_PROBES: tuple[tuple[Role, ...], ...] = (
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "user"),
    ("user",),
)


class ChatTokens:
    """Converts chats to token ids and back, for one tokenizer. The tokenizer must get no further
    tokens, and its chat template must not change."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int] = ()) -> None:
        """stop_ids: tokens that end a response, in addition to those that the tokenizer names."""
        self._tokenizer: Any = tokenizer  # Any: transformers' tokenizers have no useful common type
        self.has_template = bool(tokenizer.chat_template)
        known = tokenizer.added_tokens_decoder
        added = {token.content: index for index, token in known.items()}
        special = {index for index, token in known.items() if token.special}
        written = self._written()
        frames = {
            index: text
            for text, index in added.items()
            if text in written and _MARKUP.fullmatch(text) and text not in SAID
        }
        named = {*stop_ids, *(getattr(tokenizer, name, None) for name in NAMED)}
        self._left_out = special & (frames.keys() | named)
        self.controls: Controls = {
            text: index for text, index in added.items() if index in special or index in frames
        }
        # the tokenizer finds these in any text, split_special_tokens or not
        always_found = (text for text in frames.values() if added[text] not in special)
        self._always_found = re.compile(_any_of(always_found))
        self._numbers = {text: number for number, text in enumerate(self.controls)}
        self._escape = chr(STAND_IN + len(self.controls))
        stand_in = f"[{chr(STAND_IN)}-{self._escape}]"
        framing = [text for text, i in self.controls.items() if i in self._left_out or i in frames]
        self._any_stand_in = re.compile(stand_in)
        self._stand_in = re.compile(f"{self._escape}(.)|({stand_in})")
        self._control = re.compile(f"({_any_of(self.controls)})")
        self._framing = re.compile(_any_of(framing))

    # --- text to ids ---------------------------------------------------------------------------

    def render(self, chat: Sequence[Message], asks: bool, num_pictures: Sequence[int] = ()) -> str:
        """Write the chat as its template does, with stand-ins for quoted control tokens; without a
        template, write the messages a blank line apart. asks: whether to end with the opening of
        the assistant's answer. num_pictures: of each of the last messages, that stand before its
        text; only a template knows how. Raises ValueError for pictures without one."""
        contents = [self._shielded(message) for message in chat]
        if any(num_pictures) and not self.has_template:
            raise ValueError(
                f"a model that is shown pictures must have a chat template, got {sum(num_pictures)}"
                " pictures and none; set model.chat_template"
            )
        if not self.has_template:
            return BLANK_LINE.join(contents) + BLANK_LINE * asks
        turns: list[dict[str, Any]] = [  # Any: a text, or parts
            {"role": message.role, "content": content}
            for message, content in zip(chat, contents, strict=True)
        ]
        for turn, count in zip(reversed(turns), reversed(num_pictures), strict=False):
            if count:
                text = {"type": "text", "text": turn["content"]}
                turn["content"] = [*[{"type": "image"}] * count, text]
        return self._apply(turns, asks)

    def ids(self, text: str, *, is_start: bool = True) -> tuple[int, ...]:
        """Encode text that `render` wrote. is_start: whether the text begins the sequence; a
        tokenizer without a template then adds the tokens that begin every text."""
        begins = is_start and not self.has_template
        if text.isascii() or not self._any_stand_in.search(text):
            return self._encode(text, begins=begins)
        if not self.has_template:
            return self._encode(self.unshielded(text), begins=begins, splits=True)
        return self.ids_of(self.pieces(text))

    def chat(self, messages: Sequence[Message], num_pictures: int = 0) -> tuple[int, ...]:
        """Encode a chat up to the opening of the assistant's answer. num_pictures: that stand
        before the last message's text."""
        return self.ids(self.render(messages, self.has_template, (num_pictures,)))

    def pieces(self, text: str) -> list[str]:
        """Split rendered text into plain text, which may be empty, and control tokens, in turn."""
        return self._control.split(text)

    def ids_of(self, pieces: Sequence[str]) -> tuple[int, ...]:
        """Encode the pieces that `pieces` made."""
        found: list[int] = []
        for piece in pieces:
            if piece in self.controls:
                found.append(self.controls[piece])
            else:
                found += self.plain(self.unshielded(piece))
        return tuple(found)

    def plain(self, text: str) -> tuple[int, ...]:
        """Encode text in which no control token counts as one."""
        cuts = (found.start() + 1 for found in self._always_found.finditer(text))
        parts = (text[begin:end] for begin, end in pairwise((0, *cuts, len(text))))
        return tuple(index for part in parts for index in self._encode(part, splits=True))

    def unshielded(self, text: str) -> str:
        """Return the original text: stand-ins become the control tokens' characters again."""
        names = tuple(self.controls)
        return self._stand_in.sub(lambda found: found[1] or names[ord(found[2]) - STAND_IN], text)

    def _shielded(self, message: Message) -> str:
        """The message's text, to be put into a template, with stand-ins for its control tokens."""
        text = message.content
        if not text.isascii():
            text = self._any_stand_in.sub(lambda found: self._escape + found[0], text)
        quoted = self._framing if message.role == "assistant" else self._control
        return quoted.sub(lambda found: chr(STAND_IN + self._numbers[found[0]]), text)

    def _encode(self, text: str, *, begins: bool = False, splits: bool = False) -> tuple[int, ...]:
        """begins: add the tokens that begin every text. splits: control tokens as characters."""
        with _ENCODING:
            return tuple(
                self._tokenizer.encode(text, add_special_tokens=begins, split_special_tokens=splits)
            )

    # --- ids to text ---------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode token ids to text, without padding and the tokens that frame or end a turn."""
        said = [index for index in token_ids if index not in self._left_out]
        return str(self._tokenizer.decode(said))

    # --- the template --------------------------------------------------------------------------

    def _written(self) -> str:
        """What the template writes around finished turns. An opening of the assistant's answer is
        left out: there the template may write what the model would have said itself, such as
        `<think>`."""
        if not self.has_template:
            return ""
        from jinja2 import TemplateError  # with the tokenizer, not with the settings of engines

        for roles in _PROBES:
            try:
                return self._apply([{"role": role, "content": "x"} for role in roles], asks=False)
            except (TemplateError, TypeError, ValueError):  # a role or an order that it forbids
                continue
        return ""

    def _apply(self, turns: Sequence[dict[str, Any]], asks: bool) -> str:  # Any: as above
        how = {"tokenize": False, "add_generation_prompt": asks}
        return str(self._tokenizer.apply_chat_template(turns, **how))


def chat_tokens(tokenizer: PreTrainedTokenizerBase) -> ChatTokens:
    """Return the ChatTokens of a tokenizer in its present state; built once and cached."""
    added = len(tokenizer.added_tokens_decoder)
    return _chat_tokens(tokenizer, str(tokenizer.chat_template), added)


@lru_cache(maxsize=8)
def _chat_tokens(tokenizer: Any, template: str, num_added: int) -> ChatTokens:  # Any: as above
    return ChatTokens(tokenizer)


def _any_of(texts: Iterable[str]) -> str:
    """A pattern that matches any of these texts, the longest first; of none, nothing."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"
