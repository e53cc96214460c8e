"""The state of an environment, pickled, on its way: bytes behind the answer to a step.

Standard library only: the process of an environment may have another interpreter than the run's.
"""

from __future__ import annotations

MAX_STATE_BYTES = 64 << 10  # of an environment that is to be restored; a larger one is replayed
STATE = b"\0"  # between an answer and its state; no JSON has it


def with_state(answer: bytes, state: bytes) -> bytes:
    """An answer with a state behind it."""
    return answer + STATE + state if state else answer


def parted(body: bytes) -> tuple[bytes, bytes]:
    """An answer, and the state behind it: empty if there is none, or more than may be."""
    answer, _, state = body.partition(STATE)
    return answer, state if len(state) <= MAX_STATE_BYTES else b""
