"""The state of an environment, pickled, on its way: bytes behind the answer to a step.

Standard library only: the process of an environment may have another interpreter than the run's.
"""

from __future__ import annotations

import pickle

MAX_STATE_BYTES = 64 << 10  # of an environment that is to be restored; a larger one is replayed
STATE = b"\0"  # between an answer and its state; no JSON has it


class States:
    """Pickles an environment after its turns, as long as that may be of use: not in the rest of an
    episode in which it did not pickle or was too large, and never again where that was so after an
    episode's first turn. Pickling what is never kept costs most where an environment is largest."""

    def __init__(self, *, are_kept: bool) -> None:
        self._are_kept = are_kept  # ever
        self.begin()

    def begin(self, *, is_first: bool = True) -> None:
        """Another episode; is_first: whether from its first turn on."""
        self._is_first, self._is_tried = is_first, self._are_kept

    def after_turn(self, environment: object) -> bytes:
        """The environment pickled; empty where that is not tried, not possible or too large."""
        if not self._is_tried:
            return b""
        try:
            state = pickle.dumps(environment)
        except Exception:  # whatever an environment's own pickling raises
            state = b""
        self._is_tried = 0 < len(state) <= MAX_STATE_BYTES
        self._are_kept = self._is_tried or not self._is_first
        self._is_first = False
        return state if self._is_tried else b""


def with_state(answer: bytes, state: bytes) -> bytes:
    """An answer with a state behind it."""
    return answer + STATE + state if state else answer


def parted(body: bytes) -> tuple[bytes, bytes]:
    """An answer, and the state behind it: empty if there is none, or more than may be."""
    answer, _, state = body.partition(STATE)
    return answer, state if len(state) <= MAX_STATE_BYTES else b""
