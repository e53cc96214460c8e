"""rollflow completion SHELL: the script that completes `rollflow` in a shell.

    eval "$(rollflow completion bash)"                                    in ~/.bashrc
    rollflow completion zsh > a folder of $fpath, as _rollflow
    rollflow completion fish > ~/.config/fish/completions/rollflow.fish

The script is complete in itself: a tab starts no Python. Print it anew after an update.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from importlib import import_module

from flows.commands.options import command
from flows.commands.rollflow import COMMANDS
from flows.config.presets import PRESETS

SHELLS = ("bash", "zsh", "fish")


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow completion",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    made.add_argument("shell", choices=SHELLS, help="the shell that the script is for")
    return made


@command(parser)
def main(options: Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise ValueError("shtab must be installed; 'pip install shtab' does it") from None
    print(shtab.complete(whole_parser(), shell=options.shell))
    return 0


def whole_parser() -> ArgumentParser:
    """Build one parser that has every command as a sub-command."""
    whole = ArgumentParser(prog="rollflow")
    commands = whole.add_subparsers()
    for each in COMMANDS:
        options = import_module(each.module).parser()
        for action in options._actions:  # a shell offers them; the command checks them itself
            if action.dest == "preset":
                action.choices = tuple(PRESETS)
        commands.add_parser(
            each.name, parents=[options], conflict_handler="resolve", help=each.purpose
        )
    return whole
