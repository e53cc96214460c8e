"""rollflow completion SHELL: the script that completes `rollflow` in a shell.

    eval "$(rollflow completion bash)"                                    in ~/.bashrc
    rollflow completion zsh > a folder of $fpath, as _rollflow
    rollflow completion fish > ~/.config/fish/completions/rollflow.fish

The script is complete in itself: a tab starts no Python. A RUN is completed to the runs in the
folder of --root, by default runs/. Print the script anew after an update.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from importlib import import_module

from flows.commands.options import command
from flows.commands.rollflow import COMMANDS
from flows.config.presets import PRESETS

SHELLS = ("bash", "zsh", "fish")
NAMES_A_RUN = ("RUN", "RUN_ID")  # what the help page calls such an argument
BASH_RUNS = r"""
_rollflow_runs() {
  local root=runs before= word
  for word in "${COMP_WORDS[@]}"; do
    [ "$word" = "=" ] && continue
    [ "$before" = "--root" ] && root=$word
    before=$word
  done
  root="${root/#\~/$HOME}"
  local ids=$(cd -- "$root" 2>/dev/null && ls -d */manifest.json 2>/dev/null | cut -d/ -f1)
  compgen -W "last $ids" -- "$1"
}
"""
ZSH_RUNS = r"""
_rollflow_runs() {
  local root=${opt_args[--root]:-runs}
  local -a ids=(last ${root/#\~/$HOME}/*/manifest.json(N:h:t))
  compadd -a ids
}
"""
FISH_RUNS = r"""
function _rollflow_runs
  set -l root runs
  set -l words (commandline -opc)
  if set -l place (contains -i -- --root $words)
    set root (string replace -r '^~' $HOME -- $words[(math $place + 1)])
  end
  echo last
  for manifest in $root/*/manifest.json
    path basename (path dirname $manifest)
  end
end
"""
RUNS = {  # how each shell finds them
    "bash": "_rollflow_runs",
    "zsh": "_rollflow_runs",
    "fish": "(_rollflow_runs)",
    "preamble": {"bash": BASH_RUNS, "zsh": ZSH_RUNS, "fish": FISH_RUNS},
}


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
            if action.metavar in NAMES_A_RUN:
                action.complete = RUNS  # as shtab reads it
        commands.add_parser(
            each.name, parents=[options], conflict_handler="resolve", help=each.purpose
        )
    return whole
