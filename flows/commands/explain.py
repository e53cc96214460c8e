"""rollflow explain: what a configuration means, before anything is started: a step in numbers
(`algebra_rows`), and which process works on which device.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from flows.commands.algebra_rows import algebra_rows
from flows.commands.command_line import assemble
from flows.commands.field_rows import COMMON, field_rows
from flows.commands.options import add_configuration
from flows.config.presets import PRESETS
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence
from tasks.cluster.devices import worker_specs


def placement_rows(config: RunConfig) -> Iterator[tuple[str, str, str, str]]:
    """Every worker process: name, device, cores, threads and slots."""
    for spec in worker_specs(config.cluster):
        cores = ",".join(map(str, spec.core_ids)) or "any"
        slots = ", ".join(f"{name}={amount:g}" for name, amount in spec.resources)
        yield spec.name, spec.device or "-", cores, slots


def show(config: RunConfig, console: Console) -> None:
    """Print algebra and placement."""
    algebra = Table(
        title=f"{config.preset}: a step in numbers",
        box=None,
        show_header=False,
        title_justify="left",
    )
    for quantity, value in algebra_rows(config):
        algebra.add_row(quantity, value)
    placement = Table(
        "worker",
        "device",
        "cores",
        "slots",
        title="Who works where",
        box=None,
        title_justify="left",
    )
    for row in placement_rows(config):
        placement.add_row(*row)
    console.print(algebra, "", placement)


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow explain",
        description="What a configuration means, before anything is started.",
        epilog="example: rollflow explain --preset tiny --set batch.prompts_per_step=32",
    )
    add_configuration(made)
    made.add_argument("--list", action="store_true", help="list the presets")
    made.add_argument("--fields", action="store_true", help="list the settings that people set")
    made.add_argument("--all", action="store_true", help="with --fields: list all settings")
    made.add_argument(
        "--json", action="store_true", help="print the effective configuration as JSON"
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    console = Console()
    if options.list:
        for name, preset in PRESETS.items():
            console.print(f"{name:<16} {' '.join((preset.__doc__ or '').split())}", highlight=False)
        return 0
    if options.fields:
        for row in field_rows():
            if options.all or row.path in COMMON:
                default = f" (default {row.default})" if row.default else ""
                print(f"{row.path:<40} {row.type}{default}: {row.description}")
        if not options.all:
            print("These are what people set; 'rollflow explain --fields --all' lists the rest.")
        return 0
    try:
        config = RunConfig.model_validate(
            assemble(options.preset, "", options.set, options.settings)
        )
        if not options.json:
            show(config, console)
    except (ValueError, OSError) as error:
        print(f"error: {sentence(error)}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
