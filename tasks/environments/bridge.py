"""The bridge: the tokens between what a model said and what it says next, which nobody samples.

    head │ bridge  action │ bridge  action │ bridge ...
           given   sampled  given   sampled

    bridge of a ChatML model, after an action that ended with its own <|im_end|>:
           "\\n<|im_start|>user\\n" + observation + "<|im_end|>\\n<|im_start|>assistant\\n"

Sampled ids do not survive decoding and encoding: of a small model's turns one or two in a hundred
come back as other ids. So a later prompt is never made from text: it is all ids so far and a
bridge. The bridge is read off the chat template, with markers in the places of observations and
actions, and the template must allow it: with one more turn it says what it said before, and
something after it. Templates that take the thoughts out of earlier turns are refused.

A template that only concatenates has no bridge but the observation: the end token of each action
stays between the turns. Without a template messages stand a blank line apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from artifacts.datasets.rows import Message
from tasks.engines.model_files import read_stop_ids, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BLANK_LINE = "\n\n"  # between messages without a chat template
OBSERVATIONS = ("OBSERVATION1", "OBSERVATION2", "OBSERVATION3")
ACTIONS = ("<think>\nTHOUGHT1\n</think>\n\nACTION1", "<think>\nTHOUGHT2\n</think>\n\nACTION2")
CURE = (
    "take a model whose template repeats earlier turns as they were, or give this one such a"
    " chat_template.jinja"
)

Encode = Callable[[str], tuple[int, ...]]
Render = Callable[[Sequence[Message], bool], str]  # (chat, whether an answer is asked for) -> text


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What stands around an observation, up to where the model begins to speak."""

    before: tuple[int, ...]  # token ids up to the last control token in front of it
    lead: str  # plain text between those and the observation, encoded together with it
    trail: str  # plain text between it and the next control token, likewise
    after: tuple[int, ...]  # token ids from that control token on

    def ids(self, observation: str, encode: Encode) -> tuple[int, ...]:
        return (*self.before, *encode(self.lead + observation + self.trail), *self.after)


@dataclass(frozen=True, slots=True)
class Bridge:
    """Makes the tokens between turns, for one model and one head."""

    head: tuple[int, ...]  # token ids of what every episode begins with
    stop_ids: frozenset[int]  # tokens that end an action
    _end: int  # what an action ends with that was cut
    _first: Opening  # around the first observation, after the head
    _next: Opening  # around a later one, after an action and its end token
    _encode: Encode  # of text in which nothing is a control token
    _decode: Callable[[Sequence[int]], str]

    def first(self, observation: str) -> tuple[int, ...]:
        """The ids from the head's end to the first action."""
        return self._first.ids(observation, self._encode)

    def next(self, observation: str, last_id: int) -> tuple[int, ...]:
        """The ids from an action's end to the next action. last_id: the action's last token; one
        that ends nothing was cut, and is ended here, by a token that nobody sampled."""
        end = () if last_id in self.stop_ids else (self._end,)
        return (*end, *self._next.ids(observation, self._encode))

    def text(self, token_ids: Sequence[int]) -> str:
        """Token ids as text, without control tokens."""
        return self._decode(token_ids)


def read_bridge(model_path: str, head: Sequence[Message]) -> Bridge:
    """The bridge of the model in this directory, with a tokenizer of its own: encoding text without
    control tokens is a setting of the whole tokenizer. ValueError as `make_bridge`."""
    tokenizer = read_tokenizer(model_path)
    return make_bridge(tokenizer, read_stop_ids(model_path, tokenizer), head, model_path)


def make_bridge(
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: Sequence[int],
    head: Sequence[Message],
    model: str,
) -> Bridge:
    """The bridge that the tokenizer's chat template gives. ValueError when the template does not
    extend what it said, or when the head has no token; model: its name in the sentence."""
    written = _write(_rendering(tokenizer), head, model)
    controls = _controls(tokenizer)
    ids = tuple(tokenizer.encode(written.head, add_special_tokens=not tokenizer.chat_template))
    if not ids:
        raise ValueError(
            f"an episode must begin with a token at least, the head of an environment has none for"
            f" the model {model}; have its head say something"
        )

    def encode(text: str) -> tuple[int, ...]:
        plain = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return tuple(plain)

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(token_ids, skip_special_tokens=True))

    end, rest = _end_of(written.closing, controls, stop_ids)
    bridge = Bridge(
        ids,
        frozenset(stop_ids),
        int(tokenizer.eos_token_id) if end is None else end,
        _opening(written.first, OBSERVATIONS[0], controls, encode),
        _opening(rest + written.next, OBSERVATIONS[1], controls, encode),
        encode,
        decode,
    )
    if end is not None:
        _check_ids(bridge, tokenizer.encode(written.whole, add_special_tokens=False), model)
    return bridge


# --- what the template writes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A rendered episode in its parts, with markers for what is said in it."""

    head: str  # the messages before the first observation
    first: str  # from there to the first action, the first observation's marker in it
    closing: str  # what follows an action
    next: str  # from there to the second action, the second observation's marker in it
    whole: str  # all of it


def _rendering(tokenizer: PreTrainedTokenizerBase) -> Render:
    """The chat template; without one a plain one, of messages a blank line apart."""

    def render(chat: Sequence[Message], asks: bool) -> str:
        turns = [{"role": message.role, "content": message.content} for message in chat]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asks)
        return str(text)

    def join(chat: Sequence[Message], asks: bool) -> str:
        return BLANK_LINE.join(message.content for message in chat) + BLANK_LINE * asks

    return render if tokenizer.chat_template else join


def _write(render: Render, head: Sequence[Message], model: str) -> _Written:
    """An episode of two turns and the beginning of a third, each step an extension of the last."""

    def extend(before: str, chat: Sequence[Message], asks: bool) -> str:
        """What the longer chat adds."""
        text = render(chat, asks)
        if not text.startswith(before):
            raise ValueError(
                "a model that plays episodes must have a chat template that with one more turn"
                f" extends what it said before, {model}'s changes it ({_difference(before, text)});"
                f" {CURE}"
            )
        return text[len(before) :]

    chat, text = list(head), ""
    openings: list[str] = []
    closings: list[str] = []
    try:
        text = start = render(chat, False)
        for observation, action in zip(OBSERVATIONS, (*ACTIONS, ""), strict=True):
            chat.append(Message(role="user", content=observation))
            openings.append(extend(text, chat, True))
            text += openings[-1]
            if action:
                chat.append(Message(role="assistant", content=action))
                closings.append(extend(text + action, chat, False))
                text += action + closings[-1]
    except TemplateError as error:  # a role or an order that it forbids
        raise ValueError(
            "a model that plays episodes must have a chat template that takes turns of user and"
            f" assistant after the environment's head, {model}'s refuses them: {error}; {CURE}"
        ) from error
    first, second, third = openings
    again = second.replace(OBSERVATIONS[1], OBSERVATIONS[2])
    has_markers = OBSERVATIONS[0] in first and OBSERVATIONS[1] in second
    if third != again or closings[0] != closings[1] or not has_markers:
        raise ValueError(
            "a model that plays episodes must have a chat template that writes every turn alike,"
            f" {model}'s does not ({_difference(again, third)}); {CURE}"
        )
    two_turns = text.removesuffix(third).removesuffix(ACTIONS[1] + closings[1])
    return _Written(head=start, first=first, closing=closings[0], next=second, whole=two_turns)


def _difference(before: str, after: str) -> str:
    """Where two texts part, in a few characters of each."""
    place = next(
        (place for place, (one, two) in enumerate(zip(before, after, strict=False)) if one != two),
        min(len(before), len(after)),
    )
    return f"{before[place : place + 24]!r} becomes {after[place : place + 24]!r}"


# --- from text to ids --------------------------------------------------------------------------

Controls = dict[str, int]  # id of every control token, by its text


def _controls(tokenizer: PreTrainedTokenizerBase) -> Controls:
    added = tokenizer.added_tokens_decoder
    return {token.content: index for index, token in added.items() if token.special}


def _pieces(text: str, controls: Controls) -> list[str]:
    """Plain text and control tokens in turn; it begins and ends with plain text, maybe empty."""
    if not controls:
        return [text]
    longest_first = sorted(controls, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)


def _opening(text: str, marker: str, controls: Controls, encode: Encode) -> Opening:
    """The template's text around the marker of an observation."""

    def ids(pieces: Sequence[str]) -> tuple[int, ...]:
        return tuple(
            index
            for piece in pieces
            for index in ((controls[piece],) if piece in controls else encode(piece))
        )

    before, _, after = text.partition(marker)
    *in_front, lead = _pieces(before, controls)
    trail, *behind = _pieces(after, controls)
    return Opening(before=ids(in_front), lead=lead, trail=trail, after=ids(behind))


def _end_of(closing: str, controls: Controls, stop_ids: Sequence[int]) -> tuple[int | None, str]:
    """The end token that the template writes after an action, None where it writes none, and what
    follows it."""
    plain, *behind = _pieces(closing, controls)
    if not plain and behind and controls[behind[0]] in stop_ids:
        return controls[behind[0]], closing.removeprefix(behind[0])
    return None, closing


def _check_ids(bridge: Bridge, whole: Sequence[int], model: str) -> None:
    """ValueError unless the tokenizer writes head and bridges as it writes them within a whole
    episode."""
    start = (*bridge.head, *bridge.first(OBSERVATIONS[0]))
    end = bridge.next(OBSERVATIONS[1], last_id=-1)
    if (*whole[: len(start)],) != start or (*whole[-len(end) :],) != end:
        raise ValueError(
            "a model that plays episodes must have a tokenizer that writes a turn alike by itself"
            f" and within a chat, {model}'s does not; {CURE}"
        )
