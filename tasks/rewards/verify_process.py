"""The process of a `VerifyWorker`: one scorer function, called with JSON arguments over a socket.

    limits -> load the scorer -> {"ready"}
    -> ( arguments -> scorer -> {"value"} | {"raised"} | {"memory"} )*

The parent kills the process if a call exceeds its limit. If the parent is dead, a bound on CPU time
ends the process.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence

from artifacts.import_path import find
from tasks.isolation.frames import Json, receive_frame, send_frame

MIN_SECRET_CHARS = 4  # shorter values are parts of any text


def main(socket_fd: int, scorer_path: str, memory_bytes: int, secrets: Sequence[str]) -> None:
    """Serve calls until the parent closes its end of the socket. `secrets`: names of environment
    variables whose values must not appear in replies."""
    stream = socket.socket(fileno=socket_fd)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(2, 1)  # a scorer's prints go to the log
    # math-verify warns that its time is not limited; the parent limits it
    logging.disable(logging.WARNING)
    try:
        scorer = find(scorer_path)
        if not callable(scorer):
            raise ValueError(f"{scorer_path} is no function")
    except BaseException as error:  # a user's module may raise anything while it is imported
        send_frame(stream, hidden({"unavailable": describe(error)}, secrets))
        return
    send_frame(stream, {"ready": True})
    try:
        while True:
            send_frame(stream, hidden(answer(scorer, receive_frame(stream)), secrets))
    except ConnectionError:
        return


def answer(scorer: Callable[..., object], request: dict[str, Json]) -> dict[str, Json]:
    """Run one call; returns the reply. An exception of the scorer becomes a reply, too."""
    arguments, limit_s = request["arguments"], request["limit_s"]
    assert isinstance(arguments, list)
    assert isinstance(limit_s, int | float)
    # a call that has lost its parent ends by SIGXCPU soon after its time limit
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + limit_s) + 1, hard))
    try:
        value = scorer(*arguments)
    except MemoryError:
        return {"memory": True}
    except BaseException as error:  # SystemExit of a user's function included
        return {"raised": describe(error)}
    if isinstance(value, str | None):
        return {"value": value}
    try:
        # numpy and torch scalars convert; the rest raises
        number = float(value)  # type: ignore[arg-type]
    except Exception:
        return {"raised": f"it returned {type(value).__name__}, not a number that a float can hold"}
    return {"value": value if isinstance(value, int) else number}


def hidden(reply: dict[str, Json], secrets: Sequence[str]) -> dict[str, Json]:
    """Replace the values of these environment variables by their names: replies are logged."""
    values = {name: os.environ.get(name, "") for name in secrets}
    longest_first = sorted(values, key=lambda name: len(values[name]), reverse=True)
    for key, text in reply.items():
        for name in longest_first:
            if isinstance(text, str) and len(values[name]) >= MIN_SECRET_CHARS:
                text = text.replace(values[name], f"${name}")
        reply = {**reply, key: text}
    return reply


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
