"""Where the time of a step goes in which no device has work.

    python -m research.benchmarks.orchestration --engine simulated --steps 8 --json out.json

    a whole run, timed calls in all its processes ─▶ its commits and spans ─▶ two tables

The first table divides the time from the beginning of one step to that of the next: moments in
which an engine, a reward or a learner works or weights are published, and the gaps between them.
The second has the calls within these gaps: how often in a step, how long one takes, and when after
the beginning of its step it begins; calls of one process nest in each other, and those of several
go on side by side. Medians over all steps but the first, whose calls open connections.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from artifacts.commit import read_commits
from artifacts.journal import Journal
from artifacts.records import Span
from artifacts.reports.timeline import attributed_s, clipped, union
from artifacts.store import Store
from flows.commands.local_stack import prefect_server
from tasks.cluster.ports import free_port
from tasks.cluster.process_environment import first_environment, python_path
from tasks.metrics.report import STAGES

RUN = "run"
SETTINGS = (
    "cluster.dashboard_port=0",
    "cluster.device_kind=cpu",
    "evaluation.num_prompts=4",
    "evaluation.responses_per_prompt=1",
    "keep.checkpoint_every_steps=1000",
    f"run_name={json.dumps(RUN)}",
)
ENGINES = {
    "vllm": (),
    "simulated": (
        "engine.kind=simulated",
        "engine.responses=chain_sums",
        "engine.max_model_len=256",
    ),
}
CALLS = {  # label -> module and name of what is called; names that a version lacks are left out
    "flow: create the step's flow run": "prefect.flow_engine:AsyncFlowRunEngine.create_flow_run",
    "flow: the same, in fewer requests": "flows.task_runner:SubflowRunEngine.create_flow_run",
    "flow: a state of a flow run": "prefect.flow_engine:AsyncFlowRunEngine.set_state",
    "flow: a request to Prefect": "prefect.client.base:PrefectHttpxAsyncClient.send",
    "flow: submit a task to Dask": "flows.task_runner:ClusterTaskRunner.submit",
    "flow: update": "tasks.train:update_all",
    "flow: publish": "tasks.train:publish",
    "flow: commit": "flows.step_controller:StepController.commit",
    "flow: make the commit": "flows.step_controller:StepCommitter.record",
    "flow: write the commit": "flows.step_controller:commit_step",
    "flow: begin the reports": "flows.reporter:RunReporter.report_step",
    "flow: MLflow": "artifacts.reports.tracking:RunTracker.log_step",
    "flow: figures": "flows.reporter:write_figures",
    "flow: a Prefect artifact": "flows.reporter:publish_artifact",
    "flow: plan the round": "flows.step_controller:next_round",
    "flow: open the round": "flows.step_controller:StepController.open",
    "control: Prefect's settings": "prefect.context:SettingsContext.__init__",
    "control: begin a task run": "prefect.task_engine:SyncTaskRunEngine.begin_run",
    "control: connect to an actor": "tasks.cluster.actors:Remote.connect",
    "control: rollout": "tasks.rollout:roll_out",
    "control: prompts": "tasks.rollout:prompts_of",
    "control: inputs of the round": "tasks.rollout:round_inputs",
    "control: the round": "tasks.rollout:drive_round",
    "control: engines' readings": "tasks.rollout:_reading",
    "control: tables (Parquet)": "tasks.rollout:_record",
    "control: reward": "tasks.reward:score_round",
    "control: gradients": "tasks.train:accumulate",
    "learner: accumulate": "tasks.learner.trainer:LearnerRank.accumulate",
    "any: write a record": "artifacts.store:Store.write",
}


def main() -> None:
    options = _parser().parse_args()
    if options.calls is not None:
        time_calls(options.calls)
        sys.exit(_train([*_settings(options), "--set", f"keep.artifact_root={options.root}"]))
    with tempfile.TemporaryDirectory(prefix="rollflow-orchestration-", dir=options.scratch) as root:
        steps, calls = measure(options, Path(root))
    for name, seconds in steps.items():
        print(f"{name:44}{seconds:8.3f} s")
    print()
    for label, (each, num, first_s) in calls.items():
        print(f"{label:44}{num:6.1f} of {each:7.4f} s, from {first_s:+.3f} s")
    if options.json:
        options.json.write_text(json.dumps({"steps": steps, "calls": calls}, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="simulated")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], help="as of rollflow train")
    parser.add_argument("--scratch", type=Path, help="folder for the run's records")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--calls", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    return parser


def _settings(options: argparse.Namespace) -> list[str]:
    given = (*SETTINGS, *ENGINES[options.engine], f"num_steps={options.steps}", *options.set)
    return ["--preset", options.preset, *(word for one in given for word in ("--set", one))]


def _train(words: list[str]) -> int:
    from flows.commands.train import main as train

    return train(words)


def measure(
    options: argparse.Namespace, root: Path
) -> tuple[dict[str, float], dict[str, tuple[float, float, float]]]:
    """Play a run; returns the median seconds of a step by what they went to, and of every call the
    seconds of one, their number in a step, and when in the step the first began."""
    calls = root / "calls.jsonl"
    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
    with prefect_server(root, free_port()) as environment:
        subprocess.run(
            [*command, "--calls", str(calls), "--root", str(root)],
            env=os.environ | environment | python_path() | first_environment(),
            check=True,
            stdout=sys.stderr,
        )
    store = Store.open(str(root)).child(RUN)
    commits, journal = read_commits(store)[: options.steps], Journal(store)
    begins = [commit.timings["started_s"] for commit in commits]
    parts: dict[str, list[float]] = defaultdict(list)
    for commit, next_s in zip(commits[1:-1], begins[2:], strict=True):
        window = commit.timings["started_s"], commit.timings["finished_s"]
        for name, seconds in divided(journal.read_spans(commit.step), *window, next_s).items():
            parts[name].append(seconds)
    return {name: statistics.median(found) for name, found in parts.items()}, calls_by_step(
        calls, begins[1:]
    )


def divided(spans: list[Span], start_s: float, end_s: float, next_s: float) -> dict[str, float]:
    """Divide a step, from its beginning to that of the next, into stages and gaps, in seconds."""
    stages, orchestration_s = attributed_s(spans, STAGES[:-1], start_s, end_s)
    work = union(clipped(spans, start_s, end_s))
    last_rollout_s = max(span.end_s for span in spans if span.kind == "rollout")
    gaps = [(start_s, work[0][0])]
    gaps += [(before[1], after[0]) for before, after in pairwise(work)]
    parts = {"gap: step begins to first request": work[0][0] - start_s}
    of_round = sum(end - start for start, end in gaps[1:] if end <= last_rollout_s)
    after = [end - start for start, end in gaps[1:] if end > last_rollout_s]
    return {
        **{f"stage: {name}": seconds for name, seconds in stages.items()},
        **parts,
        "gap: within the round": of_round,
        "gap: last answer to training": after[0] if after else 0.0,
        "gap: between training, update, publication": sum(after[1:]),
        "gap: published to the step's end": end_s - work[-1][1],
        "orchestration within the step": orchestration_s,
        "gap: step's end to the next step": next_s - end_s,
        "orchestration, both": orchestration_s + next_s - end_s,
        "from step to step": next_s - start_s,
    }


def calls_by_step(calls: Path, begins: list[float]) -> dict[str, tuple[float, float, float]]:
    """Median seconds, number a step and first beginning after the step's of every call. begins:
    Unix seconds at which the measured steps begin; calls before and after them do not count."""
    found: dict[str, list[list[tuple[float, float]]]] = defaultdict(lambda: [[] for _ in begins])
    for line in calls.read_text().splitlines():
        label, start_s, took_s = json.loads(line)
        step = sum(begin <= start_s for begin in begins) - 1
        if 0 <= step < len(begins) - 1:
            found[label][step].append((start_s - begins[step], took_s))
    table = {}
    for label in CALLS:
        steps = found[label][:-1]
        each = [took_s for step in steps for _, took_s in step]
        if each:
            first = statistics.median(min(step)[0] for step in steps if step)
            table[label] = (statistics.median(each), len(each) / len(steps), first)
    return table


def time_calls(calls: Path) -> None:
    """From now on append the time of each of CALLS to a file, in this process and in its forks."""

    @contextmanager
    def timed(label: str) -> Iterator[None]:
        start_s, began_s = time.time(), time.perf_counter()
        try:
            yield
        finally:
            line = json.dumps([label, start_s, time.perf_counter() - began_s])
            with calls.open("ab", buffering=0) as out:  # one write, which no other splits
                out.write(f"{line}\n".encode())

    for label, place in CALLS.items():
        module, _, path = place.partition(":")
        *outer, name = path.split(".")
        owner: Any = import_module(module)  # Any: a module or a class
        for part in outer:
            owner = getattr(owner, part, None)
        call = inspect.getattr_static(owner, name, None)
        if isinstance(call, classmethod):
            setattr(owner, name, classmethod(_timed(call.__func__, partial(timed, label))))
        elif call is not None:
            setattr(owner, name, _timed(call, partial(timed, label)))


def _timed(
    call: Callable[..., Any],
    timed: Callable[[], AbstractContextManager[None]],  # Any: whatever it takes and returns
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with timed():
                return await call(*args, **kwargs)

        return awaited

    @wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        with timed():
            return call(*args, **kwargs)

    return called


if __name__ == "__main__":
    main()
