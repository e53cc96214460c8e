"""The console script: `rollflow COMMAND ...` is `python -m flows.commands.COMMAND ...`.

Only the module of the chosen command is imported, so that help is there at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from flows.commands.catalogue import COMMANDS, CatalogueEntry

HELP = ("-h", "--help", "help")
INTERRUPTED, UNREAD = 130, 141  # as shells have them: 128 and the number of the signal


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of the command; 130 after Ctrl-C, 141 where nobody reads on (`| head`)."""
    import_ours_first()
    try:
        status = called(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # what is left in the buffer would be refused once more when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    return status


def import_ours_first() -> None:
    """Import these sources before what PYTHONPATH names, and nothing from the working directory,
    here and in whatever process this one starts."""
    sources = str(Path(__file__).parents[2])
    if sources not in sys.path[:1]:
        sys.path.insert(0, sources)
    from tasks.cluster.process_environment import python_path

    os.environ.update(python_path())


def called(words: Sequence[str]) -> int:
    """The exit status of the command that these words call; 2 for one that does not exist."""
    if not words or words[0] in HELP:
        print(help_page())
        return 0
    if words[0] == "--version":
        print(f"rollflow {version('rollflow')}")
        return 0
    name, *rest = words
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        print(f"error: {unknown(name)}", file=sys.stderr)
        return 2
    status: int = import_module(command.module).main(rest)
    return status


def help_page() -> str:
    """All commands by group, with an example each."""
    lines = [
        "usage: rollflow COMMAND [OPTIONS]",
        "",
        "Reinforcement-learning post-training of language models, as Prefect flows.",
    ]
    for group, commands in groupby(COMMANDS, key=lambda command: command.group):
        lines += ["", f"{group}:", *(_line(command) for command in commands)]
    end = "rollflow COMMAND --help lists its options, rollflow explain --list the presets."
    return "\n".join((*lines, "", end))


def _line(command: CatalogueEntry) -> str:
    example = f"rollflow {command.name} {command.example}"
    return f"  {example:<38}{command.purpose}"


def unknown(name: str) -> str:
    """What is said of a command that does not exist."""
    names = [command.name for command in COMMANDS]
    near = get_close_matches(name, names, n=1)
    cure = f"did you mean 'rollflow {near[0]}'?" if near else "'rollflow --help' lists them"
    return f"the command must be one of {', '.join(names)}, got {name!r}; {cure}"


if __name__ == "__main__":
    sys.exit(main())
