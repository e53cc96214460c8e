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
Without a template messages stand a blank line apart. Pictures of an observation stand where the
template shows them, each by as many tokens as the model needs for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from artifacts.datasets.rows import Message
from artifacts.episodes import KeptObservation
from artifacts.records import ShownPicture
from tasks.engines.chat_tokens import ChatTokens, Decode, Encode
from tasks.engines.model_files import (
    read_picture_token,
    read_stop_ids,
    read_tokenizer,
    takes_pictures,
)
from tasks.engines.picture_prompts import Shown, placed

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
    num_pictures: int = 0,
) -> RenderedEpisode:
    """Render an episode of two turns and the beginning of a third, so many pictures before every
    observation; returns its parts. Raises ValueError unless every prompt extends the one before it
    and every turn is rendered alike."""

    def extend(before: str, chat: Sequence[Message]) -> str:
        """What the longer prompt adds."""
        shown = [num_pictures * (each.role == "user") for each in chat[len(head) :]]
        text = tokens.render(chat, asks=True, num_pictures=shown)
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


Exchange = tuple[KeptObservation, str]  # an observation, and the action that answered it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """Renders the history of an episode anew, for all episodes with one head."""

    head: tuple[Message, ...]  # what every episode begins with
    tokens: ChatTokens  # of the model

    def ids(self, said: Sequence[Exchange], observation: KeptObservation) -> tuple[int, ...]:
        """Returns the ids of head and history as the template renders them now, with one for each
        picture."""
        chat, shown = list(self.head), list[int]()
        for seen, done in said:
            chat.append(Message(role="user", content=seen.text))
            chat.append(Message(role="assistant", content=done))
            shown += [len(seen.pictures), 0]
        chat.append(Message(role="user", content=observation.text))
        shown.append(len(observation.pictures))
        return self.tokens.ids(self.tokens.render(chat, asks=True, num_pictures=shown))


class Given(NamedTuple):
    """The tokens in front of an action."""

    token_ids: tuple[int, ...]
    pictures: tuple[ShownPicture, ...]  # by their places in them
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


class Openings(NamedTuple):
    """The openings of an episode whose observations have the same number of pictures."""

    first: Opening  # around the first observation, after the head
    next: Opening  # around a later one, after an action and its end token


@dataclass(frozen=True, slots=True)
class Bridge:
    """Makes the tokens between turns, for one model and one head."""

    model: str  # its name, for error messages
    head: tuple[int, ...]  # token ids of what every episode begins with
    stop_ids: frozenset[int]  # tokens that end an action
    _end: int  # the token that ends an action which was cut
    _openings: Callable[[int], Openings]  # for a number of pictures
    _encode: Encode  # of text in which nothing is a control token
    decode: Decode  # of what a model said, without the tokens that frame a turn
    picture_token: int = -1  # of a model that takes pictures
    rewriting: Rewriting | None = None  # of a template that takes thoughts out of earlier turns

    def given(
        self, path: Sequence[int], said: Sequence[Exchange], observation: KeptObservation
    ) -> Given:
        """Returns the tokens before the next action. path: the ids after the head that the model
        has read since the history was last rendered anew. said: all exchanges of the episode."""
        if said and self.rewriting is not None:
            return self._rewritten(path, said, observation)
        text, count = observation.text, len(observation.pictures)
        ids = self.next(text, path[-1], count) if said else self.first(text, count)
        return Given(*self._placed(ids, observation.pictures), starts_over=False)

    def first(self, observation: str, num_pictures: int = 0) -> tuple[int, ...]:
        """Returns the ids from the end of the head to the first action, one for each picture."""
        return self._openings(num_pictures).first.ids(observation, self._encode)

    def next(self, observation: str, last_id: int, num_pictures: int = 0) -> tuple[int, ...]:
        """Returns the ids from the end of an action to the next action, one for each picture.
        last_id: the action's last token. If it is no stop token, the action was cut, and the ids
        begin with an end token that nobody sampled."""
        end = () if last_id in self.stop_ids else (self._end,)
        return (*end, *self._openings(num_pictures).next.ids(observation, self._encode))

    def _rewritten(
        self, path: Sequence[int], said: Sequence[Exchange], observation: KeptObservation
    ) -> Given:
        assert self.rewriting is not None, "the template writes the history anew"
        shown = [picture for seen, _ in said for picture in seen.pictures]
        ids = self.rewriting.ids(said, observation)
        ids, pictures = self._placed(ids, (*shown, *observation.pictures))
        begin = len(self.head)
        starts_over = ids[begin : begin + len(path)] != tuple(path)
        if not starts_over:
            begin += len(path)
        behind = tuple(each.moved(-begin) for each in pictures if each.begin >= begin)
        return Given(ids[begin:], behind, starts_over)

    def _placed(self, ids: tuple[int, ...], pictures: Sequence[ShownPicture]) -> Shown:
        if not pictures:
            return ids, ()
        return placed(ids, pictures, self.picture_token, self.model)


@lru_cache(maxsize=16)
def bridge_of(model_path: str, head: tuple[Message, ...]) -> Bridge:
    """Returns the bridge of the model in this directory. Raises ValueError as `make_bridge`."""
    tokenizer = read_tokenizer(model_path)
    stop_ids = read_stop_ids(model_path, tokenizer)
    token = read_picture_token(model_path) if takes_pictures(model_path) else -1
    return make_bridge(tokenizer, stop_ids, head, model_path, token)


def make_bridge(
    tokenizer: PreTrainedTokenizerBase,
    stop_ids: Sequence[int],
    head: Sequence[Message],
    model: str,
    picture_token: int = -1,
) -> Bridge:
    """Make the bridge that the tokenizer's chat template gives. model: its name for error messages.
    picture_token: what stands for a picture in a text, of a model that takes some. Raises
    ValueError if the template changes earlier text other than thoughts, or if the head has
    no token."""
    tokens = ChatTokens(tokenizer, stop_ids)
    written = render_episode(tokens, head, model)
    ids = tokens.ids(written.head)
    if not ids:
        raise ValueError(
            f"an episode must begin with a token at least, the head of an environment has none for"
            f" the model {model}; have its head say something"
        )

    end, after = _end_token(written.next, tokens, stop_ids)

    @cache
    def openings(num_pictures: int) -> Openings:
        shown = render_episode(tokens, head, model, num_pictures=num_pictures)
        return Openings(
            first=_opening(shown.first, OBSERVATIONS[0], tokens),
            next=_opening(shown.next[len(written.next) - len(after) :], OBSERVATIONS[1], tokens),
        )

    rewriting = Rewriting(head=tuple(head), tokens=tokens)
    bridge = Bridge(
        model,
        ids,
        frozenset(stop_ids),
        int(tokenizer.eos_token_id) if end is None else end,
        openings,
        tokens.plain,
        tokens.decode,
        picture_token,
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


def _end_token(text: str, tokens: ChatTokens, stop_ids: Sequence[int]) -> tuple[int | None, str]:
    """The end token that the template writes after an action, None where it writes none, and the
    rest of `text`, which the template writes up to the next action."""
    plain, *behind = tokens.pieces(text)
    if not plain and behind and tokens.controls[behind[0]] in stop_ids:
        return tokens.controls[behind[0]], text.removeprefix(behind[0])
    return None, text


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
    first, second = (KeptObservation(text=text) for text in OBSERVATIONS[:2])
    plain, thoughtful = (
        rewriting.ids([(first, action)], second) for action in (ACTIONS[0], THOUGHTS[0])
    )
    return plain == whole and thoughtful[: len(bridge.head)] == bridge.head
