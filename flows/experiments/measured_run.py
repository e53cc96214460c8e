"""What a finished run says for the tables, read from its artifacts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from artifacts.commit import StepCommit, read_commits, read_manifest, seconds_added
from artifacts.journal import Journal
from artifacts.layout import MANIFEST, table_file
from artifacts.records import Span
from artifacts.reports.timeline import device_times
from artifacts.store import Store
from flows.experiments.ablation_figures import MeasuredRun
from flows.experiments.ablation_variants import FEWEST_ASKED
from tasks.plan import EVALUATION

HOST = "host"  # what coordinators work on: no device


def measured(out: Path, variants: Sequence[str]) -> list[MeasuredRun]:
    """What DIR has of these variants, unfinished runs left out."""
    return [
        run
        for name in variants
        for folder in sorted(out.glob(f"{name}-r*/"))
        if (run := measured_run(folder, name)) is not None
    ]


def measured_run(folder: Path, variant: str) -> MeasuredRun | None:
    """What this run says; None if it is not finished."""
    store = Store.open(str(folder))
    if not store.exists(MANIFEST):
        return None
    committed, config = read_commits(store), read_manifest(store).config
    num_steps = int(config["num_steps"])
    if len(committed) < num_steps:
        return None
    steps = tuple(committed[:num_steps])
    is_evaluated = config["evaluation"]["num_prompts"] > FEWEST_ASKED
    heldout, questions = _heldout(store, num_steps) if is_evaluated else ({}, {})
    spans = [span for step in steps for span in _spans(store, step.step)]
    return MeasuredRun(
        variant=variant,
        repeat=int(folder.name.removeprefix(f"{variant}-r")),
        steps=steps,
        idle_fraction=idle_fraction(steps, spans),
        heldout=heldout,
        questions=questions,
    )


def idle_fraction(steps: Sequence[StepCommit], spans: Sequence[Span]) -> float:
    """Share of the devices' seconds in steps in which they neither generated nor trained."""
    devices = sorted({span.device for span in spans} - {HOST})
    if not devices:
        return 0.0
    seconds = seconds_added(steps)
    windows = (
        (step.timings["finished_s"] - added_s, step.timings["finished_s"])
        for step, added_s in zip(steps, seconds, strict=True)
    )
    times = [time for window in windows for time in device_times(spans, devices, *window)]
    return 1 - sum(sum(time.work_s.values()) for time in times) / (len(devices) * sum(seconds))


def _spans(store: Store, step: int) -> list[Span]:
    name = table_file("spans", step)
    return Journal(store).read_spans(step) if store.exists(name) else []


def _heldout(store: Store, step: int) -> tuple[dict[str, float], dict[str, str]]:
    """Mean reward of each held-out prompt after a step, and what it asks; without those that no
    response has a verdict on."""
    rewards: dict[str, list[float]] = defaultdict(list)
    questions: dict[str, str] = {}
    for row in Journal(store.child(EVALUATION)).read(step):
        score = row.response.score
        if score is not None and score.reward is not None:
            rewards[row.prompt.prompt_id].append(score.reward)
            questions[row.prompt.prompt_id] = row.prompt.text
    return {prompt_id: mean(values) for prompt_id, values in rewards.items()}, questions
