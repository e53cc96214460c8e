"""The jobs of the papers: each is whole before a start and fits its GPUs, and its twin for two
cores has its schedule and its parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hub_server import Hub, Repository, serve_hub, use_hub

from artifacts.datasets.published_rows import Published
from artifacts.models.size import ModelSize
from flows.config.gpu_memory import check_gpu_memory, with_sleep
from flows.config.misfits import misfits_of_places, misfits_of_settings
from flows.config.paper_presets import JOBS, JUDGE
from flows.config.run_config import RunConfig
from flows.config.trials import misfits_of_trials
from tasks.cluster import gpus
from tasks.cluster.cards import GB
from tasks.learner.memory import model_size

Json = dict[str, Any]  # Any: JSON values
TWIN = "-small"
NAMES = [job.__name__.replace("_", "-") for job in JOBS]
LARGE = [name for name in NAMES if not name.endswith(TWIN)]
QWEN2: Json = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152_064}
SHAPES: dict[str, Json] = {  # as the models' config.json have them
    "Qwen/Qwen2.5-7B": QWEN2 | {
        "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4,
    },
    "Qwen/Qwen2.5-14B": QWEN2 | {
        "hidden_size": 5120, "intermediate_size": 13_824, "num_hidden_layers": 48,
        "num_attention_heads": 40, "num_key_value_heads": 8,
    },
    "Qwen/Qwen2.5-32B": QWEN2 | {
        "hidden_size": 5120, "intermediate_size": 27_648, "num_hidden_layers": 64,
        "num_attention_heads": 40, "num_key_value_heads": 8,
    },
    "Qwen/Qwen3-8B": {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936,
        "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    },
}  # fmt: skip
CARDS = {  # GB of its GPUs
    "rollpacker-7b": 141, "rollpacker-14b": 80, "rollpacker-32b": 141, "roll-rlvr-7b": 80,
    "polyrl-8b": 141,
}  # fmt: skip
ON_80_GB: dict[str, Json] = {  # as docs/presets.md says
    "rollpacker-7b": {
        "stream_trainer": {"enabled": False},
        "learner": {"parameters": "sharded"},
        "rewards": {"subjects": {"engine": {"gpu_memory_utilization": 0.25}}},
    },
    "polyrl-8b": {"seeding": {"enabled": False}, "learner": {"parameters": "sharded"}},
}


def configured(name: str, **changes: object) -> RunConfig:
    return RunConfig.model_validate({"preset": name} | changes)


def size_of(config: RunConfig, folder: Path) -> ModelSize:
    """The size of a job's model, of which no more than config.json is needed."""
    shape = SHAPES[config.model.repository] | {"tie_word_embeddings": False}  # type: ignore[union-attr]
    (folder / "config.json").write_text(json.dumps(shape))
    return model_size(folder)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The hub with the heads of the jobs' models and data sets."""
    rows = [str(kind.model_fields["repository"].default) for kind in get_args(Published)]
    with serve_hub() as hub:
        use_hub(monkeypatch, hub.endpoint, tmp_path / "hub")
        for model in (*SHAPES, JUDGE):
            described = json.dumps(SHAPES.get(model, {})).encode()
            hub.repositories[f"models/{model}"] = Repository({"config.json": described})
        for name in rows:
            hub.repositories[f"datasets/{name}"] = Repository({"README.md": b""})
        yield hub


@pytest.mark.parametrize("name", NAMES)
def test_a_job_is_whole_before_it_starts(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    num_gpus = 0 if name.endswith(TWIN) else configured(name).cluster.num_devices
    found = gpus.FoundGpus(names=("NVIDIA H200",) * num_gpus, reason="none is here")
    monkeypatch.setattr(gpus, "found_gpus", lambda: found)
    values = {"preset": name, "keep": {"artifact_root": str(tmp_path / "runs")}}
    settings = misfits_of_settings(values)
    assert settings.config is not None
    assert settings.misfits == []
    assert misfits_of_places(settings.config) == []
    assert misfits_of_trials(settings.config) == []


ADDRESS = "tls://head:8786"


@pytest.mark.parametrize("num_here", [0, 8])
@pytest.mark.parametrize("name", LARGE)
def test_a_job_on_several_machines_needs_a_cluster_that_it_joins(
    monkeypatch: pytest.MonkeyPatch, name: str, num_here: int
) -> None:
    found = gpus.FoundGpus(names=("NVIDIA H200",) * num_here, reason="none is here")
    monkeypatch.setattr(gpus, "found_gpus", lambda: found)
    alone, cluster = configured(name), {"scheduler_address": ADDRESS}
    needed = alone.cluster.num_devices
    told = [each for each in misfits_of_places(alone) if "scheduler_address" in each]
    if needed <= 8:
        assert not told
        return
    assert len(told) == 1
    assert told[0].endswith(f"devices_per_host={needed}" if not num_here else ADDRESS[-4:])
    joined = configured(name, cluster=cluster)
    assert misfits_of_places(joined) == []


def test_fewer_gpus_than_roles_name_are_told_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = gpus.FoundGpus(names=("NVIDIA H200",) * 4)
    monkeypatch.setattr(gpus, "found_gpus", lambda: found)
    [told] = misfits_of_places(configured("rollpacker-7b"))
    assert told.startswith("cluster.roles must lie on this machine's 4 GPUs")
    assert "which needs 8; " in told


@pytest.mark.parametrize(
    ("name", "size", "cure"), [("rollpacker-7b", 8, 4), ("polyrl-8b", 8, 0), ("polyrl-8b", 4, 0)]
)
def test_engines_that_cannot_share_the_heads_of_a_job_are_told(
    hub: Hub, name: str, size: int, cure: int
) -> None:
    found = misfits_of_trials(configured(name, engine={"tensor_parallel_size": size}))
    said = f"got {size} for 28 and 4; --set engine.tensor_parallel_size={cure}"
    assert [told.endswith(said) for told in found] == [True] * bool(cure)


@pytest.mark.parametrize("name", LARGE)
def test_a_job_fits_its_gpus(tmp_path: Path, name: str) -> None:
    config, card = configured(name), CARDS[name] * GB
    size = size_of(config, tmp_path)
    check_gpu_memory(with_sleep(config, size, card), size, card)


@pytest.mark.parametrize("name", ON_80_GB)
def test_a_job_for_larger_gpus_fits_80_gb_without_training_in_mid_round(
    tmp_path: Path, name: str
) -> None:
    size, card = size_of(configured(name), tmp_path), 80 * GB
    with pytest.raises(ValueError, match=r"set \w+\.enabled=false and learner\.parameters=sharded"):
        check_gpu_memory(with_sleep(configured(name), size, card), size, card)
    config = configured(name, **ON_80_GB[name])
    check_gpu_memory(with_sleep(config, size, card), size, card)


@pytest.mark.parametrize("name", LARGE)
def test_a_judge_has_room_for_its_weights(tmp_path: Path, name: str) -> None:
    config = configured(name, **(ON_80_GB.get(name, {})))
    judge: Any = config.rewards.get("subjects")  # Any: a JudgeConfig
    if judge is None:
        return
    card = 80 if name in ON_80_GB else CARDS[name]
    weights = 2 * size_of(configured("rollpacker-7b"), tmp_path).num_parameters
    assert judge.engine.gpu_memory_utilization * card * GB > weights


def parts_of(config: RunConfig) -> Json:
    """What a job and its twin have in common."""
    scheduling = config.scheduling.model_dump()
    placed = {part.partition(":")[0].strip() for part in config.cluster.roles.split(", ")}
    return {
        "scheduling": scheduling,
        "rewards": {reward.kind.replace("worked", "math") for reward in config.rewards.values()},
        "stream trainer": config.stream_trainer.enabled,
        "elastic": (config.elastic.enabled, config.elastic.max_workers, config.seeding.enabled),
        "roles": placed,
        "parameters": config.learner.parameters,
        "loss": (config.learner.loss, config.learner.kl_coefficient),
        "overlong": config.learner.overlong,
        "responses": config.batch.responses_per_prompt,
        "reports": config.engine.report_tokens,
        "prices": config.prices,
    }


@pytest.mark.parametrize("name", LARGE)
def test_a_twin_has_the_schedule_and_the_parts_of_its_job(name: str) -> None:
    assert parts_of(configured(name + TWIN)) == parts_of(configured(name))
