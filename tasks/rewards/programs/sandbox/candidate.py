"""The process of a candidate program, from the fork to its end. Runs inside the sandbox, with the
standard library only.

    private /tmp -> no capabilities -> streams -> limits -> filter -> report -> program
    -> ( command -> call -> reply )*

Once the program runs, the host trusts nothing in this process: the program may change any object
here and forge every reply. It knows the inputs of its tests but not the expected results, and the
host measures the time.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from artifacts.datasets.plain_values import from_json, to_json
from tasks.isolation.confinement import enclose
from tasks.isolation.frames import read_message, write_message
from tasks.isolation.seccomp import SystemCallFilter

Message = dict[str, Any]  # Any: JSON values

COMMANDS, REPLIES = 3, 4  # descriptors of the process beside its standard streams
NUM_FILES = 32
# the longest file if there is no /tmp: the one that holds standard output
OUTPUT_FILE_BYTES = 4 << 20
CPU_S = 600  # the host's clock ends a program long before


def run_program(
    memory_bytes: int, tmp_bytes: int, streams: tuple[int, ...], filter_calls: SystemCallFilter
) -> None:
    """Confine this process, wait for the program and run it; never returns. The four streams become
    the descriptors 0, 1, 3 and 4; standard error (2) goes to /dev/null."""
    try:
        enclose(
            (*streams[:2], None, *streams[2:]),
            filter_calls,
            tmp_bytes=tmp_bytes,
            memory_bytes=memory_bytes,
            file_bytes=tmp_bytes or OUTPUT_FILE_BYTES,
            num_files=NUM_FILES,
            cpu_s=CPU_S,
        )
        start = _read(COMMANDS)
        if start is not None:
            _serve(start)
    finally:
        os._exit(0)


def _serve(start: Message) -> None:
    if not start["is_main"]:
        os.dup2(2, 1)  # its output is discarded
    # the interpreter's start leaves them out here
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    sys.argv = [""]  # those of the fork server are no files for `fileinput`
    module = ModuleType("__main__" if start["is_main"] else "solution")
    sys.modules[module.__name__] = module  # where dataclasses and typing look for a class's names
    namespace = vars(module)
    namespace["__builtins__"] = builtins
    _reply(lambda: _run(_compiled(start), namespace, is_main=start["is_main"]))
    if start["asks"]:
        namespace.update(dict.fromkeys((start["asks"], "candidate"), _ask))
    while (command := _read(COMMANDS)) is not None:
        _obey(command, namespace)


def _compiled(start: Message) -> list[CodeType]:
    """Compile preamble and program as one text, or each on its own if one text is a SyntaxError (as
    with a `__future__` import in the program)."""
    program, preamble = start["program"].removeprefix("\ufeff"), start["preamble"]
    if not preamble:
        return [_code(program)]
    try:
        return [_code(f"{preamble}\n{program}")]
    except SyntaxError as error:
        try:
            return [_code(preamble), _code(program)]
        except SyntaxError:
            raise error from None


def _code(text: str, file: str = "<program>") -> CodeType:
    code: CodeType = compile(text, file, "exec", dont_inherit=True)
    return code


def _run(program: list[CodeType], namespace: Message, *, is_main: bool) -> None:
    """Run a program, a whole one (`is_main`) as an interpreter does: at the end call exit handlers
    and flush its output."""
    try:
        for code in program:
            exec(code, namespace)
    finally:
        if is_main:
            atexit._run_exitfuncs()
            own = [value for value in namespace.values() if isinstance(value, io.IOBase)]
            for stream in (*own, sys.stdout, sys.__stdout__):
                if stream is not None:
                    with suppress(ValueError):  # which it raises when it is closed or detached
                        stream.flush()


def _obey(command: Message, namespace: Message) -> None:
    if "statement" in command:
        _reply(lambda: exec(_code(command["statement"], "<test>"), namespace))
        return
    name, arguments, named = command["function"], command["arguments"], command["named"]
    _reply(
        lambda: namespace[name](*from_json(arguments), **from_json(named)),
        is_exact=command["is_exact"],
    )


def _reply(work: Callable[[], object], *, is_exact: bool = True) -> None:
    """Send the result of `work`, or the program's exception. `is_exact`: see `to_json`."""
    try:
        message: Message = {"value": to_json(work(), is_exact=is_exact)}
        encoded = json.dumps(message).encode("ascii")
    except SystemExit as error:
        failed = b'{"raised": "SystemExit", "message": ""}'
        encoded = b'{"exited": true}' if error.code in (None, 0) else failed
    except MemoryError:
        encoded = b'{"memory": true}'
    except BaseException as error:
        # name of its nearest builtin class, as a test does not know the program's own classes
        kinds = type(error).__mro__
        known = (kind for kind in kinds if getattr(builtins, kind.__name__, None) is kind)
        name = next(known, BaseException).__name__
        try:
            words = str(error)[:200]
        except BaseException:
            words = ""
        encoded = json.dumps({"raised": name, "message": words}).encode("ascii")
    write_message(REPLIES, encoded)


def _ask(*arguments: object, **named: object) -> object:
    """Stands for the function under test: sends the call to the host, returns what comes back."""
    given, by_name = (to_json(each, is_exact=False) for each in (list(arguments), named))
    message = {"ask": {"arguments": given, "named": by_name}}
    write_message(REPLIES, json.dumps(message).encode("ascii"))
    answer = _read(COMMANDS)
    if answer is None:
        os._exit(0)
    if "raised" in answer:
        raise _raised(answer["raised"], answer["message"])
    return from_json(answer["value"])


def _raised(name: str, words: str) -> Exception:
    """The function's exception, for the test to raise; never StopIteration, which would silently
    end a `map` of the test."""
    known = getattr(builtins, name, None)
    endings = (StopIteration, StopAsyncIteration)
    if isinstance(known, type) and issubclass(known, Exception) and known not in endings:
        with suppress(TypeError):  # a few exceptions need more arguments than a message
            return known(words)
    return RuntimeError(f"{name} {words}")


def _read(descriptor: int) -> Message | None:
    """Read a message; None at the end of the stream."""
    body = read_message(descriptor)
    return None if body is None else dict(json.loads(body))
