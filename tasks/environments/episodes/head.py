"""What a model reads before the first observation of an episode, as a chat."""

from __future__ import annotations

from collections.abc import Iterable

from artifacts.datasets.rows import Message

# no rules: one token, where the tokenizer begins a text with one
EMPTY_HEAD = (Message(role="system", content=""),)


def head(rules: str, turns: Iterable[tuple[str, str]]) -> tuple[Message, ...]:
    """The rules as the system's turn, then every observation as the user's turn and the action that
    answers it as the assistant's."""
    messages = [Message(role="system", content=rules)]
    for observation, action in turns:
        messages.append(Message(role="user", content=observation))
        messages.append(Message(role="assistant", content=action))
    return tuple(messages)
