"""Episodes under a chat template that rewrites what was said: most that let a model think take the
thoughts out of earlier turns.

    turn 1   head │ observation │ <think>...</think> 12
    turn 2   head │ observation │ 12 │ observation │ <think>...</think> 17      no extension

Such a turn is given the whole history anew, as the template writes it now. What the model reads is
what the record says that it read, and what it sampled is trained in front of that: an episode of
several paths instead of one. Where the template leaves all as it was, the path goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from artifacts.datasets.rows import Message
from tasks.engines.chat_tokens import ChatTokens

Exchange = tuple[str, str]  # an observation, and the action that answered it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """One template's, behind one head."""

    head: tuple[Message, ...]  # what every episode begins with
    num_head_ids: int  # its tokens
    tokens: ChatTokens  # of the model

    def ids(self, said: Sequence[Exchange], observation: str) -> tuple[int, ...]:
        """Head and history as the template writes them now, up to where the model speaks."""
        chat = list(self.head)
        for seen, done in said:
            chat.append(Message(role="user", content=seen))
            chat.append(Message(role="assistant", content=done))
        chat.append(Message(role="user", content=observation))
        return self.tokens.ids(self.tokens.render(chat, asks=True))

    def history(self, said: Sequence[Exchange], observation: str) -> tuple[int, ...]:
        """The same after the head."""
        return self.ids(said, observation)[self.num_head_ids :]
