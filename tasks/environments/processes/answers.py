"""The answers that an environment may give: text, pictures and rewards, in bounds. Pure.

Lone surrogates in a text, which no tokenizer and no table takes, become question marks.

{"observation"}                                                    to a reset
{"observation", "reward", "terminated", "truncated", "info"}       to a step; then the state
{"observation", "pictures": files in base64, ...}                  to both, if pictures are shown
{"restored": whether the state was taken}                          to a state
{"raised": the exception in a line}                                instead of any
{"unusable": why it can never work, and the cure}                  likewise
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from artifacts.printable import printable_line
from tasks.environments.base import MOST_PICTURE_BYTES, Crashed, check_pictures
from tasks.environments.processes.process_main import MAX_STATE_BYTES
from tasks.environments.transition import PicturedText, Transition, Unusable, pictures_in
from tasks.rewards.base import checked_reward

SENTENCE_CHARS = 1000  # of the reason why an environment can never work
ESCAPED_BYTES = 12  # that a character takes in JSON at most
INFO_BYTES = 64 << 10  # for all of an answer beside its observation and its state


def max_answer_bytes(max_observation_chars: int) -> int:
    """Returns the largest size in bytes of an allowed answer and its state."""
    text_bytes, picture_bytes = ESCAPED_BYTES * max_observation_chars, MOST_PICTURE_BYTES * 3 // 2
    return text_bytes + picture_bytes + INFO_BYTES + MAX_STATE_BYTES


def read_answer(body: bytes) -> dict[str, object]:
    """Read any answer. Raises Crashed, and Unusable for an environment that can never work."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Crashed("its process broke the protocol: an answer that is no JSON") from error
    if not isinstance(answer, dict):
        raise Crashed("its process broke the protocol: an answer that is no object")
    if "unusable" in answer:
        raise Unusable(printable_line(str(answer["unusable"]), SENTENCE_CHARS))
    if "raised" in answer:
        raise Crashed(str(answer["raised"]))
    return answer


def read_observation(body: bytes, max_chars: int) -> str:
    """Read the answer to a reset. Raises as `read_answer`."""
    return checked_observation(_observation_in(read_answer(body)), max_chars)


def read_transition(body: bytes, max_chars: int) -> Transition:
    """Read the answer to a step. Raises as `read_answer`."""
    answer = read_answer(body)
    given = {**answer, "observation": _observation_in(answer)}
    return checked_transition([given.get(name) for name in Transition._fields], max_chars)


def _observation_in(answer: Mapping[str, object]) -> object:
    """The observation of an answer, with its pictures. Raises Crashed."""
    text = answer.get("observation")
    shown: Any = answer.get("pictures")  # Any: JSON
    if shown is None or not isinstance(text, str):
        return text
    try:
        files = [base64.b64decode(data, validate=True) for data in shown]
    except (binascii.Error, TypeError, ValueError) as error:
        raise Crashed("its process broke the protocol: pictures that are no base64") from error
    return PicturedText.of(text, files)


def checked_observation(observation: object, max_chars: int) -> str:
    """Check that an observation is text, and not too long, and so its pictures. Raises Crashed."""
    if not isinstance(observation, str):
        raise Crashed(f"an observation must be text, got {type(observation).__name__}")
    if len(observation) > max_chars:
        raise Crashed(
            f"an observation must have at most {max_chars} characters, got {len(observation)};"
            " shorten it or raise max_observation_chars"
        )
    pictures, text = pictures_in(observation), _writable(observation)
    if not pictures:
        return text
    try:
        check_pictures(pictures)
    except ValueError as error:
        raise Crashed(str(error)) from error
    return PicturedText.of(text, pictures)


def checked_transition(values: Sequence[object], max_chars: int) -> Transition:
    """Check types and reward of a transition's values. Raises Crashed."""
    observation, reward, terminated, truncated, info = values
    text = checked_observation(observation, max_chars)
    try:
        paid = checked_reward(reward)
    except ValueError as error:
        raise Crashed(str(error)) from error
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool):
            raise Crashed(f"{name} must be a truth value, got {type(flag).__name__}")
    if not isinstance(info, Mapping) or not all(
        isinstance(word, str) for item in info.items() for word in item
    ):
        raise Crashed("info must be texts by name")
    details = {_writable(name): _writable(said) for name, said in info.items()}
    return Transition(text, paid, terminated is True, truncated is True, details)


def _writable(text: str) -> str:
    return text.encode(errors="replace").decode()
