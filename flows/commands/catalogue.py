"""The commands of `rollflow`. A new one is a file `flows/commands/NAME.py` and a line here.

The file has `parser()`, which gives the command's ArgumentParser, and `main(argv)`, which returns
the exit status. It is imported when the command is called, so this table must stay light.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TRAIN: Final = "Train"
LEND: Final = "Lend machines to a run"
PREPARE: Final = "Before a run"
LOOK: Final = "After a run"
SHELL: Final = "Shell"


class CatalogueEntry(NamedTuple):
    """A line of the help page."""

    name: str  # as it is called, and the name of its module in this package
    group: str  # heading under which the help page lists it
    purpose: str  # what it does, in a few words
    example: str  # arguments that make sense to a newcomer

    @property
    def module(self) -> str:
        return f"flows.commands.{self.name}"


COMMANDS = (
    CatalogueEntry("demo", TRAIN, "post-train, with servers of its own", "--preset tiny"),
    CatalogueEntry("train", TRAIN, "post-train, on a server that is running", "--preset tiny"),
    CatalogueEntry("worker", LEND, "lend this machine as a rollout worker", "tls://HOST:8786"),
    CatalogueEntry("workers", LEND, "lend several, by a schedule", "tls://HOST:8786"),
    CatalogueEntry("explain", PREPARE, "say what a configuration means", "--preset smollm2"),
    CatalogueEntry("doctor", PREPARE, "check this machine, say what to do", ""),
    CatalogueEntry("calibrate", PREPARE, "measure engines for the planner", "--preset smollm2"),
    CatalogueEntry("recommend", PREPARE, "say which policy suits a cluster", "--devices 16"),
    CatalogueEntry("environment", PREPARE, "play an environment, say what fails", "check guess"),
    CatalogueEntry("runs", LOOK, "list runs: state, steps, reward", ""),
    CatalogueEntry("ask", LOOK, "ask the model that a run trained", "RUN --task"),
    CatalogueEntry("episodes", LOOK, "show what was said in episodes", "RUN --heldout"),
    CatalogueEntry("track", LOOK, "tell MLflow what it missed of a run", "RUN"),
    CatalogueEntry("compare", LOOK, "put two runs side by side", "RUN RUN"),
    CatalogueEntry("ui", LOOK, "serve Prefect, MLflow and the reports", ""),
    CatalogueEntry("completion", SHELL, "tab completion for bash, zsh and fish", "bash"),
)
