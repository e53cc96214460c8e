"""The bridge: the tokens between an action of a model and its next one, which are never sampled.

    head │ bridge  action │ bridge  action │ bridge ...
           given   sampled  given   sampled

    bridge of a ChatML model, after an action that ended with its own <|im_end|>:
           "\\n<|im_start|>user\\n" + observation + "<|im_end|>\\n<|im_start|>assistant\\n"

Sampled ids do not survive decoding and encoding, so a later prompt is never made from text: it is
all ids so far and a bridge. The bridge is read off the chat template, with markers in the places of
observations and actions. The template must repeat the earlier text when there is one more turn. Of
most models that think it takes the thoughts out of earlier turns:

    turn 1   head │ observation │ <think>...</think> 12
    turn 2   head │ observation │ 12 │ observation │ <think>...</think> 17      no extension

Such a turn is given the whole history anew, as the template renders it now (`Rewriting`), and its
sampled tokens are trained after that context: the episode has several token paths instead of one.
Without a template messages stand a blank line apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from artifacts.datasets.rows import Message
from tasks.engines.chat_tokens import ChatTokens, Decode, Encode
from tasks.engines.model_files import read_stop_ids, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OBSERVATIONS = ("OBSERVATION1", "OBSERVATION2", "OBSERVATION3")
ACTIONS = ("ACTION1", "ACTION2")
THOUGHTS = tuple(f"<think>\nTHOUGHT\n</think>\n\n{action}" for action in ACTIONS)
CURE = (
    "take a model whose template repeats earlier turns as they were, or give this one such a"
    " chat_template.jinja"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedEpisode:
    """A rendered episode in its parts, with markers for observations and actions."""

    head: str  # the messages before the first observation
    first: str  # from there to the first action, the first observation's marker in it
    next: str  # from there to the second action, the second observation's marker in it


def render_episode(
    tokens: ChatTokens,
    head: Sequence[Message],
    model: str,
    actions: Sequence[str] = ACTIONS,
) -> RenderedEpisode:
    """Render an episode of two turns and the beginning of a third; returns its parts. Raises
    ValueError unless every prompt extends the one before it and every turn is rendered alike."""

    def extend(before: str, chat: Sequence[Message]) -> str:
        """What the longer prompt adds."""
        text = tokens.render(chat, asks=True)
        if not text.startswith(before):
            raise ValueError(
                "a model that plays episodes must have a chat template that with one more turn"
                f" extends what it said before, {model}'s changes it ({_difference(before, text)});"
                f" {CURE}"
            )
        return text[len(before) :]

    from jinja2 import TemplateError  # with the tokenizer, not with the settings of episodes

    chat, openings = list(head), list[str]()
    try:
        text = start = _start(tokens, head)
        for observation, action in zip(OBSERVATIONS, (*actions, ""), strict=True):
            chat.append(Message(role="user", content=observation))
            openings.append(extend(text, chat))
            chat.append(Message(role="assistant", content=action))
            text += openings[-1] + action
    except TemplateError as error:  # a role or an order that it forbids
        raise ValueError(
            "a model that plays episodes must have a chat template that takes turns of user and"
            f" assistant after the environment's head, {model}'s refuses them: {error}; {CURE}"
        ) from error
    first, second, third = openings
    again = second.replace(OBSERVATIONS[1], OBSERVATIONS[2])
    has_markers = OBSERVATIONS[0] in first and OBSERVATIONS[1] in second
    if third != again or not has_markers:
        raise ValueError(
            "a model that plays episodes must have a chat template that writes every turn alike,"
            f" {model}'s does not ({_difference(again, third)}); {CURE}"
        )
    return RenderedEpisode(head=start, first=first, next=second)


def _start(tokens: ChatTokens, head: Sequence[Message]) -> str:
    """Returns the head as it stands before an observation: without a turn's first control token."""
    asked = tokens.render([*head, Message(role="user", content=OBSERVATIONS[0])], asks=True)
    alone = tokens.render(head, asks=False)
    if asked.startswith(alone):
        return alone
    before, _, _ = asked.partition(OBSERVATIONS[0])
    return "".join(tokens.pieces(before)[:-2])


def keeps_thoughts(tokens: ChatTokens, head: Sequence[Message]) -> bool:
    """True if the template leaves the thoughts of earlier turns unchanged."""
    try:
        render_episode(tokens, head, "", THOUGHTS)
    except ValueError:
        return False
    return True


def _difference(before: str, after: str) -> str:
    place = next(
        (place for place, (one, two) in enumerate(zip(before, after, strict=False)) if one != two),
        min(len(before), len(after)),
    )
    return f"{before[place : place + 24]!r} becomes {after[place : place + 24]!r}"


Exchange = tuple[str, str]  # an observation, and the action that answered it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """Renders the history of an episode anew, for all episodes with one head."""

    head: tuple[Message, ...]  # what every episode begins with
    tokens: ChatTokens  # of the model

    def ids(self, said: Sequence[Exchange], observation: str) -> tuple[int, ...]:
        """Returns the ids of head and history as the template renders them now."""
        chat = list(self.head)
        for seen, done in said:
            chat.append(Message(role="user", content=seen))
            chat.append(Message(role="assistant", content=done))
        chat.append(Message(role="user", content=observation))
        return self.tokens.ids(self.tokens.render(chat, asks=True))


class Given(NamedTuple):
    """The tokens in front of an action."""

    token_ids: tuple[int, ...]
    starts_over: bool  # whether they are the whole history behind the head, and extend nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The template's text around an observation, up to the model's action."""

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
    _end: int  # the token that ends an action which was cut
    _first: Opening  # around the first observation, after the head
    _next: Opening  # around a later one, after an action and its end token
    _encode: Encode  # of text in which nothing is a control token
    decode: Decode  # of what a model said, without the tokens that frame a turn
    rewriting: Rewriting | None = None  # of a template that takes thoughts out of earlier turns

    def given(self, path: Sequence[int], said: Sequence[Exchange], observation: str) -> Given:
        """Returns the tokens before the next action. path: the ids after the head that the model
        has read since the history was last rendered anew. said: all exchanges of the episode."""
        if not said:
            return Given(self.first(observation), starts_over=False)
        if self.rewriting is None:
            return Given(self.next(observation, path[-1]), starts_over=False)
        history = self.rewriting.ids(said, observation)[len(self.head) :]
        if history[: len(path)] == tuple(path):
            return Given(history[len(path) :], starts_over=False)
        return Given(history, starts_over=True)

    def first(self, observation: str) -> tuple[int, ...]:
        """Returns the ids from the end of the head to the first action."""
        return self._first.ids(observation, self._encode)

    def next(self, observation: str, last_id: int) -> tuple[int, ...]:
        """Returns the ids from the end of an action to the next action. last_id: the action's last
        token. If it is no stop token, the action was cut, and the ids begin with an end token that
        nobody sampled."""
        end = () if last_id in self.stop_ids else (self._end,)
        return (*end, *self._next.ids(observation, self._encode))


@lru_cache(maxsize=16)
def bridge_of(model_path: str, head: tuple[Message, ...]) -> Bridge:
    """Returns the bridge of the model in this directory. Raises ValueError as `make_bridge`."""
    tokenizer = read_tokenizer(model_path)
    return make_bridge(tokenizer, read_stop_ids(model_path, tokenizer), head, model_path)


def make_bridge(
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: Sequence[int],
    head: Sequence[Message],
    model: str,
) -> Bridge:
    """Make the bridge that the tokenizer's chat template gives. model: its name for error messages.
    Raises ValueError if the template changes earlier text other than thoughts, or if the head has
    no token."""
    tokens = ChatTokens(tokenizer, stop_ids)
    written = render_episode(tokens, head, model)
    ids = tokens.ids(written.head)
    if not ids:
        raise ValueError(
            f"an episode must begin with a token at least, the head of an environment has none for"
            f" the model {model}; have its head say something"
        )

    # the end token that the template writes after an action, None where it writes none
    end, after = None, written.next
    plain, *behind = tokens.pieces(after)
    if not plain and behind and tokens.controls[behind[0]] in stop_ids:
        end, after = tokens.controls[behind[0]], after.removeprefix(behind[0])
    rewriting = Rewriting(head=tuple(head), tokens=tokens)
    bridge = Bridge(
        ids,
        frozenset(stop_ids),
        int(tokenizer.eos_token_id) if end is None else end,
        _opening(written.first, OBSERVATIONS[0], tokens),
        _opening(after, OBSERVATIONS[1], tokens),
        tokens.plain,
        tokens.decode,
        None if keeps_thoughts(tokens, head) else rewriting,
    )
    text = written.head + written.first + ACTIONS[0] + written.next
    whole = tokens.ids(text, is_start=False)
    if not _is_within(bridge, whole, writes_end=end is not None):
        raise ValueError(
            "a model that plays episodes must have a tokenizer that writes a turn alike by itself"
            f" and within a chat, {model}'s does not; {CURE}"
        )
    return bridge


def _opening(text: str, marker: str, tokens: ChatTokens) -> Opening:
    before, _, after = text.partition(marker)
    *in_front, lead = tokens.pieces(before)
    trail, *behind = tokens.pieces(after)
    return Opening(
        before=tokens.ids_of(in_front),
        lead=tokens.unshielded(lead),
        trail=tokens.unshielded(trail),
        after=tokens.ids_of(behind),
    )


def _is_within(bridge: Bridge, whole: tuple[int, ...], *, writes_end: bool) -> bool:
    """True if a whole episode has the ids of head, bridges and a history that is rendered anew."""
    start = (*bridge.head, *bridge.first(OBSERVATIONS[0]))
    end = bridge.next(OBSERVATIONS[1], last_id=-1)
    if writes_end and not (whole[: len(start)] == start and whole[-len(end) :] == end):
        return False
    rewriting = bridge.rewriting
    if rewriting is None:
        return True
    plain, thoughtful = (
        rewriting.ids([(OBSERVATIONS[0], action)], OBSERVATIONS[1])
        for action in (ACTIONS[0], THOUGHTS[0])
    )
    return plain == whole and thoughtful[: len(bridge.head)] == bridge.head
