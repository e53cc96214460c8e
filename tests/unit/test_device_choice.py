"""Presets on machines with no GPU and with some: a valid configuration, and its workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.config.device_choice import spread, told
from flows.config.presets import PRESETS, preset_values
from flows.config.run_config import RunConfig
from flows.config.settings_file import settings_of
from tasks.cluster import cores, gpus
from tasks.cluster.cores import multiply_bf16
from tasks.cluster.devices import WorkerSpec, device_map, worker_specs
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.rewards.judges.reward import judge_engine_of
from tests.flows.conftest import beyond_gpus

NAMED = {name: preset_values(name)["cluster"].get("device_kind") for name in PRESETS}
ON_CORES = tuple(name for name, kind in NAMED.items() if kind is None)
APART = ("tiny-async", "smollm2-async")
ONE_DEVICE = ("elastic", "tiny-elastic")
STREAMED = ("rollpacker", "overlap", "rollpacker-mixed")
H200 = "NVIDIA H200"
ADDRESS = "tcp://10.0.0.1:8786"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes up a machine with so many GPUs, whose cores multiply bf16 fast."""

    def make(number: int) -> None:
        found = gpus.FoundGpus(names=(H200,) * number, reason="" if number else "none is here")
        monkeypatch.setattr(gpus, "found_gpus", lambda: found)
        monkeypatch.setattr(cores, "multiply_bf16", lambda: True)

    return make


def configured(preset: str, **changes: object) -> RunConfig:
    return RunConfig.model_validate({"preset": preset, **changes})


def specs_of(config: RunConfig) -> dict[str, WorkerSpec]:
    return {spec.name: spec for spec in worker_specs(config.cluster)}


@pytest.mark.parametrize("preset", PRESETS)
def test_without_a_gpu_a_preset_is_what_it_says(machine: Any, preset: str) -> None:
    """The values of a preset, and cores where it names no devices."""
    machine(0)
    config = configured(preset)
    named = NAMED[preset] or "cpu"
    assert config.cluster.device_kind == named
    plain = configured(preset, cluster={"device_kind": named})
    assert config.model_dump() == plain.model_dump()
    assert config.engine.gpu_share == 0.6 or named == "cuda"


@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize("preset", ON_CORES)
def test_a_preset_is_spread_over_the_gpus(machine: Any, preset: str, number: int) -> None:
    machine(number)
    config = configured(preset)
    used = 1 if preset in ONE_DEVICE else number
    assert (config.cluster.device_kind, config.cluster.num_devices) == ("cuda", used)
    placed = device_map(config.cluster)
    rollout, learner = set(placed["rollout"]), set(placed["learner"])
    assert rollout | learner == set(range(used))
    apart = preset in APART and number > 1
    assert (rollout & learner == set()) == apart
    assert not apart or 0 <= len(rollout) - len(learner) <= 1
    judges = {number - 1} if preset.endswith("-judged") else set()
    assert set(placed.get("judge", ())) == judges
    specs = specs_of(config)
    assert {spec.device for spec in specs.values()} == {
        None, *(f"cuda:{device}" for device in range(used))
    }  # fmt: skip
    for name, spec in specs.items():
        if spec.device is not None:
            assert spec.core_ids == (), name
            assert f"cuda:{spec.environment['CUDA_VISIBLE_DEVICES']}" == spec.device


@pytest.mark.parametrize("number", [1, 8])
@pytest.mark.parametrize("preset", ON_CORES)
def test_processes_of_one_gpu_leave_each_other_room(machine: Any, preset: str, number: int) -> None:
    machine(number)
    config = configured(preset)
    judge = judge_engine_of(config.rewards)
    shares = config.engine.gpu_share + (judge.gpu_memory_utilization if judge else 0.0)
    placed = device_map(config.cluster)
    shared = set(placed["rollout"]) & set(placed["learner"])
    assert shares == pytest.approx(0.55 if judge else 0.3 if shared else 0.6)


@pytest.mark.parametrize("preset", STREAMED)
def test_one_gpu_trains_when_it_has_generated(machine: Any, preset: str) -> None:
    machine(1)
    config = configured(preset)
    assert not config.stream_trainer.enabled
    assert "no stream trainer, which needs two" in told(config)
    with pytest.raises(ValueError, match="stream_trainer needs a learner device"):
        configured(preset, stream_trainer={"enabled": True})
    machine(2)
    assert configured(preset).stream_trainer.enabled


@pytest.mark.parametrize("preset", APART)
def test_what_is_apart_takes_turns_on_one_gpu(machine: Any, preset: str) -> None:
    machine(1)
    assert configured(preset).scheduling.algebra(configured(preset).batch).pauses
    machine(2)
    assert not configured(preset).scheduling.algebra(configured(preset).batch).pauses


def test_what_the_user_has_set_stays(machine: Any) -> None:
    machine(8)
    named = configured("tiny", cluster={"device_kind": "cpu"})
    assert (named.cluster.num_devices, named.engine.gpu_share) == (2, 0.6)
    named = configured("tiny", cluster={"device_kind": "cuda"})
    assert (named.cluster.roles, named.engine.gpu_share) == ("rollout: 0-1, learner: 0-1", 0.6)
    roles = "rollout: 0-5, learner: 6-7"
    placed = configured("tiny", cluster={"roles": roles}, engine={"gpu_memory_utilization": 0.7})
    assert (placed.cluster.roles, placed.cluster.num_devices) == (roles, 8)
    assert placed.engine.gpu_share == 0.7
    few = configured("tiny-elastic", cluster={"num_devices": 4})
    assert few.cluster.roles == "rollout: 0-3, learner: 0-3"
    for preset, number in (("one-gpu", 1), ("eight-gpu", 8), ("rollpacker-32b", 64)):
        assert configured(preset).cluster.num_devices == number
    with pytest.raises(ValueError, match=r"at most the GPUs of this machine \(8\), got 9; lower"):
        configured("tiny", cluster={"num_devices": 9})
    with pytest.raises(ValueError, match="roles must use devices 0 to 7, got 8"):
        configured("tiny", cluster={"roles": "rollout: 0-8, learner: 0"})


def test_a_simulated_engine_has_no_share_of_a_gpu(machine: Any) -> None:
    machine(1)
    simulated = configured("tiny", engine={"kind": "simulated", "max_model_len": 256})
    assert (simulated.cluster.device_kind, simulated.engine.kind) == ("cuda", "simulated")


@pytest.mark.parametrize("number", [0, 8])
def test_a_joined_clusters_devices_must_be_named(machine: Any, number: int) -> None:
    machine(number)
    with pytest.raises(ValueError, match=r"got auto beside 'tcp://10.0.0.1:8786'; set"):
        configured("tiny", cluster={"scheduler_address": ADDRESS})
    named = {"scheduler_address": ADDRESS, "device_kind": "cpu"}
    assert configured("tiny", cluster=named).cluster.num_devices == 2
    beside = configured("tiny", resume="run", cluster={"scheduler_address": ADDRESS})
    assert beside.cluster.device_kind == "auto", "the run that is resumed has its own"


@pytest.mark.parametrize("preset", ["rollpacker", "tiny-judged", "tiny-async", "tiny-elastic"])
@pytest.mark.parametrize("number", [0, 1, 8])
def test_a_recorded_configuration_keeps_its_devices(machine: Any, preset: str, number: int) -> None:
    machine(number)
    config = configured(preset)
    kept = config.model_dump(mode="json")
    machine(8 - number)
    assert RunConfig.model_validate(kept).model_dump(mode="json") == kept


@pytest.mark.parametrize("kind", [None, "cpu", "cuda"])
def test_settings_for_further_runs_are_short(machine: Any, kind: str | None) -> None:
    machine(1)
    cluster = {"device_kind": kind} if kind else {}
    settings = settings_of(configured("rollpacker", cluster=cluster))
    assert settings == {"preset": "rollpacker"} | ({"cluster": cluster} if kind else {})


@pytest.mark.parametrize(
    ("number", "changes", "line"),
    [
        (0, {}, "2 x 1 CPU cores: none is here"),
        (0, {"cluster": {"device_kind": "auto"}}, "2 x 1 CPU cores: none is here"),
        (0, {"cluster": {"device_kind": "cuda"}}, "2 GPUs, as named"),
        (8, {}, "8 GPUs of 8 found (NVIDIA H200)"),
        (8, {"cluster": {"num_devices": 1}}, "1 GPU of 8 found (NVIDIA H200)"),
        (8, {"cluster": {"device_kind": "cpu"}}, "2 x 1 CPU cores, as named"),
    ],
)
def test_it_is_told_which_devices_and_why(
    machine: Any, number: int, changes: dict[str, object], line: str
) -> None:
    machine(number)
    assert told(configured("tiny", **changes)) == line


def test_environment_workers_and_judges_are_kept() -> None:
    roles = "rollout: 0-1, learner: 0-1, judge: 1, environment: 3"
    assert spread(roles, 4) == "rollout: 0-3, learner: 0-3, judge: 3, environment: 3"
    assert spread("rollout: 0, learner: 1-3", 5) == "rollout: 0-2, learner: 3-4"


@pytest.mark.parametrize(
    ("assignments", "preset", "num_gpus", "is_skipped"),
    [
        ((), "tiny-sync", 1, False),
        (('cluster.roles="rollout: 0, learner: 0-1"',), "tiny-sync", 0, False),
        (('cluster.roles="rollout: 0, learner: 0-1"',), "tiny-sync", 1, True),
        (('cluster.roles="rollout: 0, learner: 0-1"',), "tiny-sync", 2, False),
        (("cluster.device_kind=cpu", 'cluster.roles="rollout: 0-1, learner: 1"'), "tiny", 1, False),
        ((), "tiny-async", 1, True),
        ((), "tiny-async", 2, False),
    ],
)
def test_flow_tests_are_skipped_where_their_roles_need_more_gpus(
    assignments: tuple[str, ...], preset: str, num_gpus: int, is_skipped: bool
) -> None:
    why = beyond_gpus(assignments, preset, num_gpus)
    assert bool(why) is is_skipped
    assert not why or "name 2 devices, GPUs here: 1" in why


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("fma avx2", "mixed"), ("avx2 avx512f avx512bw avx512vl avx512dq", "bf16"), ("", "bf16")],
)
def test_cores_that_multiply_bf16_slowly_compute_in_fp32(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, dtype: str
) -> None:
    machine(0)
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor: 0\nflags: {flags}\n" if flags else "Features: asimd\n")
    monkeypatch.setattr(cores, "multiply_bf16", partial(multiply_bf16, info))
    config = configured("smollm2")
    assert config.learner.compute == dtype
    assert isinstance(config.engine, VllmEngineConfig)
    assert config.engine.dtype == {"mixed": "float32", "bf16": "bfloat16"}[dtype]
    assert ("multiply bf16 slowly" in told(config)) == (dtype == "mixed")
    named = configured("smollm2", learner={"compute": "bf16"}, engine={"dtype": "bfloat16"})
    assert named.learner.compute == "bf16"
    assert named.engine.dtype == "bfloat16"
    configured("tiny", engine={"kind": "simulated"})
    sharded = configured("smollm2", learner={"parameters": "sharded"}).learner.compute
    assert sharded == ("fp32" if dtype == "mixed" else "bf16")
    kept = RunConfig.model_validate(config.model_dump(mode="json"))
    assert kept.learner.compute == dtype
    machine(1)
    assert configured("smollm2").learner.compute == "bf16"
