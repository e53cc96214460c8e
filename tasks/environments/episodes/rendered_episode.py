"""An episode as a chat template renders it: its parts, read off with markers in the places of
observations and actions.

    head │ first observation │ ACTION1 │ all up to ACTION2, the next observation in it │ ACTION2 ...

Most templates of models that think take the thoughts out of earlier turns:

    turn 1   head │ observation │ <think>...</think> 12
    turn 2   head │ observation │ 12 │ observation │ <think>...</think> 17      no extension

Such a turn is given the whole history anew, as the template renders it now (`Rewriting`), and its
sampled tokens are trained after that context: the episode has several token paths instead of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import TemplateError

from artifacts.datasets.rows import Message
from tasks.engines.chat_tokens import BLANK_LINE as BLANK_LINE
from tasks.engines.chat_tokens import ChatTokens

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

    @property
    def whole(self) -> str:
        """The rendered text up to the second action."""
        return self.head + self.first + ACTIONS[0] + self.next


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
    num_head_ids: int  # its tokens
    tokens: ChatTokens  # of the model

    def ids(self, said: Sequence[Exchange], observation: str) -> tuple[int, ...]:
        """Returns the ids of head and history as the template renders them now, up to the next
        action."""
        chat = list(self.head)
        for seen, done in said:
            chat.append(Message(role="user", content=seen))
            chat.append(Message(role="assistant", content=done))
        chat.append(Message(role="user", content=observation))
        return self.tokens.ids(self.tokens.render(chat, asks=True))

    def history(self, said: Sequence[Exchange], observation: str) -> tuple[int, ...]:
        """Returns the ids of the history that follow the head."""
        return self.ids(said, observation)[self.num_head_ids :]
