"""The process of one environment, from the fork to its end. Runs behind the walls, maybe in another
interpreter than the run's: standard library only.

    private /tmp -> no capabilities -> streams -> limits -> filter -> CONFINED
    -> recipe -> ( make, reset, step or restore -> answer )*

The answer to a step is followed by the pickled state of the environment if that is small and no
part of it lies on a server. A state is unpickled only in such a process. From the filter on nothing
in this process is trusted: the caller checks its answers and holds the clock.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
from typing import TYPE_CHECKING

from tasks.environments.transition import Unusable, pictures_in
from tasks.isolation.confinement import enclose
from tasks.isolation.frames import read_message, write_message
from tasks.isolation.seccomp import SystemCallFilter

if TYPE_CHECKING:  # another interpreter may lack what these import
    from tasks.environments.base import Environment, Recipe

STREAM = 3  # the descriptor beside the standard streams, which lead nowhere
NUM_FILES = 64
LANDLOCK_FILE_BYTES = 4 << 20  # where there is no /tmp, and no file to be written
FOREVER_S = 1 << 30  # the caller's clock ends a call long before
# what an order begins with
RECIPE, MAKE, RESET, STEP, RESTORE = b"B", b"M", b"R", b"S", b"L"
MAX_STATE_BYTES = 64 << 10  # of an environment that is to be restored; a larger one is replayed
STATE = b"\0"  # between an answer and its state; no JSON has it


def run_environment_process(
    stream: int, calls: SystemCallFilter, *, memory_bytes: int, tmp_bytes: int, keeps_state: bool
) -> None:
    """Build the walls and serve orders until the caller is gone; never returns.

    memory_bytes: of address space, all that is shared included. tmp_bytes: of its /tmp; 0 without
    namespaces. keeps_state: false if a server holds a part of the environment's state.
    """
    try:
        enclose(
            (None, None, None, stream),
            calls,
            tmp_bytes=tmp_bytes,
            memory_bytes=memory_bytes,
            file_bytes=tmp_bytes or LANDLOCK_FILE_BYTES,
            num_files=NUM_FILES,
            cpu_s=FOREVER_S,
        )
        _serve(keeps_state=keeps_state)
    finally:
        os._exit(0)


def _serve(*, keeps_state: bool) -> None:
    recipe: bytes = b""
    environment: Environment | None = None
    states = States(are_kept=keeps_state)
    while (order := read_message(STREAM)) is not None:
        kind, body = order[:1], order[1:]
        if kind == RECIPE:
            recipe, environment, states = body, None, States(are_kept=keeps_state)
            continue
        state = b""
        answer: dict[str, object] = {}
        try:
            if environment is None:
                pickled: Recipe = pickle.loads(recipe)
                environment = pickled.build()
            if kind == RESTORE:
                environment = _restored(body, type(environment))  # None is built again
                states.begin(is_first=False)
                answer = {"restored": environment is not None}
            elif kind == RESET:
                states.begin()
                answer = _observed(environment.reset(int(body)))
            elif kind == STEP:
                answer, state = _step(environment, body.decode("utf-8", "surrogatepass"), states)
            encoded = json.dumps(answer)
        except Unusable as error:
            encoded, state = json.dumps({"unusable": str(error)[:1000]}), b""
        except BaseException as error:  # an exit of the environment's is its exception, too
            encoded, state = json.dumps({"raised": _described(error)}), b""
        write_message(STREAM, encoded.encode("ascii") + (STATE + state if state else b""))


def _step(environment: Environment, text: str, states: States) -> tuple[dict[str, object], bytes]:
    turn = environment.step(text)
    answer: dict[str, object] = {
        **_observed(turn.observation),
        "reward": float(turn.reward),  # numpy's numbers and truth values, too
        "terminated": bool(turn.terminated),
        "truncated": bool(turn.truncated),
        "info": {str(name): str(value) for name, value in turn.info.items()},
    }
    is_over = turn.terminated or turn.truncated
    return answer, b"" if is_over else states.after_turn(environment)


def _observed(observation: str) -> dict[str, object]:
    shown = [base64.b64encode(data).decode("ascii") for data in pictures_in(observation)]
    return {"observation": observation, **({"pictures": shown} if shown else {})}


def _restored(state: bytes, kind: type[Environment]) -> Environment | None:
    """Unpickle the environment from a state; None if that gives no environment of this class."""
    try:
        environment = pickle.loads(state)
    except Exception:
        return None
    return environment if type(environment) is kind else None


def _described(error: BaseException) -> str:
    """Describe the exception and the line that raised it."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    try:
        text = str(error)[:200]
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


class States:
    """Pickles an environment after its turns while that is useful. If it does not pickle or is too
    large, it is not tried again in the same episode; if that was after the first turn of an
    episode, never again. Pickling in vain costs most where an environment is largest."""

    def __init__(self, *, are_kept: bool) -> None:
        self._are_kept = are_kept  # ever
        self.begin()

    def begin(self, *, is_first: bool = True) -> None:
        """Begin another episode. is_first: whether the next turn is the episode's first."""
        self._is_first, self._is_tried = is_first, self._are_kept

    def after_turn(self, environment: object) -> bytes:
        """Returns the pickled environment; empty if that is not tried, fails or is too large."""
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


def split_state(body: bytes) -> tuple[bytes, bytes]:
    """Split an answer from the state behind it: empty without one, or if it is too large."""
    answer, _, state = body.partition(STATE)
    return answer, state if len(state) <= MAX_STATE_BYTES else b""
