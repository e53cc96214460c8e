"""The command line of an experiment that kills parts of runs: its runs, one after the other, until
enough is killed, and what came of them."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from flows.commands.local_stack import prefect_server, stop_on_signals
from research.kills.descendants import adopt_orphans
from research.kills.injected_run import InjectedRun, RunOrder
from research.kills.injection_figures import figures_of, tell, wrong_in
from research.kills.injections import LONGEST_WAIT_S, Victim, drawn
from research.kills.injector import Injector, Told
from tasks.cluster.ports import free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class KillExperiment:
    """What is run, and what of it is struck."""

    name: str  # its module
    about: str  # in a line
    preset: str  # configuration of its runs
    settings: tuple[str, ...]  # FIELD=VALUE, what differs from the preset
    victims: Mapping[str, Victim]  # by name
    # processes that this one has started beside the run
    others: Callable[[], Collection[psutil.Process]] = tuple
    longest_wait_s: float = LONGEST_WAIT_S  # between two injections
    num_steps: int = 40  # of a run, where the command does not say


def perform(experiment: KillExperiment) -> int:
    """The exit status of the command: 0 where all is well, 1 where something is not, 2 where it
    could not be tried."""
    options = _parser(experiment).parse_args()
    stop_on_signals()
    try:
        with artifact_root(options.out) as root:
            told = _runs(experiment, options, root)
    except KeyboardInterrupt:
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures = figures_of(options.seed, told)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    tell(figures, told)
    return int(any(wrong_in(told).values()))


@contextmanager
def artifact_root(out: Path | None) -> Iterator[Path]:
    """Folder of runs: the one where they are to be kept, or one that goes with the block."""
    with ExitStack() as stack:
        root = out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root.mkdir(parents=True, exist_ok=True)
        yield root.resolve()


def _runs(experiment: KillExperiment, options: argparse.Namespace, root: Path) -> list[Told]:
    """Runs until enough is killed, or one hangs."""
    injections = drawn(options.seed, options.count, experiment.victims, experiment.longest_wait_s)
    injector = Injector(experiment.victims, injections, options.seed, options.within)
    adopt_orphans()
    told: list[Told] = []
    with prefect_server(root, free_port()) as environment:
        servers = psutil.Process().children()

        def others() -> list[psutil.Process]:
            return [*servers, *experiment.others()]

        while not injector.is_done and not any(each.hangs for each in told):
            own = (f"num_steps={options.steps}", f"seed={options.seed + len(told)}")
            order = RunOrder(
                root=root,
                name=f"seed-{options.seed}-run-{len(told) + 1}",
                preset=experiment.preset,
                settings=(*experiment.settings, *own, *options.set),
            )
            told.append(injector.play(InjectedRun(order, environment, others), options.steps))
    return told


def _parser(experiment: KillExperiment) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {experiment.name}", description=experiment.about
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    parser.add_argument(
        "--count", type=int, default=50, help="how often to strike (default: %(default)s)"
    )
    parser.add_argument(
        "--within",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="kill nothing more so long after somebody could be killed first; the run under way"
        " comes to its end",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=experiment.num_steps,
        help="steps of a run (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep the runs here; else they are thrown away"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field"
    )
    return parser
