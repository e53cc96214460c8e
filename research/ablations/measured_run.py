"""What a finished run says for the tables, read from its artifacts."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from artifacts.commit import StepCommit, read_commits, read_manifest, seconds_added
from artifacts.journal import Journal
from artifacts.layout import MANIFEST, table_file
from artifacts.records import Span
from artifacts.reports.timeline import device_times
from artifacts.store import Store
from flows.config.run_config import RunConfig
from flows.config.settings_file import kept_config
from research.ablations.ablation_figures import MeasuredRun
from research.ablations.ablation_variants import FEWEST_ASKED
from research.ablations.ideal_steps import Ideal, ideal_of
from tasks.run.run_context import EVALUATION
from tasks.simulation.recorded import RecordedRun, read_run

logger = logging.getLogger(__name__)

HOST = "host"  # what coordinators work on: no device


def measured(out: Path, variants: Sequence[str], recorded: str = "") -> list[MeasuredRun]:
    """What DIR has of these variants, unfinished runs left out. recorded: the variant whose records
    tell what the others of its repeat could be at best."""
    runs = [
        run
        for name in variants
        for folder in _folders(out, name)
        if (run := measured_run(folder, name)) is not None
    ]
    of_repeat = {run.repeat: out / f"{recorded}-r{run.repeat}" for run in runs if recorded}
    known = {
        repeat: read_run(Store.open(str(folder)))
        for repeat, folder in of_repeat.items()
        if finished_config(Store.open(str(folder))) is not None
    }
    return [replace(run, ideal=_ideal(out, run, known.get(run.repeat))) for run in runs]


def _folders(out: Path, variant: str) -> list[Path]:
    """Those of its repeats; a copy that somebody named in some other way is none."""
    own = re.compile(rf"{re.escape(variant)}-r\d+")
    return sorted(folder for folder in out.glob("*/") if own.fullmatch(folder.name))


def _ideal(out: Path, run: MeasuredRun, recorded: RecordedRun | None) -> Ideal | None:
    """None also where the records tell no pace: what was measured is told all the same."""
    config = finished_config(Store.open(str(out / f"{run.variant}-r{run.repeat}")))
    if recorded is None or config is None:
        return None
    try:
        return ideal_of(recorded, config)
    except ValueError as error:
        logger.warning("%s-r%d at best cannot be told: %s", run.variant, run.repeat, error)
        return None


def measured_run(folder: Path, variant: str) -> MeasuredRun | None:
    """What this run says; None if it is not finished."""
    store = Store.open(str(folder))
    config = finished_config(store)
    if config is None:
        return None
    num_steps = config.num_steps
    steps = tuple(read_commits(store)[:num_steps])
    is_evaluated = config.evaluation.num_prompts > FEWEST_ASKED
    heldout, questions = _heldout(store, num_steps) if is_evaluated else ({}, {})
    spans = [span for step in steps for span in _spans(store, step.step)]
    return MeasuredRun(
        variant=variant,
        repeat=int(folder.name.removeprefix(f"{variant}-r")),
        steps=steps,
        idle_fraction=idle_fraction(steps, spans),
        heldout=heldout,
        questions=questions,
        validation=_validation(store, config) if is_evaluated else {},
    )


def finished_config(store: Store) -> RunConfig | None:
    """What the run in this store was configured with; None if it has not all of its steps."""
    if not store.exists(MANIFEST):
        return None
    config = kept_config(read_manifest(store).config)
    return config if len(read_commits(store)) >= config.num_steps else None


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


def _validation(store: Store, config: RunConfig) -> dict[int, float]:
    """Mean held-out reward of each evaluation up to the last step, by step."""
    found = {}
    for step in range(config.num_steps + 1):
        if store.child(EVALUATION).exists(table_file("responses", step)):
            rewards, _ = _heldout(store, step)
            found[step] = mean(rewards.values())
    return found


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
