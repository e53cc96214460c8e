"""A run that goes on: what is read back of an earlier attempt, and what may be given anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_factories import CONTEXT

from artifacts import layout
from artifacts.commit import RunManifest, write_manifest
from artifacts.store import Store
from artifacts.tracking import RunTracker
from flows.config import RunConfig
from flows.run import OpenRun, effective_config
from flows.train import evaluations_until
from tasks.plan import EVALUATION


def opened(root: Path, every_steps: int, *recorded: int) -> OpenRun:
    """A run whose evaluations after these steps are recorded."""
    store = Store.open(str(root)).child("run")
    for step in recorded:
        store.child(EVALUATION).write(layout.round_file(step), b"{}")
    config = RunConfig.model_validate({"preset": "tiny", "evaluation": {"every_steps": every_steps}})
    return OpenRun(config=config, context=CONTEXT, store=store, tracker=RunTracker(""), commits=(), links={})


@pytest.mark.parametrize(
    ("every_steps", "recorded", "step", "expected"),
    [
        (0, (), 0, [0]),
        (2, (0, 2, 4), 5, [0, 2, 4]),
        (2, (0, 2), 4, [0, 2, 4]),  # killed between the commit of step 4 and its evaluation
        (2, (0,), 5, [0]),  # the weights of steps 2 and 4 are gone
        (0, (0, 3), 3, [0, 3]),  # a finished run that is made longer
    ],
)
def test_a_resumed_run_shows_the_evaluations_before_it(
    tmp_path: Path, every_steps: int, recorded: tuple[int, ...], step: int, expected: list[int]
) -> None:
    assert evaluations_until(opened(tmp_path, every_steps, *recorded), step) == expected


def test_of_what_is_given_with_resume_places_count(tmp_path: Path) -> None:
    kept = RunConfig.model_validate({"preset": "tiny", "num_steps": 7, "seed": 3, "cluster": {"num_devices": 4}})
    manifest = RunManifest(
        run_id="run", created="", config=kept.model_dump(mode="json", exclude={"resume"}), packages={}, git_sha=None, mlflow_run_id=None
    )
    write_manifest(Store.open(str(tmp_path)).child("run"), manifest)
    places = {"artifact_root": str(tmp_path), "weights_dir": "/shared"}
    given = {"preset": "tiny", "resume": "run", "seed": 4, "keep": places, "cluster": {"scheduler_address": "tcp://host:8786"}}
    resumed = effective_config(RunConfig.model_validate(given))
    assert (resumed.seed, resumed.num_steps, resumed.cluster.num_devices) == (3, 7, 4)
    assert (resumed.keep.weights_dir, resumed.cluster.scheduler_address) == ("/shared", "tcp://host:8786")
