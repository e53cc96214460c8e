"""The process of one environment, from the fork to its end. Runs behind the walls, maybe in another
interpreter than the run's: standard library only.

    private /tmp -> no capabilities -> streams -> limits -> filter -> say so
    -> recipe -> ( make, reset, step or restore -> answer )*

The answer to a step has the environment's state behind it, pickled, where that is few bytes and
none of it lies at the other end of a connection. A state is only ever unpickled here.

From the filter on nothing in this process is trusted: the caller checks what it answers and holds
the clock.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.environments.transition import Unusable
from tasks.isolation.confinement import confine, connect, limit
from tasks.isolation.seccomp import SystemCallFilter

if TYPE_CHECKING:  # another interpreter may lack what these import
    from tasks.environments.base import Environment, Recipe


STREAM = 3  # the descriptor beside the standard streams, which lead nowhere
NUM_FILES = 64
LANDLOCK_FILE_BYTES = 4 << 20  # where there is no /tmp, and no file to be written
FOREVER_S = 1 << 30  # the caller's clock ends a call long before
LENGTH = struct.Struct(">I")  # before every message, both ways
CONFINED = b""  # the first message: the walls stand; else why not
# what an order begins with
RECIPE, MAKE, RESET, STEP, RESTORE = b"B", b"M", b"R", b"S", b"L"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """What a process gets."""

    memory_bytes: int  # address space, all that it shares included
    tmp_bytes: int  # its /tmp; 0 without namespaces
    calls: SystemCallFilter
    keeps_state: bool  # whether its environment is all there is of an episode


def framed(message: bytes) -> bytes:
    """A message as it goes over the stream."""
    return LENGTH.pack(len(message)) + message


def run_environment_process(stream: int, bounds: ProcessLimits) -> None:
    """Never returns. Builds the walls and obeys until the caller is gone."""
    try:
        confine(bounds.tmp_bytes)
        nothing = os.open("/dev/null", os.O_RDWR)
        connect((nothing, nothing, nothing, stream))
        stream = STREAM
        limit(
            memory_bytes=bounds.memory_bytes,
            file_bytes=bounds.tmp_bytes or LANDLOCK_FILE_BYTES,
            num_files=NUM_FILES,
            cpu_s=FOREVER_S,
        )
        bounds.calls.install()
    except BaseException as error:  # behind half-built walls runs no environment
        _write(stream, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        os._exit(1)
    try:
        _write(STREAM, CONFINED)
        _serve(keeps_state=bounds.keeps_state)
    finally:
        os._exit(0)


def _serve(*, keeps_state: bool) -> None:
    recipe: bytes = b""
    environment: Environment | None = None
    states = States(are_kept=keeps_state)
    while (order := _read(STREAM)) is not None:
        kind, told = order[:1], order[1:]
        if kind == RECIPE:
            recipe, environment, states = told, None, States(are_kept=keeps_state)
            continue
        try:
            if environment is None:
                environment = _built(recipe)
            if kind == RESTORE:
                environment = _restored(told, type(environment))  # None is built again
                states.begin(is_first=False)
                answer = _said({"restored": environment is not None})
            else:
                answer = _answer(environment, kind, told, states)
        except Unusable as error:
            answer = _said({"unusable": str(error)[:1000]})
        except BaseException as error:  # an exit of the environment's is its exception, too
            answer = _said({"raised": _words(error)})
        _write(STREAM, answer)


def _built(pickled: bytes) -> Environment:
    recipe: Recipe = pickle.loads(pickled)
    return recipe.build()


def _answer(environment: Environment, kind: bytes, told: bytes, states: States) -> bytes:
    if kind == MAKE:
        return _said({})
    if kind == RESET:
        states.begin()
        return _said({"observation": environment.reset(int(told))})
    turn = environment.step(told.decode("utf-8", "surrogatepass"))
    answer = _said(
        {
            "observation": turn.observation,
            "reward": float(turn.reward),  # numpy's numbers and truth values, too
            "terminated": bool(turn.terminated),
            "truncated": bool(turn.truncated),
            "info": {str(name): str(value) for name, value in turn.info.items()},
        }
    )
    goes_on = not (turn.terminated or turn.truncated)
    return with_state(answer, states.after_turn(environment) if goes_on else b"")


def _said(answer: object) -> bytes:
    return json.dumps(answer).encode("ascii")


def _restored(state: bytes, kind: type[Environment]) -> Environment | None:
    """The environment of a state; None where no such one comes back."""
    try:
        environment = pickle.loads(state)
    except Exception:
        return None
    return environment if type(environment) is kind else None


def _words(error: BaseException) -> str:
    """The exception, and the line that raised it."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    try:
        said = str(error)[:200]
    except BaseException:
        said = ""
    return f"{type(error).__name__}: {said}{place}" if said else f"{type(error).__name__}{place}"


def _read(stream: int) -> bytes | None:
    """One message, None when the caller is gone."""
    header = _read_bytes(stream, LENGTH.size)
    return None if header is None else _read_bytes(stream, LENGTH.unpack(header)[0])


def _read_bytes(stream: int, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        chunk = os.read(stream, count - len(found))
        if not chunk:
            return None
        found += chunk
    return bytes(found)


def _write(stream: int, message: bytes) -> None:
    left = memoryview(framed(message))
    while left:
        left = left[os.write(stream, left) :]


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


def split_state(body: bytes) -> tuple[bytes, bytes]:
    """An answer, and the state behind it: empty if there is none, or more than may be."""
    answer, _, state = body.partition(STATE)
    return answer, state if len(state) <= MAX_STATE_BYTES else b""
