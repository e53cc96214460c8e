"""Kills every kind of process of a run, and compares what the run trains with an undisturbed one.

    python -m research.kills.kills --seed 0 --json kills.json
    python -m research.kills.kills --seed 0 --quick --only learner --only flow

For each kind (`kill_kinds`) a small run is started as a user starts one, its process killed with
SIGKILL at a drawn moment, and the run goes on by itself or is resumed. The digests of its weights
must be those of the same run without a kill: of every step where the run comes out the same
whatever its timing (simulated engines, real learners), else of every step whose round was closed
before the kill. No committed step may be lost, every prompt must be trained once by one weight
version, exit codes and status must be right, and no process and no shared memory may stay. The
exit status is 0 where all of that holds. A seed draws the same moments for a kind whatever else is
played.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import count
from os import getpid
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs
from rich.console import Console
from rich.table import Table

from flows.commands.local_stack import prefect_server, stop_on_signals
from research.kills.descendants import adopt_orphans
from research.kills.injected_run import InjectedRun, RunOrder
from research.kills.injection_command import artifact_root
from research.kills.injector import Injector
from research.kills.kill_kinds import KINDS, SMALL, KilledJob, Kind, Scene, Victims, alone
from research.kills.timed_kill import KillOutcome, digests, judged, play
from tasks.cluster.ports import free_port

WIDTH = 130  # characters of the table


class Kills:
    """Plays kinds, each beside the undisturbed run of its job, which is played once."""

    def __init__(self, root: Path, seed: int, environment: Mapping[str, str]) -> None:
        """environment: of clients of a Prefect server, which this process has started."""
        self._root, self._seed, self._environment = root, seed, environment
        self._servers: list[psutil.Process] = psutil.Process().children()
        self._whole: dict[KilledJob, Mapping[int, str]] = {}  # digests by step
        self._numbers = count(1)

    def play(self, kind: Kind, number: int) -> KillOutcome:
        """What comes of the kind's kill in its run of this number."""
        whole = self._undisturbed(kind.job)
        draws = random.Random(f"{self._seed}/{kind.name}/{number}")
        with self._begun(kind.scene, kind.name, kind.job) as (run, table):
            told, met = play(run, table, kind, draws)
        return judged(kind, run, told, met, whole)

    def _undisturbed(self, job: KilledJob) -> Mapping[int, str]:
        """RuntimeError where even that fails."""
        if job not in self._whole:
            with self._begun(alone, "undisturbed", job) as (run, _):
                told = Injector({}, (), 0, 0.0).play(run, job.num_steps)
            if told.hangs or told.stops or told.findings.wrong:
                raise RuntimeError(f"{run.name} must end well, it said: {run.last_words()}")
            self._whole[job] = digests(run.folder)
        return self._whole[job]

    def _begun(
        self, scene: Scene, name: str, job: KilledJob
    ) -> AbstractContextManager[tuple[InjectedRun, Victims]]:
        """A run that is ready to begin. Its name is this process's own: shared memory has it."""
        order = RunOrder(
            root=self._root,
            name=f"kills-{getpid()}-{next(self._numbers)}-{name}",
            preset=job.preset,
            settings=(*SMALL, *job.settings, f"num_steps={job.num_steps}"),
        )
        return scene(order, self._environment, self._others)

    def _others(self) -> list[psutil.Process]:
        return self._servers


def main() -> int:
    options = _parser().parse_args()
    stop_on_signals()
    adopt_orphans()
    kinds = [kind for kind in KINDS if not options.only or kind.name in options.only]
    outcomes: list[KillOutcome] = []
    try:
        with artifact_root(options.out) as root, prefect_server(root, free_port()) as environment:
            kills = Kills(root, options.seed, environment)
            for kind in kinds:
                for number in range(1 if options.quick else kind.num_runs):
                    outcomes.append(kills.play(kind, number))
    except KeyboardInterrupt:
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        tell(outcomes)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    return int(not all(outcome.is_well for outcome in outcomes))


def tell(outcomes: Sequence[KillOutcome]) -> None:
    """Print a line for each kill, and what is wrong."""
    table = Table(
        "killed", "in", "then", "s to the next commit", "compared", "differ", "left over", "wrong"
    )
    for each in outcomes:
        went = "went on by itself" if len(each.exits) == 1 else f"resumed (exit codes {each.exits})"
        counts = (each.num_compared, *map(len, (each.different, each.left_over, each.wrong)))
        table.add_row(each.kind, each.moment, went, f"{each.seconds:.1f}", *map(str, counts))
    console = Console(width=WIDTH)
    console.print(table)
    for each in outcomes:
        others = (f"step {step} has other weights" for step in each.different)
        for words in (*others, *each.left_over, *each.wrong):
            console.print(f"{each.kind} ({each.moment}): {words}", markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m research.kills.kills", description=(__doc__ or "").splitlines()[0]
    )
    names = [kind.name for kind in KINDS]
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="KIND",
        help=f"one of {', '.join(names)}; may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="one kill of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the outcomes")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep the runs here; else they are thrown away"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
