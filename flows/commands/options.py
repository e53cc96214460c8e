"""Options that several commands share. No heavy imports, so that `--help` appears at once."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

from artifacts.urls import secret_in
from flows.config.presets import PRESETS

PRESET = "smollm2"  # the default


def folder(text: str) -> Path:
    """Parse the path of a folder; `~` is expanded, because shells leave --root=~/runs as it is."""
    if secret_in(text):
        raise ArgumentTypeError("must be a folder, got a URL that holds a secret; name a folder")
    path = Path(text).expanduser()
    if path.is_file():
        raise ArgumentTypeError(f"must be a folder, {text!r} is a file; name another")
    return path


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
        help="JSON with fields over the preset, of which it may name one itself; --set is laid over"
        " it ('rollflow recommend --write FILE' makes one)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field, for example num_steps=5; 'rollflow explain --fields' lists those"
        " that people set",
    )


def add_resume(parser: ArgumentParser) -> None:
    """Add --resume."""
    parser.add_argument(
        "--resume", default="", metavar="RUN_ID", help="go on with a run that was interrupted"
    )
