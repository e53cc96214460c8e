"""Images and recipes of clusters, by their own validators: hadolint, Kubernetes' schemas, the Dask
operator's, shellcheck, Docker Compose; and the steps of the images, where Docker is not needed for
them. `make recipes-test` installs what is missing of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from image_steps import instructions, run_in_a_root, script_of, steps_of

from tasks.cluster.process_environment import SOURCES

DEPLOYMENTS = SOURCES / "deployments"
DOCKERFILE = DEPLOYMENTS / "docker/Dockerfile"
BIN = Path(sys.executable).parent
KUBERNETES = "1.33"  # the version whose schemas are taken
pytestmark = pytest.mark.timeout(900)
Json = dict[str, Any]  # Any: YAML values


def program(name: str) -> str:
    """A validator's path; without it the test is skipped."""
    found = shutil.which(name, path=f"{BIN}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed; make recipes-test installs it")
    return found


def accepted(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=SOURCES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_hadolint() -> None:
    accepted(program("hadolint"), str(DOCKERFILE))


def test_the_compose_file_passes_docker() -> None:
    settings = {"POSTGRES_PASSWORD": "secret", "MLFLOW_IMAGE": "mlflow:3.17.2"}
    command = [
        program("docker"),
        "compose",
        "-f",
        str(DEPLOYMENTS / "docker/compose.yaml"),
        "config",
    ]
    if subprocess.run([command[0], "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker is here without its compose; install docker-compose-v2")
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", ["slurm/cluster.sbatch"])
def test_scripts_pass_shellcheck(script: str) -> None:
    accepted(program("shellcheck"), "--shell=bash", str(DEPLOYMENTS / script))


def manifests() -> list[Json]:
    found = sorted((DEPLOYMENTS / "kubernetes").glob("*.yaml"))
    return [manifest for file in found for manifest in yaml.safe_load_all(file.read_text())]


def operators_schema(kind: str) -> Json:
    """The schema of one of the Dask operator's own kinds."""
    spec = find_spec("dask_kubernetes")
    if spec is None or spec.origin is None:
        pytest.skip("dask_kubernetes is not installed; make recipes-test installs it")
    folder = Path(spec.origin).parent / "operator/deployment/helm/dask-kubernetes-operator/crds"
    definition = yaml.safe_load((folder / f"{kind.lower()}.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]  # YAML


@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: each["metadata"]["name"])
def test_manifests_pass_the_operators_schema_and_kubernetes(manifest: Json) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validate = pytest.importorskip(
        "kubernetes_validate", reason="make recipes-test installs kubernetes-validate"
    )
    jsonschema.validate(manifest, operators_schema(manifest["kind"]))
    specs = [
        part["spec"]
        for part in manifest["spec"].values()
        if isinstance(part, dict) and "spec" in part
    ]
    assert specs
    for spec in specs:
        if "containers" in spec:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
            validate.validate(pod, KUBERNETES, strict=True)


def test_the_steps_of_the_images_make_a_working_command_in_a_root_of_their_own(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a root of its own needs root; run it as root")
    context = tmp_path / "context"
    subprocess.run(["git", "clone", "--quiet", str(SOURCES), str(context)], check=True)
    found = instructions((context / "deployments/docker/Dockerfile").read_text())
    trainer, rollout = (steps_of(found, target) for target in ("trainer", "rollout"))
    assert trainer[: len(rollout) - 1] == rollout[:-1]  # one environment
    script = script_of(trainer, context, {"DEVICES": "cpu"})
    assert not tmp_path.is_relative_to("/tmp"), "the root hides /tmp: use --basetemp elsewhere"
    tried = "rollflow worker --help; rollflow explain --preset tiny; pwd; ls /opt/rollflow/.git"
    done = run_in_a_root(tmp_path / "root", f"{script}\n{tried}", timeout_s=800)
    shutil.rmtree(tmp_path / "root")  # gigabytes
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "a step in numbers" in done.stdout
    assert "/runs\n" in done.stdout
