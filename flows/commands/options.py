"""Options and arguments that several commands share. No heavy imports: `--help` appears at once."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

from artifacts import layout
from artifacts.run_ids import find_run
from artifacts.store import Store
from artifacts.urls import secret_in

PRESET = "smollm2"  # the default
RUN_HELP = "a run under the root: its name, a beginning of it, or last; or a path or URL"
INTERRUPTED = 130  # exit status, as shells have it: 128 and the number of the signal


def command(
    parser: Callable[[], ArgumentParser], *also: type[Exception]
) -> Callable[[Callable[[Namespace], int]], Callable[..., int]]:
    """Make a function of the parsed options the `main(argv=None)` of a command. The exit status is
    what it returns, 130 after Ctrl-C, and 2, with one sentence on standard error, for an error that
    the user can correct: ValueError, OSError and those of `also`."""

    errors: tuple[type[Exception], ...] = (ValueError, OSError, *also)

    def entry(run: Callable[[Namespace], int]) -> Callable[..., int]:
        @wraps(run)
        def main(argv: Sequence[str] | None = None) -> int:
            options = parser().parse_intermixed_args(argv)  # a question may come behind options
            try:
                return run(options)
            except KeyboardInterrupt:
                return INTERRUPTED
            except errors as error:
                from flows.config.sentence import listed

                print(f"error: {listed(error)}", file=sys.stderr)
                return 2

        return main

    return entry


def folder(text: str) -> Path:
    """Parse the path of a folder; `~` is expanded, because shells leave --root=~/runs as it is."""
    if secret_in(text):
        raise ArgumentTypeError("must be a folder, got a URL that holds a secret; name a folder")
    path = Path(text).expanduser()
    if path.is_file():
        raise ArgumentTypeError(f"must be a folder, {text!r} is a file; name another")
    return path


def run_store(run: str, root: str) -> Store:
    """Open a run by name under the root (`find_run`: a beginning or `last`, too), or by path or
    URL. ValueError, with some names, for none."""
    if "/" in run or run == ".." or Path(run, layout.MANIFEST).is_file():
        return Store.open(run.rstrip("/"))
    opened_root = Store.open(root)
    return opened_root.child(find_run(opened_root, run))


def add_configuration(parser: ArgumentParser) -> None:
    """Add --preset, --settings and --set."""
    parser.add_argument(
        "--preset",
        default="",
        metavar="NAME",
        help=f"named configuration (default: {PRESET}); 'rollflow explain --list' has them all",
    )
    parser.add_argument(
        "--settings",
        default="",
        metavar="FILE",
        help="JSON file with fields that override the preset; it may name a preset itself, and"
        " --set overrides it ('rollflow recommend --write FILE' makes one)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field, for example num_steps=5; 'rollflow explain --fields' lists those"
        " that people set",
    )


def add_run(parser: ArgumentParser) -> None:
    """Add RUN and --root, the arguments of `run_store`."""
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--root", default="runs", help="artifact root (default: %(default)s)")


def add_resume(parser: ArgumentParser) -> None:
    what = "go on with a run that was interrupted: its id, a beginning of it, or last"
    parser.add_argument("--resume", default="", metavar="RUN_ID", help=what)
