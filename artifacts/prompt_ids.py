"""What a prompt's id consists of: "<epoch>/<row>", and "@<adapter>" in a run of several."""

from __future__ import annotations


def asked_of(prompt_id: str, adapter: str) -> str:
    """The id of a prompt that this adapter answers; the same id without a name."""
    return f"{prompt_id}@{adapter}" if adapter else prompt_id


def adapter_of(prompt_id: str) -> str:
    """The adapter within a prompt's id; empty if it names none."""
    return prompt_id.partition("@")[2]


def question_of(prompt_id: str) -> str:
    """A prompt's id without its adapter: equal for all adapters that answer it."""
    return prompt_id.partition("@")[0]


def row_of(prompt_id: str) -> int:
    """The row of the dataset within a prompt's id, where it follows the epoch and a slash."""
    return int(question_of(prompt_id).rpartition("/")[2])
