"""A run whose elastic workers come and go by a script, beside the same run without elastic workers.

    python -m research.ablations.elastic_course --preset elastic --steps 20 --json course.json

In the middle of a step an elastic worker joins; it drains; it comes back and is killed with
SIGKILL; for two whole steps nobody is there; another joins, loses its link without a word and comes
back as another generation. Each goes while it generates, which its token reports say. Elastic
workers are on hosts of their own (network namespaces) and pull their weights. Records must say of
both runs that every prompt was trained once, with all its responses, by one weight version; rewards
stand side by side. The exit status is 0 where all of the script was played and nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no stubs

from artifacts.attempt_log import read_tokens
from artifacts.layout import TOKENS
from artifacts.reports.elastic_workers import read_elastic_workers
from artifacts.store import Store
from flows.commands.local_stack import prefect_server, stop_on_signals
from research.ablations.course_figures import FinishedCourse, figures_of, tell, what_is_wrong
from research.kills.descendants import adopt_orphans
from research.kills.elastic_injections import present_workers
from research.kills.elastic_pool import ElasticPool, WorkerPlace, elastic_pool
from research.kills.injected_run import InjectedRun, RunOrder
from research.kills.injection_command import add_run_options, artifact_root
from tasks.cluster.ports import free_port

PLACES = 2
POLL_S = 0.2
CUT_S = 10.0  # longer than a lease, shorter than an elastic worker waits for its scheduler
EMPTY_STEPS = 2  # whole ones, without an elastic worker
SETTINGS = ("cluster.dashboard_port=0",)
STATIC = ("elastic.enabled=false", "seeding.enabled=false", "cluster.scheduler_port=0")

Holds = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that came about."""

    what: str
    step: int  # that the run was at
    stage: str  # of that step
    at_s: float  # seconds since the flow was started


class ScriptedCourse:
    """The script, played on a run that is going on."""

    def __init__(self, run: InjectedRun, park: ElasticPool) -> None:
        self.acts: list[Act] = []
        self._run, self._park = run, park
        self._began_s = time.monotonic()
        self._script = self._played(park, *park.places)
        self._waits_for: tuple[str, Holds] | None = next(self._script)

    @property
    def is_over(self) -> bool:
        """Whether all of it came about."""
        return self._waits_for is None

    def look(self) -> None:
        """Go on with the script if what it waits for has come about."""
        self._park.renew()
        if self._waits_for is not None and self._waits_for[1]():
            at_s = time.monotonic() - self._began_s
            act = Act(
                what=self._waits_for[0],
                step=self._run.committed + 1,
                stage=self._run.stage,
                at_s=round(at_s, 1),
            )
            self.acts.append(act)
            self._waits_for = next(self._script, None)

    def _played(
        self, park: ElasticPool, first: WorkerPlace, second: WorkerPlace
    ) -> Iterator[tuple[str, Holds]]:
        yield "a round is open", self._generates
        park.fill(first)
        yield "an elastic worker joins", self._is_present(first)
        yield "a step was played with it", self._after(1)
        yield "it generates", self._has_told(first)
        park.drain(first)
        yield "it has drained", self._has_left(first)
        park.fill(first)
        yield "it is back", self._is_present(first)
        yield "it generates again", self._has_told(first)
        park.kill(first)
        yield "it is killed", self._is_absent(first)
        yield "nobody was there for two whole steps", self._after(EMPTY_STEPS + 1)
        park.fill(second)
        yield "another joins", self._is_present(second)
        yield "the other generates", self._has_told(second)
        park.cut(second, for_s=CUT_S)
        yield "its link is lost, and that is noticed", self._is_absent(second)
        yield "it is back as another generation", self._is_present(second)
        yield "a step was played with that", self._after(1)

    def _generates(self) -> bool:
        return self._run.stage == "rollout"

    def _is_present(self, place: WorkerPlace) -> Holds:
        return lambda: place.name in self._present()

    def _has_told(self, place: WorkerPlace) -> Holds:
        """Whether it has told tokens since now of a response that goes on there."""
        since_s, store = time.time(), Store.open(str(self._run.folder))

        def holds() -> bool:
            told = read_tokens(self._run.folder / TOKENS, is_meant=lambda attempt: True)
            its = {
                member.name for member in read_elastic_workers(store) if member.worker == place.name
            }
            return any(
                response.engine in its and response.finished_s > since_s
                for response in told.values()
            )

        return holds

    def _has_left(self, place: WorkerPlace) -> Holds:
        return lambda: place.is_empty and place.name not in self._present()

    def _is_absent(self, place: WorkerPlace) -> Holds:
        return lambda: place.name not in self._present()

    def _present(self) -> set[str]:
        return present_workers(Store.open(str(self._run.folder)))

    def _after(self, num_steps: int) -> Holds:
        until = self._run.committed + num_steps
        return lambda: self._run.committed >= until


def play(run: InjectedRun, park: ElasticPool | None) -> FinishedCourse:
    """The run to its end, with the script where there are places for elastic workers. RuntimeError
    where it ends by itself."""
    run.begin()
    course = None if park is None else ScriptedCourse(run, park)
    while (code := run.flow.poll()) is None:
        time.sleep(POLL_S)
        if course is not None:
            course.look()
    if code != 0:
        raise RuntimeError(f"{run.name} must end with 0, got {code}: {run.last_words()}")
    return FinishedCourse(
        folder=run.folder,
        acts=() if course is None else tuple(asdict(act) for act in course.acts),
        is_whole=course is None or course.is_over,
    )


def main() -> int:
    options = _parser().parse_args()
    stop_on_signals()
    adopt_orphans()
    try:
        with artifact_root(options.out) as root:
            moved, static = _both(options, root)
            figures = figures_of(moved, static)
    except KeyboardInterrupt:
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    tell(figures)
    return int(bool(what_is_wrong(figures)))


def _both(options: argparse.Namespace, root: Path) -> tuple[FinishedCourse, FinishedCourse]:
    """With elastic workers, and without."""
    with (
        prefect_server(root, free_port()) as environment,
        elastic_pool(PLACES, rate_mbit=options.rate_mbit) as park,
    ):
        servers = psutil.Process().children()

        def others() -> Collection[psutil.Process]:
            return [*servers, *park.processes()]

        def made(name: str, *settings: str) -> InjectedRun:
            order = RunOrder(
                root=root,
                name=name,
                preset=options.preset,
                settings=(*SETTINGS, *settings, f"num_steps={options.steps}", *options.set),
            )
            return InjectedRun(order, environment, others)

        if not park.has_links:
            raise RuntimeError("the script cuts a link, and this machine makes no hosts")
        moved = play(made("with-elastic-workers", *park.settings), park)
        park.close()
        return moved, play(made("static", *STATIC), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m research.ablations.elastic_course",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument(
        "--preset", default="elastic", help="configuration of both runs (default: %(default)s)"
    )
    parser.add_argument(
        "--rate-mbit", type=float, metavar="MBIT", help="a second, of each link (default: any)"
    )
    add_run_options(parser, num_steps=20)
    return parser


if __name__ == "__main__":
    sys.exit(main())
