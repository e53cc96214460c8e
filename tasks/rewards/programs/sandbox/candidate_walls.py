"""The walls around candidate programs: the command line of their fork server.

Beside what the isolation gives: no installed packages, no new processes, threads, sockets or
signals (`seccomp`), bounded memory, time and output (`candidate`). Leaves out whether it holds:
`self_test` tries.
"""

from __future__ import annotations

import os
import sys

from tasks.isolation.isolation import (
    INSIDE,
    ROOT,
    Isolation,
    View,
    interpreter_paths,
    variables,
    walls,
    without_packages,
)
from tasks.isolation.limits import SandboxLimits
from tasks.isolation.user_map import UserMap

CODE = ("tasks/rewards/programs/sandbox", "tasks/isolation", "artifacts/datasets/plain_values.py")
ENTRY = (
    "import sys; sys.path.insert(0, {root!r}); from tasks.rewards.programs.sandbox.fork_server"
    " import main; main()"
)
ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}  # all that the sandbox's process gets


def command(
    isolation: Isolation,
    socket_fd: int,
    limits: SandboxLimits,
    users: UserMap | None,
) -> list[str]:
    """The command line of a fork server that talks over this descriptor. FileNotFoundError without
    bubblewrap."""
    nice = ["nice", "-n", str(limits.niceness)] if limits.niceness else []
    python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c"]
    memory, tmp = str(limits.memory_bytes), str(limits.tmp_bytes)
    if isolation is Isolation.LANDLOCK:
        whole = dict.fromkeys(map(os.path.realpath, interpreter_paths()))
        readable = [part for path in whole for part in without_packages(path)]
        arguments = [str(socket_fd), memory, "0", *readable, str(ROOT / CODE[0])]
        return [*nice, *python, ENTRY.format(root=str(ROOT)), *arguments]
    view = View(paths=interpreter_paths(), code=CODE)
    confined = [*walls(users, view), *variables(ENVIRONMENT)]
    arguments = [str(socket_fd), memory, tmp]
    return [*nice, *confined, *python, ENTRY.format(root=INSIDE), *arguments]
