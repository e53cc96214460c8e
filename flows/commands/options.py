"""Options that several commands share. Imports nothing heavy: `--help` is there at once."""

from __future__ import annotations

from argparse import ArgumentParser

from flows.config.presets import PRESETS


def add_configuration(parser: ArgumentParser, preset: str = "smollm2") -> None:
    """--preset and --set."""
    parser.add_argument(
        "--preset",
        default=preset,
        choices=tuple(PRESETS),
        metavar="NAME",
        help="named configuration (default: %(default)s); 'rollflow explain --list' has them all",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field, for example num_steps=5; 'rollflow explain --fields' lists them",
    )


def add_resume(parser: ArgumentParser) -> None:
    """--resume."""
    parser.add_argument(
        "--resume", default="", metavar="RUN_ID", help="go on with a run that was interrupted"
    )
