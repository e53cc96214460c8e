"""Names of everything under `<artifact_root>/<run_id>/`, relative to the run's store; the one place
that spells them.

    manifest.json               what the run is: config, versions, links
    steps/00007.json            the commit of a step
    plans/00007.json            the round of a step that has begun: what a resume goes on with
    rounds/00007.json           the report of a round that is closed: what is trained is on disk
    splits/00007.json           which rank was given which groups: what a replay must follow
    moments/00007.json          mean and deviation of a step's rewards, where later ones need them
    journal/step=00007/         parts appended while the step runs; gone once it is finalised
    turns/7001/                 turns of episodes while they are played, by the attempt at the round
    tokens/7001/                tokens of responses while they are generated, likewise
    responses/step=00007/       one finalised Parquet file; likewise groups/ and spans/
    judgements/step=00007/      what judges said, a part per attempt: no question is asked twice
    evaluation/                 responses, rounds and journal of evaluations, by the step before
    checkpoints/00007/          learner state, complete or absent
    run.pem                     lets elastic workers in, where the run takes any: certificate and
    key
    log/                        what its processes wrote: flow.log, and one per worker
    status.json                 whether the run goes on, renewed while it does; how it ended
    report/                     index.html, plots, summary, elastic workers, and the run in figures
    model/                      the trained model as a Hugging Face directory, once the run is over

The `step=` directories are Hive partitions: every reader gets `step` as a column from the path, so
the files do not repeat it.
"""

from __future__ import annotations

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
CHECKPOINTS = "checkpoints"
REPORT = "report"
LOGS = "log"
PAGE = "index.html"  # in the report: all of it on one page
DASK_PAGE = "dask.html"  # in the report of a local root: what the workers did
HOSTS = "hosts.json"  # in the report: the states of environment hosts when they were last told
KNOCKS = "knocks.json"  # in the report: who asked for weights without a right
MEMBERS = "members.json"  # in the report: engines that the run did not start, as last told
FIGURES = "figures.json"  # in the report: what a list of runs tells of each
MODEL = "model"
ASIDE_PREFIX = ".tmp-"  # pyarrow and DuckDB globs skip such names


def step_name(step: int) -> str:
    """Fixed width, so that names sort as numbers do."""
    if step < 0:
        raise ValueError(
            f"step must be >= 0, got {step}; steps count from 1, 0 is the model a run starts from"
        )
    return f"{step:05d}"


def commit_file(step: int) -> str:
    return f"{STEPS}/{step_name(step)}.json"


def plan_file(step: int) -> str:
    """The round of a step, written when the step begins."""
    return f"{PLANS}/{step_name(step)}.json"


def round_file(step: int) -> str:
    """The report of a closed round: from here on the step replays its groups instead of
    generating."""
    return f"{ROUNDS}/{step_name(step)}.json"


def split_file(step: int) -> str:
    """How a step's groups were dealt to the learner ranks."""
    return f"{SPLITS}/{step_name(step)}.json"


def moments_file(step: int) -> str:
    """Mean and deviation of a step's rewards."""
    return f"{MOMENTS}/{step_name(step)}.json"


def step_of_commit(name: str) -> int | None:
    """The step of a file name in steps/, or None if it is not a commit."""
    stem, _, suffix = name.rpartition(".")
    return int(stem) if suffix == "json" and stem.isdigit() else None


def step_of_partition(name: str) -> int | None:
    """The step of a folder name in responses/ or journal/, or None if it is none of a step."""
    key, _, step = name.partition("=")
    return int(step) if key == "step" and step.isdigit() else None


def journal_dir(step: int) -> str:
    return f"{JOURNAL}/step={step_name(step)}"


def journal_part(step: int, part: int) -> str:
    return f"{journal_dir(step)}/part-{part:06d}.parquet"


def judgements_dir(step: int) -> str:
    return f"{JUDGEMENTS}/step={step_name(step)}"


def judgement_part(step: int, part: int) -> str:
    return f"{judgements_dir(step)}/part-{part:06d}.parquet"


def table_file(table: TableName, step: int) -> str:
    return f"{table}/step={step_name(step)}/part-0.parquet"


def checkpoint_dir(step: int) -> str:
    return f"{CHECKPOINTS}/{step_name(step)}"


def report_file(name: str) -> str:
    return f"{REPORT}/{name}"
