"""Names of all files under `<artifact_root>/<run_id>/`, relative to the run's store.

    manifest.json               identity of the run: config, versions, links
    steps/00007.json            the commit of a step
    plans/00007.json            the round of a step that has begun: a resume goes on with it
    rounds/00007.json           the report of a closed round: all that is trained is on disk
    splits/00007.json           which rank trained which groups: a replay must split alike
    moments/00007.json          mean and deviation of a step's rewards, if later steps need them
    journal/step=00007/         parts appended while the step runs; gone once it is finalised
    turns/7001/                 turns of episodes while they are played, by attempt at the round
    tokens/7001/                tokens of responses while they are generated, by attempt
    responses/step=00007/       one finalised Parquet file; likewise groups/ and spans/
    judgements/step=00007/      replies of judges, a part per attempt: no question is asked twice
    pictures/                   the pictures that prompts show, each once, named by its content
    evaluation/                 responses, rounds and journal of evaluations, by the step before
    checkpoints/00007/          learner state, complete or absent
    run.pem                     certificate and key with which a run authenticates elastic workers
    log/                        logs of the run's processes: flow.log, and one per worker
    status.json                 state of the run, rewritten while it goes on; how it ended
    report/                     index.html, plots, summary, elastic workers, and the run in figures
    trackers/                   files of trackers beside MLflow, and which steps each has
    model/                      the trained model as a Hugging Face directory, once the run is over
    adapter/                    its adapter in PEFT's format, if that was published

The `step=` directories are Hive partitions: every reader gets the column `step` from the path, so
the files lack that column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

TableName = Literal["responses", "groups", "spans"]

MANIFEST = "manifest.json"
STATUS = "status.json"
CERTIFICATE = "run.pem"
STEPS = "steps"
JOURNAL = "journal"
TURNS = "turns"
TOKENS = "tokens"
PLANS = "plans"
ROUNDS = "rounds"
SPLITS = "splits"
MOMENTS = "moments"
JUDGEMENTS = "judgements"
EVALUATION = "evaluation"
PICTURES = "pictures"
CHECKPOINTS = "checkpoints"
REPORT = "report"
LOGS = "log"
PAGE = "index.html"  # in the report: all of it on one page
DASK_PAGE = "dask.html"  # in the report of a local root: what the workers did
ENVIRONMENT_PROCESSES = "hosts.json"  # in the report: last reported states of these processes
DENIED_REQUESTS = "knocks.json"  # in the report: unauthorised requests for weights
ELASTIC_WORKERS = "members.json"  # in the report: last reported states of elastic workers
FIGURES = "figures.json"  # in the report: the figures of a run in lists of runs
MODEL = "model"
ADAPTER = "adapter"
TRACKERS = "trackers"
ASIDE_PREFIX = ".tmp-"  # pyarrow and DuckDB globs skip such names


def step_name(step: int) -> str:
    """A step's number for file names, padded with zeros, so that names sort in step order."""
    if step < 0:
        raise ValueError(
            f"step must be >= 0, got {step}; steps count from 1, 0 is the model a run starts from"
        )
    return f"{step:05d}"


def step_file(folder: str, step: int) -> str:
    """The file of a step in STEPS, PLANS, ROUNDS, SPLITS or MOMENTS."""
    return f"{folder}/{step_name(step)}.json"


def partition(folder: str, step: int) -> str:
    """The folder of a step in a table, JOURNAL or JUDGEMENTS: a Hive partition."""
    return f"{folder}/step={step_name(step)}"


def part_file(folder: str, step: int, part: int) -> str:
    """The file of one of several parts that were written while the step ran."""
    return f"{partition(folder, step)}/part-{part:06d}.parquet"


def table_file(table: TableName, step: int) -> str:
    return f"{partition(table, step)}/part-0.parquet"


def steps_of(names: Iterable[str]) -> list[int]:
    """The steps in names of step files and partitions, ascending; other names are passed over."""
    found = (re.fullmatch(r"step=([0-9]+)|([0-9]+)\.json", name) for name in names)
    return sorted({int(match[1] or match[2]) for match in found if match})


def checkpoint_dir(step: int) -> str:
    return f"{CHECKPOINTS}/{step_name(step)}"


def report_file(name: str) -> str:
    return f"{REPORT}/{name}"
