"""A folder that a host has for itself alone, or a device that is numbered as another host's, is
told before anything is built there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client
from plan_factories import CONTEXT

from flows.train import shared_files
from tasks.cluster import host_checks
from tasks.cluster.devices import ClusterConfig, worker_specs
from tasks.cluster.host_checks import SharedFile, check_numbering, check_shared
from tasks.environments.games.guess import GuessConfig

SPECS = worker_specs(ClusterConfig())
ADDRESSES = {spec.name: f"tcp://10.0.0.{place}:1" for place, spec in enumerate(SPECS)}


class Hosts:
    """In place of a client: every worker sees the files of this machine, but for its own gaps."""

    def __init__(self, gaps: dict[str, str]) -> None:
        self._gaps = {ADDRESSES[name]: path for name, path in gaps.items()}

    def run(
        self,
        look: Callable[[Sequence[str]], list[bool]],
        paths: list[str],
        workers: list[str],
        on_error: str,
    ) -> dict[str, list[bool]]:
        return {
            address: [
                there and path != self._gaps.get(address)
                for path, there in zip(paths, look(paths), strict=True)
            ]
            for address in workers
        }


@pytest.fixture(autouse=True)
def _addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(client: Client) -> dict[str, str]:
        return ADDRESSES | {"somebody-else": "tcp://10.0.1.1:1"}

    monkeypatch.setattr(host_checks, "worker_addresses", told)


def weights_in(folder: Path) -> SharedFile:
    return SharedFile(
        path=str(folder), where="keep.weights_dir", cure="share it", roles=("rollout", "learner")
    )


def test_a_worker_that_misses_what_it_uses_is_named_with_the_cure(tmp_path: Path) -> None:
    hosts = Hosts({"engine-1": str(tmp_path)})
    with pytest.raises(ValueError, match=r"engine-1 at tcp://10.0.0.2:1 finds no .*; share it"):
        check_shared(hosts, SPECS, [weights_in(tmp_path)])


def test_who_does_not_use_a_file_may_miss_it(tmp_path: Path) -> None:
    check_shared(Hosts({"control": str(tmp_path)}), SPECS, [weights_in(tmp_path)])
    check_shared(Hosts({}), SPECS, [weights_in(tmp_path)])


def test_prompts_are_rendered_where_the_coordinators_are() -> None:
    files = {file.where: file for file in shared_files(CONTEXT, Path("/runs"))}
    assert files["the model's folder"].roles == ("control", "rollout", "learner")
    assert files["keep.artifact_root"].roles == ("control", "learner")


def test_engines_that_play_episodes_write_into_the_runs_folder() -> None:
    playing = replace(CONTEXT, environments={"guess": GuessConfig()})
    (*_, root) = shared_files(playing, Path("/runs"))
    assert root.where == "keep.artifact_root"
    assert "rollout" in root.roles


class Machines:
    """In place of a client whose workers are on these machines."""

    def __init__(self, machines: dict[str, str]) -> None:
        self._machines = {ADDRESSES[name]: machine for name, machine in machines.items()}

    def run(self, look: Callable[[], str], workers: list[str], on_error: str) -> dict[str, str]:
        assert look(), "a Linux machine has a name of its own"
        return {at: self._machines[at] for at in workers if at in self._machines}


def test_an_engines_devices_are_on_one_host() -> None:
    apart = Machines({"engine-0": "a", "engine-1": "b"})
    with pytest.raises(ValueError, match=r"engine-0 at .* and engine-1 at .* are on two; start"):
        check_numbering(apart, SPECS, devices_per_host=2)
    check_numbering(apart, SPECS, devices_per_host=1)
    check_numbering(Machines({"engine-0": "a", "engine-1": "a"}), SPECS, devices_per_host=2)


def test_who_is_away_is_not_asked_and_who_dies_meanwhile_has_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_numbering(Machines({"engine-0": "a"}), SPECS, devices_per_host=2)
    monkeypatch.delitem(ADDRESSES, "control")
    check_shared(Hosts({}), SPECS, [])
