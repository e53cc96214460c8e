"""The walls around environment processes: the command line of their fork server.

The processes see the interpreter, the system's libraries, the interpreter's import paths and the
paths that the configuration names, all read-only, and a private /tmp. Processes of another
interpreter than the run's see its virtual environment and a part of these sources, but no packages
of the run.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import pydantic

from tasks.environments.config import EnvironmentProcessConfig
from tasks.environments.processes.fork_server import ForkOrders
from tasks.isolation.interpreter import Interpreter, is_below_tmp, own
from tasks.isolation.isolation import (
    RESOLVING,
    ROOT,
    Isolation,
    View,
    interpreter_paths,
    variables,
    walls,
)
from tasks.isolation.user_map import UserMap

START_S = 180.0  # until a fork server has imported everything: a cold disk may take a minute
SOURCES = f"{ROOT}/tasks"  # all that another interpreter sees of these
ENTRY = (  # what is installed editable is found by code in the directories of packages
    "import sys; sys.path[:] = [path for path in sys.path if path];"
    " import json, site; orders = json.loads(sys.argv[1]);"
    " sys.path[:] = paths = orders['search_path']; sys.prefix = sys.exec_prefix = orders['prefix'];"
    " [site.addsitedir(path) for path in paths if path.endswith('-packages')];"
    " from tasks.environments.processes.fork_server import main; main(sys.argv[1])"
)
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    # threads cannot be forked
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def command(
    config: EnvironmentProcessConfig,
    socket_fd: int,
    users: UserMap | None,
    *,
    imports: Sequence[str],
    has_network: bool,
    interpreter: Interpreter,
) -> list[str]:
    """Returns the fork server's command line. Raises FileNotFoundError without bubblewrap, and
    ValueError if the processes could not see a path that they need."""
    isolation = Isolation(config.isolation)
    has_namespaces = isolation is Isolation.NAMESPACES
    check_seen(config, interpreter)
    paths = _paths(config, interpreter, has_network=has_network)
    orders = ForkOrders(
        socket_fd=socket_fd,
        search_path=_search_path(interpreter),
        prefix=interpreter.prefix,
        imports=imports,
        memory_bytes=config.memory_mb << 20,
        tmp_bytes=config.disk_mb << 20 if has_namespaces else 0,
        readable=() if has_namespaces else [os.path.realpath(path) for path in paths],
        has_network=has_network,
        start_s=int(START_S),
    )
    python = [interpreter.executable, "-s", "-S", "-B", "-c", ENTRY, json.dumps(asdict(orders))]
    if not has_namespaces:
        return python
    view = View(paths=paths, has_packages=True, has_network=has_network, tmp_bytes=orders.tmp_bytes)
    return [*walls(users, view), *variables(ENVIRONMENT), *python]


def check_seen(
    config: EnvironmentProcessConfig, interpreter: Interpreter, sources: Iterable[str] = ()
) -> None:
    """Raise ValueError if the processes could not see a path. sources: files of environments."""
    if hidden := hidden_path(config, interpreter, sources):
        raise ValueError(
            "Rollflow, its virtual environment and the environments of users must lie outside of"
            f" /tmp, in place of which a process of environments has its own; {hidden} is below"
            " /tmp; move it, or set episodes.hosts.isolation=landlock"
        )


def hidden_path(
    config: EnvironmentProcessConfig, interpreter: Interpreter, sources: Iterable[str] = ()
) -> str:
    """Returns a path that the processes need and cannot see; empty if they see all."""
    if Isolation(config.isolation) is not Isolation.NAMESPACES:
        return ""
    bound = _paths(config, interpreter, has_network=False)
    needed = [str(ROOT), interpreter.executable, interpreter.library, *sources]
    if interpreter == own():
        needed.append(pydantic.__file__)  # of the packages, the one that all need
    return next((path for path in needed if _is_hidden(path, bound)), "")


def _is_hidden(path: str, bound: Sequence[str]) -> bool:
    """True if the path itself lies below /tmp, or a link on the way to it leads there within the
    bound paths; those are bound at their own places, wherever a link to them leads."""
    real = Path(os.path.realpath(path))
    if is_below_tmp(path) or not is_below_tmp(real):
        return is_below_tmp(path)
    roots = [Path(os.path.realpath(other)) for other in bound if Path(path).is_relative_to(other)]
    return not any(real.is_relative_to(root) for root in roots)


def closed_to_nobody(interpreter: Interpreter) -> str:
    """Returns the outermost directory that only its owner may enter on the way to an interpreter's
    library; empty if there is none or the run is not root's. Under Landlock root's processes are
    nobody's."""
    library = Path(os.path.realpath(interpreter.library))
    ways = (library, *library.parents)
    closed = [str(way) for way in ways if not way.stat().st_mode & stat.S_IXOTH]
    return closed[-1] if closed and os.geteuid() == 0 else ""


def _search_path(interpreter: Interpreter) -> list[str]:
    """These sources come first where the names of its packages are not ours to know."""
    if interpreter == own():
        return list(dict.fromkeys([*interpreter.search_path, str(ROOT)]))
    return list(dict.fromkeys([str(ROOT), *interpreter.search_path]))


def _paths(
    config: EnvironmentProcessConfig, interpreter: Interpreter, *, has_network: bool
) -> tuple[str, ...]:
    """Returns the paths that the processes may read, none of them beneath another one."""
    for path in config.readable:
        if not os.path.exists(path) or not os.path.isabs(path) or is_below_tmp(path):
            raise ValueError(
                "hosts.readable must name absolute paths that exist, outside of /tmp, in place of"
                f" which a process has its own; got {path!r}; mend, move or drop it"
            )
    if interpreter == own():
        importable = _search_path(interpreter)
    else:  # of these sources no more than it must, of its virtual environment everything
        is_virtual = interpreter.prefix != interpreter.base_prefix
        virtual = [interpreter.prefix] if is_virtual else []
        importable = [SOURCES, *virtual, *interpreter.search_path]
    resolving = RESOLVING if has_network else ()
    asked = (*interpreter_paths(interpreter), *resolving, *importable, *config.readable)
    there = [
        path
        for path in dict.fromkeys(map(os.path.normpath, asked))
        if path != "/" and os.path.isabs(path) and os.path.exists(path)
    ]
    directories = [Path(path) for path in there if not os.path.islink(path)]
    return tuple(
        path for path in there if not any(other in Path(path).parents for other in directories)
    )
