"""prefect.yaml against a server: every deployment is made without a question asked, and its form is
RunConfig with a sentence per field."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import httpx
import pytest

from flows.config.paper_presets import JOBS
from tests.flows.conftest import ROOT, Launcher

pytestmark = pytest.mark.flow

NAMES = (
    "laptop",
    "laptop-sync",
    "tinycode",
    "rollpacker",
    "rollpacker-mixed",
    "overlap",
    "tiny",
    "tiny-lora",
    "one-gpu",
    "one-gpu-lora",
    "eight-gpu",
    "eight-gpu-lora",
    "tiny-async",
    "laptop-async",
    "laptop-in-turn",
    "laptop-lora",
    "agent",
    "tiny-agent",
    "tiny-tools",
    "elastic",
    *(job.__name__.replace("_", "-") for job in JOBS),
)
ELASTIC_WORKER = "elastic-worker"
Json = dict[str, Any]  # Any: JSON values


def ask(launcher: Launcher, path: str, body: Json) -> httpx.Response:
    """POST to the Prefect server."""
    return httpx.post(launcher.environment["PREFECT_API_URL"] + path, json=body, timeout=30)


@pytest.fixture(scope="module")
def deployments(launcher: Launcher) -> dict[str, Json]:
    """All of them, made by the command in the clone, as a shell runs it."""
    pool = ask(launcher, "/work_pools/", {"name": "rollflow", "type": "process"})
    assert pool.status_code == 201, pool.text
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    environment = os.environ | launcher.environment | {"PWD": str(ROOT)}
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return {one["name"]: one for one in ask(launcher, "/deployments/filter", {}).json()}


def test_every_deployment_is_there(deployments: dict[str, Json]) -> None:
    assert set(deployments) == {*NAMES, ELASTIC_WORKER}


@pytest.mark.parametrize("name", [*NAMES, ELASTIC_WORKER])
def test_a_deployment_runs_in_the_clone_wherever_its_worker_is(
    deployments: dict[str, Json], name: str
) -> None:
    assert deployments[name]["pull_steps"] == [
        {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_form_has_a_sentence_on_every_field(deployments: dict[str, Json], name: str) -> None:
    schema = deployments[name]["parameter_openapi_schema"]
    shown = list(schema["properties"]["config"]["properties"].items())
    for _, value in shown:  # those below a part come behind it
        shown += value.get("properties", {}).items()
    assert len(shown) >= 10
    for one in schema["definitions"].values():
        shown += one.get("properties", {}).items()
    assert [field for field, value in shown if not value.get("description")] == []
    # a default in the form would be sent, and override the preset
    config = schema["properties"]["config"]["properties"]
    assert [field for field, value in config.items() if "default" in value] == []


def test_the_form_of_an_elastic_worker_asks_for_the_address(deployments: dict[str, Json]) -> None:
    assert deployments[ELASTIC_WORKER]["work_queue_name"] == "spot"
    schema = deployments[ELASTIC_WORKER]["parameter_openapi_schema"]["definitions"][
        "ElasticWorkerConfig"
    ]
    assert schema["required"] == ["address"]
    assert all(field.get("description") for field in schema["properties"].values())


@pytest.mark.parametrize(
    "config",
    [
        {"preset": "tiny", "num_steps": 10},
        {"resume": "tiny-1"},
        {"batch": {"prompts_per_step": 4}},
        {"scheduling": {"kind": "sync"}},
    ],
)
def test_a_run_may_give_any_part_of_the_configuration(
    launcher: Launcher, deployments: dict[str, Json], config: Json
) -> None:
    body = {
        "parameters": {"config": config},
        "state": {"type": "CANCELLED"},
    }  # no worker is to take it
    created = ask(launcher, f"/deployments/{deployments['tiny']['id']}/create_flow_run", body)
    assert created.status_code == 201, created.text


def test_a_field_that_does_not_exist_is_refused_before_a_run_is_made(
    launcher: Launcher, deployments: dict[str, Json]
) -> None:
    body = {"parameters": {"config": {"num_stepz": 3}}}
    refused = ask(launcher, f"/deployments/{deployments['tiny']['id']}/create_flow_run", body)
    assert refused.status_code == 409
    assert "num_stepz" in refused.text
