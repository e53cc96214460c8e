"""rollflow environment check NAME: check an environment against the protocol by playing episodes.

a kind, or the import path of a class -> episodes by players of every sort -> one line per rule
"""

from __future__ import annotations

import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from artifacts.printable import printable
from flows.commands.command_line import assign
from flows.commands.options import command
from tasks.environments.base import EnvironmentSettings
from tasks.environments.conformance import ConformanceReport, check_environment
from tasks.environments.registry import EnvironmentConfig

MAX_TIMEOUT_S = 1e6
COLOURS = {"holds": "green", "broken": "red", "unknown": "yellow"}


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow environment",
        description="Play an environment by the rules and against them, and report what fails.",
        epilog="example: rollflow environment check examples.guess_environment:Guess",
    )
    made.add_argument("what", choices=("check",), help="check the environment against the protocol")
    made.add_argument(
        "name",
        help=(
            "a kind (guess, grid, gymnasium, ...), or a class of your own as"
            " 'package.module:Name' or 'path/to/file.py:Name'"
        ),
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set a field of its configuration, for example largest=10 or kwargs.size=3",
    )
    made.add_argument(
        "--action",
        action="append",
        default=[],
        metavar="TEXT",
        help="a valid action, in addition to invalid texts; may be given several times",
    )
    made.add_argument(
        "--seeds", type=int, default=8, help="episodes of every player (default: %(default)s)"
    )
    made.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="seconds after which the check is given up (default: %(default)s)",
    )
    return made


@command(parser)
def main(options: Namespace) -> int:
    """Check an environment; exit status 1 if a rule is broken."""
    if options.seeds < 2:
        raise ValueError(f"--seeds must be >= 2, got {options.seeds}; raise it")
    if not 0 < options.timeout <= MAX_TIMEOUT_S:
        raise ValueError(
            f"--timeout must be > 0 and at most {MAX_TIMEOUT_S:g}, got {options.timeout:g};"
            " choose such a number of seconds"
        )
    settings = settings_of(options.name, options.set)
    with time_limit(options.timeout):
        report = check_environment(settings, actions=options.action, num_seeds=options.seeds)
    show(report, options.name)
    return 0 if report.passed else 1


def settings_of(name: str, assignments: Sequence[str]) -> EnvironmentSettings:
    """The configuration of a kind, or of a class by its import path; else ValueError."""
    adapter: TypeAdapter[EnvironmentConfig] = TypeAdapter(EnvironmentConfig)
    kinds = list(adapter.json_schema()["discriminator"]["mapping"])
    if ":" not in name and name not in kinds:
        near = get_close_matches(name, kinds, n=1)
        cure = f"did you mean {near[0]}?" if near else "or write 'package.module:Name'"
        raise ValueError(f"the name must be one of {', '.join(kinds)}, got {name!r}; {cure}")
    values: dict[str, Any] = (  # Any: parsed JSON
        {"kind": "custom", "path": name} if ":" in name else {"kind": name}
    )
    assign(values, assignments)
    return adapter.validate_python(values)


class PlayTimeout(BaseException):
    """Raised when the time is up; no Exception, so that no environment catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError if the block takes longer, even if the environment's code never returns."""

    def give_up(*_: object) -> None:
        raise PlayTimeout

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except PlayTimeout:
        raise TimeoutError(
            f"the check must end within {seconds:g} s, it did not: reset or step may never return;"
            " mend that, or raise --timeout"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def show(report: ConformanceReport, name: str) -> None:
    """Print the rules, the reasons of broken rules, the times and one episode."""
    console = Console(highlight=False)
    rules = Table(box=None, title=escape(name), title_justify="left", show_header=False)
    for check in report.checks:
        rules.add_row(check.rule, f"[{COLOURS[check.verdict]}]{check.verdict}[/]")
    console.print(rules, "")
    for check in report.checks:
        if check.why:
            console.print(f"[red]broken[/]: {escape(printable(check.why))}", "", sep="\n")
    console.print(
        f"{report.num_episodes} episodes, {report.num_steps} steps",
        f"reset {times_text(report.reset_s)}",
        f"step  {times_text(report.step_s)}",
        sep="\n",
    )
    if report.transcript:
        episode = Table("observation", "action", box=None, title="an episode", title_justify="left")
        for observation, action in report.transcript:
            episode.add_row(escape(printable(observation)), escape(printable(action)))
        console.print("", episode)


def times_text(seconds: tuple[float, float]) -> str:
    return f"p50 {1e3 * seconds[0]:.3g} ms, p99 {1e3 * seconds[1]:.3g} ms"
