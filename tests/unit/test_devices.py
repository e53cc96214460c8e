"""Role maps and worker specifications: what is refused, and which process gets which device."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.cluster.devices import (
    COORDINATORS,
    ClusterConfig,
    WorkerSpec,
    device_map,
    engine_members,
    parse_role_map,
    worker_specs,
)


def specs_by_name(**values: object) -> dict[str, WorkerSpec]:
    return {spec.name: spec for spec in worker_specs(ClusterConfig.model_validate(values))}


@pytest.mark.parametrize(
    ("roles", "rollout", "learner"),
    [
        ("rollout: 0-1, learner: 0-1", (0, 1), (0, 1)),
        ("rollout: 0-1,4; learner: 0", (0, 1, 4), (0,)),
        ("learner:3,rollout:0-2", (0, 1, 2), (3,)),
        (" rollout : 0 , 2 , learner : 1 ", (0, 2), (1,)),
        ("rollout: 5-5; learner: 0", (5,), (0,)),
    ],
)
def test_roles_are_read(roles: str, rollout: tuple[int, ...], learner: tuple[int, ...]) -> None:
    assert parse_role_map(roles) == {"rollout": rollout, "learner": learner}


@pytest.mark.parametrize(
    ("roles", "rule"),
    [
        ("", "roles must read like"),
        ("0-1", "roles must read like"),
        ("rollout:, learner: 0", "roles must read like"),
        (
            "rollout: 0, trainer: 0",
            "roles must read like .*'trainer: 0'|roles must read like .* trainer: 0",
        ),
        ("rollout: 0, learner: 0, rollout: 1", "names 'rollout' twice"),
        ("learner: 0-1", "rollout missing .* add 'rollout: 0'"),
        ("rollout: a, learner: 0", "numbers like 0-3,6, got 'a'"),
        ("rollout: 0-, learner: 0", "numbers like 0-3,6, got '0-'"),
        ("rollout: -1, learner: 0", "numbers like 0-3,6, got '-1'"),
        ("rollout: 0-1-2, learner: 0", "numbers like 0-3,6, got '0-1-2'"),
        ("rollout: 0,, learner: 0", "numbers like 0-3,6, got ''"),
        ("rollout: 1-0, learner: 0", "count upwards, got '1-0' .* write 0-1"),
        ("rollout: 0,3-1, learner: 0", "count upwards, got '3-1' .* write 1-3"),
        ("rollout: 0-1,1, learner: 0", "each device once, got '0-1,1'"),
        ("rollout: 0-99999999999, learner: 0", "numbers below 100000, got '0-99999999999'"),
    ],
)
def test_a_bad_role_map_is_refused_with_the_place(roles: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        parse_role_map(roles)


def test_more_cores_than_a_machine_has_are_refused_before_they_fill_the_memory() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 4096"):
        ClusterConfig(cores_per_device=1_000_000_000)


def test_devices_beyond_the_machine_are_refused() -> None:
    with pytest.raises(
        ValidationError,
        match="devices 0 to 1, got 2 for learner; raise num_devices or change roles",
    ):
        ClusterConfig(num_devices=2, roles="rollout: 0, learner: 1-2")


def test_colocated_and_disaggregated_devices_keep_their_numbers() -> None:
    assert device_map(ClusterConfig(num_devices=4, roles="rollout: 0-2, learner: 3")) == {
        "rollout": (0, 1, 2),
        "learner": (3,),
    }
    assert list(specs_by_name(num_devices=4, roles="rollout: 1,3, learner: 0,2")) == [
        "control", "engine-0", "engine-1", "learner-0", "learner-1",
    ]  # fmt: skip
    assert (
        specs_by_name(num_devices=4, roles="rollout: 1,3, learner: 0,2")["engine-1"].device
        == "cpu:3"
    )


def test_the_control_worker_has_a_slot_and_a_thread_for_every_coordinator() -> None:
    control = specs_by_name()["control"]
    assert (control.role, control.device, control.core_ids) == ("control", None, ())
    assert control.resources == (("coordinator", float(COORDINATORS)),)
    assert control.num_threads > COORDINATORS


def test_cpu_workers_are_pinned_to_the_cores_of_their_device() -> None:
    specs = specs_by_name(num_devices=3, cores_per_device=4, roles="rollout: 0,2, learner: 1")
    assert specs["engine-0"].core_ids == (0, 1, 2, 3)
    assert specs["engine-1"].core_ids == (8, 9, 10, 11)
    assert specs["learner-0"].core_ids == (4, 5, 6, 7)
    assert {specs[name].environment["OMP_NUM_THREADS"] for name in ("engine-0", "learner-0")} == {
        "4"
    }
    assert not any("CUDA_VISIBLE_DEVICES" in spec.environment for spec in specs.values())


def test_cuda_workers_see_one_gpu_and_are_not_pinned() -> None:
    specs = specs_by_name(
        device_kind="cuda", num_devices=8, cores_per_device=2, roles="rollout: 0-6, learner: 7"
    )
    assert {name: spec.environment.get("CUDA_VISIBLE_DEVICES") for name, spec in specs.items()} == {
        "control": None, **{f"engine-{index}": str(index) for index in range(7)}, "learner-0": "7",
    }  # fmt: skip
    assert {spec.core_ids for spec in specs.values()} == {()}
    assert specs["learner-0"].device == "cuda:7"


def test_processes_of_gpus_share_out_the_cores_of_their_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their copies on the host and their packing would otherwise all run on one thread."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    specs = specs_by_name(device_kind="cuda", num_devices=1, roles="rollout: 0, learner: 0")
    shares = {name: spec.environment["OMP_NUM_THREADS"] for name, spec in specs.items()}
    assert shares == {"control": "1", "engine-0": "8", "learner-0": "8"}


def test_the_log_level_of_vllm_that_the_environment_names_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert specs_by_name()["engine-0"].environment["VLLM_LOGGING_LEVEL"] == "ERROR"
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    assert specs_by_name()["engine-0"].environment["VLLM_LOGGING_LEVEL"] == "INFO"


def test_workers_announce_their_role_once() -> None:
    specs = specs_by_name()
    assert specs["engine-1"].resources == (("rollout", 1.0),)
    assert specs["learner-1"].resources == (("learner", 1.0),)


def test_an_engine_is_named_after_the_first_worker_whose_device_it_holds() -> None:
    config = ClusterConfig(num_devices=4, roles="rollout: 0-3, learner: 0")
    assert engine_members(config, 1) == {
        f"engine-{index}": (f"engine-{index}",) for index in range(4)
    }
    assert engine_members(config, 2) == {
        "engine-0": ("engine-0", "engine-1"),
        "engine-2": ("engine-2", "engine-3"),
    }


def test_an_engine_stays_on_one_host() -> None:
    config = ClusterConfig(num_devices=6, devices_per_host=3, roles="rollout: 1-4, learner: 0")
    assert engine_members(config, 2) == {
        "engine-0": ("engine-0", "engine-1"),
        "engine-2": ("engine-2", "engine-3"),
    }
    with pytest.raises(ValueError, match="got 4 for the 2 of host 0"):
        engine_members(config, 4)


def test_environments_have_workers_without_a_device() -> None:
    specs = specs_by_name(roles="rollout: 0, learner: 0-1, environment: 2")
    assert list(specs)[-2:] == ["environment-0", "environment-1"]
    first = specs["environment-0"]
    assert (first.role, first.device, first.core_ids) == ("environment", None, ())
    assert first.resources == (("environment", 1.0),)
    assert not any(name.startswith("environment") for name in specs_by_name())


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ("environment: 0", "a number of at least 1"),
        (
            "environment: 0-1",
            "no devices but a number of workers, like 'environment: 2', got '0-1'",
        ),
        ("environment:", "got ''"),
        ("environment: 1, environment: 2", "names 'environment' twice"),
    ],
)
def test_a_wrong_number_of_environment_workers_is_refused(told: str, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        ClusterConfig(roles=f"rollout: 0, learner: 0, {told}")
