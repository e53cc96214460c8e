"""The recipes for elastic workers: what they start is what `rollflow worker` understands."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.commands.worker import check_elastic_worker, dask_command, parser

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deployments" / "kubernetes"
Json = dict[str, Any]  # Any: YAML values


def manifest(name: str) -> Json:
    (found,) = yaml.safe_load_all((KUBERNETES / name).read_text())
    return found


def test_the_worker_group_belongs_to_the_cluster_beside_it() -> None:
    group, cluster = manifest("elastic-workers.yaml"), manifest("dask-cluster.yaml")
    assert (group["apiVersion"], group["kind"]) == (cluster["apiVersion"], "DaskWorkerGroup")
    assert group["spec"]["cluster"] == cluster["metadata"]["name"]
    (ours,) = group["spec"]["worker"]["spec"]["containers"]
    (theirs,) = cluster["spec"]["scheduler"]["spec"]["containers"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert ours["image"] == f"rollflow-rollout:{version}"
    assert theirs["image"] == f"rollflow:{version}"


def test_a_pod_starts_an_elastic_worker_that_drains_in_the_time_it_has() -> None:
    pod = manifest("elastic-workers.yaml")["spec"]["worker"]["spec"]
    (container,) = pod["containers"]
    program, command, *words = container["args"]
    assert (program, command) == ("rollflow", "worker")
    options = parser().parse_args(words)
    check_elastic_worker(options)
    assert options.drain_s < pod["terminationGracePeriodSeconds"]
    assert options.worker_port == container["ports"][0]["containerPort"]
    assert "--worker-port 9000" in " ".join(dask_command(options))


@pytest.mark.parametrize("name", ["elastic-workers.yaml", "dask-cluster.yaml"])
def test_what_a_container_mounts_is_a_volume_of_its_pod(name: str) -> None:
    pod = manifest(name)["spec"]["worker"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_an_elastic_workers_token_is_read_from_where_its_secret_is_mounted() -> None:
    pod = manifest("elastic-workers.yaml")["spec"]["worker"]["spec"]
    (container,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    options = parser().parse_args(container["args"][2:])
    assert options.token_file == f"{mounted['token']}/token"
