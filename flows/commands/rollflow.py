"""The console script: `rollflow COMMAND ...` is `python -m flows.commands.rollflow COMMAND ...`.

A new command is a line in COMMANDS and a file `flows/commands/NAME.py` with `parser()` and
`main(argv)`. Only the module of the chosen command is imported: help appears at once."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from itertools import groupby
from keyword import iskeyword
from pathlib import Path
from typing import Final, NamedTuple

TRAIN: Final = "Train"
LEND: Final = "Lend machines to a run"
PREPARE: Final = "Before a run"
INSPECT: Final = "After a run"
SHELL: Final = "Shell"


class ConsoleCommand(NamedTuple):
    """One command with its line on the help page."""

    name: str  # as it is called
    group: str  # heading under which the help page lists it
    purpose: str  # what it does, in a few words
    example: str  # arguments that make sense to a newcomer

    @property
    def module(self) -> str:
        """The name of its module, with an underscore behind a keyword."""
        return f"flows.commands.{self.name}{'_' * iskeyword(self.name)}"


COMMANDS = (
    ConsoleCommand("demo", TRAIN, "post-train, with servers of its own", "--preset tiny"),
    ConsoleCommand("train", TRAIN, "post-train, on a server that is running", "--preset tiny"),
    ConsoleCommand("rollout", TRAIN, "generate and score alone", "--preset tiny"),
    ConsoleCommand("serve", TRAIN, "offer runs to Prefect's pages", "tiny"),
    ConsoleCommand("worker", LEND, "lend this machine as a rollout worker", "tls://HOST:8786"),
    ConsoleCommand("workers", LEND, "lend several, by a schedule", "tls://HOST:8786"),
    ConsoleCommand("init", PREPARE, "write a first folder of your own", "mine"),
    ConsoleCommand(
        "import", PREPARE, "take settings of ROLL, veRL, PolyRL", "FILE --write run.json"
    ),
    ConsoleCommand("explain", PREPARE, "say what a configuration means", "--preset smollm2"),
    ConsoleCommand("doctor", PREPARE, "check this machine, say what to do", ""),
    ConsoleCommand("calibrate", PREPARE, "measure engines for the planner", "--preset smollm2"),
    ConsoleCommand("recommend", PREPARE, "say which policy suits a cluster", "--devices 16"),
    ConsoleCommand("check", PREPARE, "check a part of your own", "loss my_loss.py:MyLoss"),
    ConsoleCommand("runs", INSPECT, "list runs: state, steps, reward", ""),
    ConsoleCommand("ask", INSPECT, "ask the model that a run trained", "RUN --task"),
    ConsoleCommand("episodes", INSPECT, "show what was said in episodes", "RUN --heldout"),
    ConsoleCommand("push", INSPECT, "send its model to the Hugging Face hub", "RUN ME/NAME"),
    ConsoleCommand("track", INSPECT, "tell MLflow what it missed of a run", "RUN"),
    ConsoleCommand("compare", INSPECT, "put two runs side by side", "RUN RUN"),
    ConsoleCommand("ui", INSPECT, "one page of all runs; MLflow, Prefect", "last"),
    ConsoleCommand("completion", SHELL, "tab completion for bash, zsh and fish", "bash"),
)


# new objects between two searches for garbage: imports make many that all stay, and 700, Python's
# own number, takes a tenth of their time
OBJECTS_PER_SEARCH = 20_000
HELP = ("-h", "--help", "help")
INTERRUPTED, PIPE_CLOSED = 130, 141  # as shells have them: 128 and the number of the signal


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit status 130 after Ctrl-C, 141 if the reader of its output has gone."""
    import_ours_first()
    gc.set_threshold(OBJECTS_PER_SEARCH)
    try:
        status = run_command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # what is left in the buffer would be refused once more when the process ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return status


def import_ours_first() -> None:
    """Import from this checkout first, not from the working directory, here and in children."""
    sources = str(Path(__file__).parents[2])
    if sources not in sys.path[:1]:
        sys.path.insert(0, sources)
    from tasks.cluster.process_environment import python_path

    os.environ.update(python_path())


def run_command(words: Sequence[str]) -> int:
    """Run the command that `words` name and return its exit status; 2 for an unknown command."""
    if not words or words[0] in HELP:
        print(help_page())
        return 0
    if words[0] == "--version":
        print(f"rollflow {version('rollflow')}")
        return 0
    name, *rest = words
    command = next((command for command in COMMANDS if command.name == name), None)
    if command is None:
        names = [command.name for command in COMMANDS]
        near = get_close_matches(name, names, n=1)
        cure = f"did you mean 'rollflow {near[0]}'?" if near else "'rollflow --help' lists them"
        fault = f"the command must be one of {', '.join(names)}, got {name!r}; {cure}"
        print(f"error: {fault}", file=sys.stderr)
        return 2
    status: int = import_module(command.module).main(rest)
    return status


def help_page() -> str:
    """The text of `rollflow --help`: all commands by group, each with an example."""
    lines = [
        "usage: rollflow COMMAND [OPTIONS]",
        "",
        "Reinforcement-learning post-training of language models, as Prefect flows.",
    ]
    for group, commands in groupby(COMMANDS, key=lambda command: command.group):
        lines += ["", f"{group}:"]
        for command in commands:
            example = f"rollflow {command.name} {command.example}"
            lines.append(f"  {example:<38}{command.purpose}")
    end = "rollflow COMMAND --help lists its options, rollflow explain --list the presets."
    return "\n".join((*lines, "", end))


if __name__ == "__main__":
    sys.exit(main())
