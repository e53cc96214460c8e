"""rollflow check KIND NAME: check a part of a run, one of your own above all, against what a run
relies on.

    a kind of Rollflow's, or the import path of a class -> random input -> one line per rule

Each suite lies beside the interface that it checks, in a file `conformance`.
"""

from __future__ import annotations

import signal
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from artifacts.config_parts import Misfits
from artifacts.conformance import RuleCheck
from artifacts.datasets.conformance import check_dataset
from artifacts.datasets.registry import SingleTask
from artifacts.printable import printable
from flows.commands.command_line import assign
from flows.commands.options import command
from flows.config.sentence import sentences
from tasks.engines.conformance import check_engine
from tasks.engines.model_files import read_tokenizer
from tasks.engines.registry import EngineConfig
from tasks.environments.conformance import ConformanceReport, check_environment
from tasks.environments.registry import EnvironmentConfig
from tasks.learner.conformance import check_advantage, check_loss
from tasks.learner.credit import CreditConfig
from tasks.learner.losses.registry import LossConfig
from tasks.rewards.conformance import check_reward
from tasks.rewards.registry import RewardConfig
from tasks.scheduling.policies.conformance import check_policy
from tasks.scheduling.policies.registry import SchedulingConfig

MAX_TIMEOUT_S = 1e6
PLACES = {  # of each part in a run's configuration
    "loss": ("learner", "loss"),
    "advantage": ("learner", "advantage"),
    "policy": ("scheduling",),
    "dataset": ("task",),
    "reward": ("rewards", "*"),
    "environment": ("environments", "*"),
    "engine": ("engine",),
}
COLOURS = {"holds": "green", "broken": "red", "unknown": "yellow"}
CHOICES: Mapping[str, Any] = {  # Any: unions of configurations
    "loss": LossConfig,
    "advantage": CreditConfig,
    "policy": SchedulingConfig,
    "dataset": SingleTask,
    "reward": RewardConfig,
    "environment": EnvironmentConfig,
    "engine": EngineConfig,
}


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow check",
        description="Check a part of your own on random input, and report each rule.",
        epilog="example: rollflow check loss examples/praise_loss.py:PraiseLoss; docs/parts.md"
        " says what each kind of part needs",
    )
    made.add_argument("part", choices=tuple(CHOICES), metavar="KIND", help=", ".join(CHOICES))
    made.add_argument(
        "name",
        help="'path/to/file.py:Name' or 'package.module:Name' of your own, or a kind of"
        " Rollflow's (ppo_clip, guess, ...)",
    )
    for option, words in {
        "--set": ("FIELD=VALUE", "set a field of its configuration, for example kwargs.size=3"),
        "--action": ("TEXT", "a valid action of an environment, in addition to invalid texts"),
        "--answer": ("TEXT", "a right answer for a reward; by default the gold itself"),
    }.items():
        several = f"{words[1]}; may be given several times"
        made.add_argument(option, action="append", default=[], metavar=words[0], help=several)
    made.add_argument("--question", default="What is 2 + 2?", help="for a reward (%(default)s)")
    made.add_argument("--gold", default="4", help="of that question (default: %(default)s)")
    made.add_argument(
        "--model", default="", metavar="DIR", help="for an engine; default: a tokenizer alone"
    )
    made.add_argument(
        "--seeds",
        type=int,
        default=8,
        help="episodes of every player of an environment (default: %(default)s)",
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
    """Check a part; exit status 1 if a rule does not hold."""
    if options.seeds < 2:
        raise ValueError(f"--seeds must be >= 2, got {options.seeds}; raise it")
    if not 0 < options.timeout <= MAX_TIMEOUT_S:
        raise ValueError(
            f"--timeout must be > 0 and at most {MAX_TIMEOUT_S:g}, got {options.timeout:g};"
            " choose such a number of seconds"
        )
    settings = settings_of(options.part, options.name, options.set)
    console = Console(highlight=False)
    with time_limit(options.timeout):
        if options.part == "environment":
            report = check_environment(settings, actions=options.action, num_seeds=options.seeds)
            show(console, report.checks, options.name)
            show_episodes(console, report)
            return 0 if report.passed else 1
        checks, line = SUITES[options.part](settings, options)
    show(console, checks, options.name)
    console.print(escape(printable(line)) if line else "", end="\n" if line else "")
    return 0 if all(check.verdict == "holds" for check in checks) else 1


Checked = tuple[tuple[RuleCheck, ...], str]  # and a line of figures, empty for none


def _check_dataset(settings: Any, options: Namespace) -> Checked:  # Any: a configuration
    return check_dataset(settings.load)


def _check_reward(settings: Any, options: Namespace) -> Checked:  # Any: a configuration
    with closing(settings.build_reward()) as reward:
        return check_reward(
            reward, question=options.question, gold=options.gold, right=options.answer
        )


def _check_engine(settings: Any, options: Namespace) -> Checked:  # Any: a configuration
    from artifacts.models.character_tokenizer import character_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        model = Path(options.model or folder).expanduser()
        if not options.model:
            character_tokenizer().save_pretrained(folder)
        weights = model / "model.safetensors"
        engine = settings.build_engine(str(model), "engine-0", (), 0)
        vocabulary = len(read_tokenizer(str(model)))
        path = str(weights) if weights.is_file() else ""
        return check_engine(engine, weights_path=path, vocabulary=vocabulary), ""


SUITES: Mapping[str, Callable[[Any, Namespace], Checked]] = {  # Any: configurations
    "loss": lambda settings, _: (check_loss(settings), ""),
    "advantage": lambda settings, _: (check_advantage(settings), ""),
    "policy": lambda settings, _: (check_policy(settings), ""),
    "dataset": _check_dataset,
    "reward": _check_reward,
    "engine": _check_engine,
}


def settings_of(part: str, name: str, assignments: Sequence[str]) -> Any:  # Any: a configuration
    """The configuration of a kind, or of a class by its import path; else ValueError."""
    adapter: TypeAdapter[Any] = TypeAdapter(CHOICES[part])
    kinds = list(adapter.json_schema()["discriminator"]["mapping"])
    if ":" not in name and name not in kinds:
        near = get_close_matches(name, kinds, n=1)
        cure = f"did you mean {near[0]}?" if near else "or write 'package.module:Name'"
        raise ValueError(f"the name must be one of {', '.join(kinds)}, got {name!r}; {cure}")
    if name == "custom":
        raise ValueError(
            f"a part of your own must be named by its import path, got 'custom'; write 'rollflow"
            f" check {part} path/to/file.py:Name'"
        )
    values: dict[str, Any] = (  # Any: parsed JSON
        {"kind": "custom", "path": name} if ":" in name else {"kind": name}
    )
    if faults := assign(values, assignments):
        raise ValueError("; ".join(faults))
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        raise Misfits(_of_part(part, error)) from None


def _of_part(part: str, error: ValidationError) -> list[str]:
    """What is wrong with a part's settings, with its own fields, as --set of this command has
    them."""
    place = PLACES[part]
    faults = [
        InitErrorDetails(
            type=PydanticCustomError(fault["type"], fault["msg"]),
            loc=(*place, *fault["loc"]),
            input=fault["input"],
        )
        for fault in error.errors()
    ]
    placed = ValidationError.from_exception_data(error.title, faults)
    return [told.replace(f"{'.'.join(place)}.", "") for told in sentences(placed)]


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
            f"the check must end within {seconds:g} s, it did not: a method may never return (of"
            " an environment reset or step); mend that, or raise --timeout"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def show(console: Console, checks: Sequence[RuleCheck], name: str) -> None:
    """Print the rules, and the reasons of broken ones."""
    rules = Table(box=None, title=escape(name), title_justify="left", show_header=False)
    for check in checks:
        rules.add_row(check.rule, f"[{COLOURS[check.verdict]}]{check.verdict}[/]")
    console.print(rules, "")
    for check in checks:
        if check.why:
            console.print(f"[red]broken[/]: {escape(printable(check.why))}", "", sep="\n")


def show_episodes(console: Console, report: ConformanceReport) -> None:
    """Print the times of an environment, and one episode."""
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
