"""MLflow has what a person looks for: the data set, the columns, a description, and the model where
it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learner_factories import make_model
from mlflow.tracking import MlflowClient
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from artifacts import layout
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.reports.figures import COLUMNS, HEADLINES
from artifacts.reports.mlflow_client import VIEW_TAG, TrackedData, open_client
from artifacts.reports.tracking import GIT_TAG, NOTE_TAG, RunTracker
from artifacts.store import Store
from flows.config.run_config import RunConfig

DATA = TrackedData(
    name="chain_sum", digest="ab" * 16, source='{"kind":"x"}', num_rows=90, num_heldout=10
)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def tracker(uri: str) -> RunTracker:
    begun = RunTracker(uri)
    begun.start(
        experiment="tests", run_name="run", params={}, tags={}, data=DATA, git_sha="abc-dirty"
    )
    return begun


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A run's folder with an exported model of a few thousand parameters."""
    directory = tmp_path / "run" / layout.MODEL
    make_model(directory)
    character_tokenizer().save_pretrained(directory)
    return Store.open(str(tmp_path)).child("run")


def test_the_run_has_its_data_set_source_and_description(uri: str, tracker: RunTracker) -> None:
    tracker.describe("Held-out reward 0.1 -> 0.9")
    run = open_client(uri).get_run(tracker.run_id)
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("chain_sum", "ab" * 16)
    assert json.loads(given.dataset.profile) == {"num_rows": 90, "num_heldout": 10}
    assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "training")]
    assert run.data.tags["mlflow.source.name"] == "flows/train.py"
    assert run.data.tags[GIT_TAG] == "abc-dirty"
    assert run.data.tags[NOTE_TAG] == "Held-out reward 0.1 -> 0.9"


def test_the_list_of_runs_has_a_view_with_the_columns_that_matter(
    uri: str, tracker: RunTracker
) -> None:
    client = open_client(uri)
    experiment = client.get_experiment(client.get_run(tracker.run_id).info.experiment_id)
    view = json.loads(experiment.tags[VIEW_TAG])
    assert len(experiment.tags[VIEW_TAG]) < 5000, "a server of MLflow takes no more"
    (section,) = view["compareRunSections"]
    assert [chart["metricKey"] for chart in view["compareRunCharts"]] == list(HEADLINES)
    assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} == {section["uuid"]}
    columns = view["selectedColumns"]
    metrics = [name for name in columns if name.startswith("metrics.")]
    assert metrics == [f"metrics.`{name}`" for name in COLUMNS]
    shown = sorted(COLUMNS)  # as MLflow sorts them, the held-out rewards come first
    assert set(shown[:2]) == {"reward_before", "reward_after"}


def versions(client: MlflowClient, name: str) -> list[str]:
    return [str(found.version) for found in client.search_model_versions(f"name = '{name}'")]


@pytest.mark.filterwarnings("ignore")  # of MLflow's own imports
def test_a_registered_model_loads_back_with_the_weights_it_was_given(
    uri: str, tracker: RunTracker, store: Store
) -> None:
    assert tracker.log_model(store, "digest", "adder") == ""
    assert tracker.log_model(store, "digest", "adder") == ""  # a resumed run that was over
    client = open_client(uri)
    assert versions(client, "adder") == ["1"]
    (version,) = client.search_model_versions("name = 'adder'")
    assert version.run_id == tracker.run_id
    kept = Path(version.source.removeprefix("file://")) / "model"
    loaded = AutoModelForCausalLM.from_pretrained(kept).state_dict()
    given = AutoModelForCausalLM.from_pretrained(store.local_path(layout.MODEL)).state_dict()
    assert loaded.keys() == given.keys()
    assert all((loaded[name] == given[name]).all() for name in given)


@pytest.mark.filterwarnings("ignore")  # of MLflow's own imports
def test_new_weights_of_a_run_are_a_new_version_and_no_name_registers_none(
    uri: str, tracker: RunTracker, store: Store
) -> None:
    for digest in ("first", "second"):
        assert tracker.log_model(store, digest, "longer") == ""
    assert sorted(versions(open_client(uri), "longer")) == ["1", "2"]
    before = {found.name for found in open_client(uri).search_registered_models()}
    assert tracker.log_model(store, "third", "") == ""
    assert {found.name for found in open_client(uri).search_registered_models()} == before


def test_a_model_that_mlflow_does_not_take_holds_nothing_up(
    uri: str, tracker: RunTracker, tmp_path: Path
) -> None:
    nothing = Store.open(str(tmp_path)).child("nowhere")
    assert tracker.log_model(nothing, "digest", "")
    assert tracker.end("FINISHED")
    assert open_client(uri).get_run(tracker.run_id).info.status == "FINISHED"


def test_a_name_without_the_model_is_refused() -> None:
    with pytest.raises(ValidationError, match="registered_model needs log_model"):
        RunConfig.model_validate({"preset": "tiny", "keep": {"registered_model": "adder"}})
    keep = RunConfig.model_validate({"preset": "tiny"}).keep
    assert (keep.log_model, keep.registered_model) == (False, "")
