"""The deployments: each names a flow that can be imported and a configuration that is valid."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow

from flows.config.paper_presets import JOBS
from flows.config.presets import PRESETS
from flows.config.run_config import PRESET_VARIABLE, RunConfig
from flows.elastic_worker import ElasticWorkerConfig

Json = dict[str, Any]  # Any: YAML values
FILE: Json = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())
LAPTOP = ("laptop", "laptop-sync", "laptop-async", "laptop-in-turn", "laptop-lora")
CPU_JOBS = ("tinycode", "rollpacker", "rollpacker-mixed", "overlap", "agent")
DEPLOYMENTS: dict[str, Json] = {one["name"]: one for one in FILE["deployments"]}
ELASTIC_WORKER = "elastic-worker"
OF_TRAINING = [name for name in DEPLOYMENTS if name != ELASTIC_WORKER]


def test_there_is_a_deployment_for_every_profile() -> None:
    tiny = ("tiny", "tiny-lora", "tiny-async", "tiny-agent", "tiny-tools")
    gpu = ("one-gpu", "eight-gpu", "one-gpu-lora", "eight-gpu-lora")
    paper = [job.__name__.replace("_", "-") for job in JOBS]
    rest = [*gpu, *paper, "elastic", ELASTIC_WORKER]
    assert list(DEPLOYMENTS) == [*LAPTOP, *CPU_JOBS, *tiny, *rest]
    assert len(FILE["deployments"]) == len(DEPLOYMENTS)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_runs_a_flow_with_its_parameters(name: str) -> None:
    entrypoint = DEPLOYMENTS[name]["entrypoint"]
    assert (entrypoint == "flows.train.train") == (name in OF_TRAINING)
    module, _, attribute = entrypoint.rpartition(".")
    flow = getattr(importlib.import_module(module), attribute)
    assert isinstance(flow, Flow)
    assert list(flow.parameters.properties) == list(DEPLOYMENTS[name]["parameters"])


def test_an_elastic_worker_is_a_flow_of_a_queue_of_its_own() -> None:
    ElasticWorkerConfig.model_validate(DEPLOYMENTS[ELASTIC_WORKER]["parameters"]["config"])
    assert DEPLOYMENTS[ELASTIC_WORKER]["work_pool"]["work_queue_name"] == "spot"


@pytest.mark.parametrize("name", OF_TRAINING)
def test_a_deployments_parameters_are_a_valid_configuration(name: str) -> None:
    config = RunConfig.model_validate(DEPLOYMENTS[name]["parameters"]["config"])
    assert config.preset in PRESETS


@pytest.mark.parametrize("name", OF_TRAINING)
def test_a_run_of_a_deployment_that_names_no_preset_has_the_deployments(name: str) -> None:
    environment = DEPLOYMENTS[name]["work_pool"]["job_variables"]["env"]
    assert environment[PRESET_VARIABLE] == DEPLOYMENTS[name]["parameters"]["config"]["preset"]
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_has_a_pool_a_description_and_a_place_to_run(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    assert deployment["work_pool"]["name"] == "rollflow"
    assert deployment["description"]
    assert deployment["pull"] == [
        {"prefect.deployments.steps.set_working_directory": {"directory": "{{ $PWD }}"}}
    ]
