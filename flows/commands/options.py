"""Options and arguments that several commands share. No heavy imports: `--help` appears at once."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

from artifacts import layout
from artifacts.store import Store
from artifacts.urls import secret_in
from flows.config.presets import PRESETS

PRESET = "smollm2"  # the default
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
                from flows.config.sentence import sentence

                print(f"error: {sentence(error)}", file=sys.stderr)
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
    """Open a run by name under the root, or by path or URL. ValueError, with some names, for
    none."""
    if "/" in run or run == ".." or Path(run, layout.MANIFEST).is_file():
        return Store.open(run.rstrip("/"))
    opened_root = Store.open(root)
    store = opened_root.child(run)
    if not store.exists(layout.MANIFEST):
        known = [name for name in opened_root.list("") if not name.startswith(".")]
        known = [name for name in known if opened_root.exists(f"{name}/{layout.MANIFEST}")]
        there = f"some of those there: {', '.join(known[-5:])}" if known else "there is none"
        raise ValueError(f"RUN must be a run under {opened_root.url}, got {run!r}; {there}")
    return store


def add_configuration(parser: ArgumentParser) -> None:
    """Add --preset, --settings and --set."""
    parser.add_argument(
        "--preset",
        default="",
        choices=tuple(PRESETS),
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
    parser.add_argument("run", metavar="RUN", help="name of a run under the root, its path or URL")
    parser.add_argument("--root", default="runs", help="artifact root (default: %(default)s)")


def add_resume(parser: ArgumentParser) -> None:
    what = "resume a run that was interrupted"
    parser.add_argument("--resume", default="", metavar="RUN_ID", help=what)
