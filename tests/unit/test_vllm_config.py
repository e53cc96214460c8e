"""What the real engine refuses before vLLM is imported, and what it tells vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import LlamaConfig

from tasks.engines.base import AdapterShape, SamplingConfig
from tasks.engines.model_files import read_stop_ids
from tasks.engines.vllm.engine import VllmEngine, VllmEngineConfig
from tasks.engines.vllm.llm_engine import cores_of_ranks


def test_a_bad_model_path_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lacks config\.json, tokenizer\.json, \*\.safetensors"):
        VllmEngine(
            config=VllmEngineConfig(), model_path=str(tmp_path), name="x", cpu_ids=None, seed=1
        )


def test_importing_the_engine_imports_neither_torch_nor_vllm() -> None:
    """Pinning must come first: OpenMP reads its environment when torch is imported."""
    code = (
        "import sys, tasks.engines.vllm.engine as _; sys.exit(any(name in sys.modules for name in"
        " ('torch', 'vllm')))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=60
        ).returncode
        == 0
    )


def test_unknown_settings_are_errors() -> None:
    with pytest.raises(ValidationError, match="gpu_memory"):
        VllmEngineConfig(gpu_memory=0.5)  # type: ignore[call-arg]


def test_every_setting_is_explained() -> None:
    settings = VllmEngineConfig.model_json_schema()["properties"]
    assert [name for name, setting in settings.items() if not setting.get("description")] == []


def test_memory_is_sized_by_device() -> None:
    on_cpu = VllmEngineConfig(kv_cache_gb=0.5).vllm_arguments("m", seed=3, on_cpu=True)
    on_gpu = VllmEngineConfig(gpu_memory_utilization=0.3, sleep_mode=True).vllm_arguments(
        "m", seed=3, on_cpu=False
    )
    assert on_cpu["kv_cache_memory_bytes"] == 2**29
    assert "gpu_memory_utilization" not in on_cpu
    assert (on_gpu["gpu_memory_utilization"], on_gpu["enable_sleep_mode"]) == (0.3, True)
    assert "kv_cache_memory_bytes" not in on_gpu


def test_steps_are_eager_on_cpus_and_graphs_of_every_batch_on_gpus() -> None:
    config = VllmEngineConfig(max_num_seqs=600)
    on_cpu = config.vllm_arguments("m", seed=3, on_cpu=True)
    on_gpu = config.vllm_arguments("m", seed=3, on_cpu=False)
    assert (on_cpu["enforce_eager"], on_gpu["enforce_eager"]) == (True, False)
    assert on_gpu["compilation_config"] == {"max_cudagraph_capture_size": 600}
    assert "compilation_config" not in on_cpu
    eager = VllmEngineConfig(enforce_eager=True, max_num_seqs=600)
    assert "compilation_config" not in eager.vllm_arguments("m", seed=3, on_cpu=False)
    assert config.explain_steps(on_cpu=False) == "compiled, as CUDA graphs"


def test_a_block_size_that_attention_on_cpus_lacks_is_refused_by_its_name() -> None:
    config = VllmEngineConfig(block_size=16)
    assert config.vllm_arguments("m", seed=3, on_cpu=False)["block_size"] == 16
    with pytest.raises(ValueError, match=r"engine\.block_size must be a multiple of 32 .* got 16"):
        config.vllm_arguments("m", seed=3, on_cpu=True)


def llama(**sizes: Any) -> LlamaConfig:  # Any: a configuration's values are of many types
    small = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 512}
    return LlamaConfig(**small | sizes)


def test_a_context_beyond_the_model_s_positions_is_refused_by_its_name() -> None:
    config = VllmEngineConfig(max_model_len=513)
    config.check_model(llama(max_position_embeddings=513), on_cpu=True)
    config.check_model(llama(rope_parameters={"rope_type": "linear", "factor": 2.0}), on_cpu=True)
    with pytest.raises(ValueError, match=r"engine\.max_model_len must be <= .*\(512\), got 513"):
        config.check_model(llama(), on_cpu=False)


def test_heads_of_a_width_that_attention_on_cpus_lacks_are_refused() -> None:
    config = VllmEngineConfig(max_model_len=256)
    config.check_model(llama(hidden_size=64), on_cpu=False)
    with pytest.raises(ValueError, match=r"heads must have a width .*\(32, .* got 16"):
        config.check_model(llama(hidden_size=64), on_cpu=True)
    with pytest.raises(ValueError, match="got 48"):
        config.check_model(llama(head_dim=48), on_cpu=True)


def test_latent_attention_is_refused_on_gpus_and_has_its_width_on_cpus() -> None:
    config = VllmEngineConfig(max_model_len=256)
    latent = {"kv_lora_rank": 32, "head_dim": 24, "qk_head_dim": 96}
    config.check_model(llama(**latent), on_cpu=True)
    with pytest.raises(ValueError, match=r"latent attention was tried on CPUs alone: .*; choose"):
        config.check_model(llama(**latent), on_cpu=False)


def test_experts_beside_an_adapter_are_refused_on_cpus() -> None:
    shape = AdapterShape(rank=4, scale=2.0, modules=("q_proj",))
    adapted = VllmEngineConfig(max_model_len=256).model_copy(update={"adapter": shape})
    experts = llama(num_experts=4)
    VllmEngineConfig(max_model_len=256).check_model(experts, on_cpu=True)
    adapted.check_model(llama(), on_cpu=True)
    adapted.check_model(experts, on_cpu=False)
    with pytest.raises(ValueError, match=r"must be published whole, .* set it to merged"):
        adapted.check_model(experts, on_cpu=True)


def test_a_temperature_that_vllm_would_change_is_refused() -> None:
    """The learner would train another distribution than was sampled from."""
    for temperature in (0.0, 0.01, 1.0):
        config = SamplingConfig(temperature=temperature)
        assert config.temperature == temperature
    with pytest.raises(ValueError, match=r"temperature must be 0 or at least 0\.01.* got 0\.005"):
        SamplingConfig(temperature=0.005)


@pytest.mark.parametrize(("size", "backend"), [(1, "uni"), (2, "mp")])
def test_tensor_parallelism_takes_processes(size: int, backend: str) -> None:
    arguments = VllmEngineConfig(tensor_parallel_size=size).vllm_arguments(
        "m", seed=3, on_cpu=False
    )
    assert (arguments["tensor_parallel_size"], arguments["distributed_executor_backend"]) == (
        size,
        backend,
    )


def test_every_end_token_stops(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert read_stop_ids(str(tmp_path), SimpleNamespace(eos_token_id=5)) == (2, 5, 9)
    assert read_stop_ids(str(tmp_path / "none"), SimpleNamespace(eos_token_id=None)) == ()


@pytest.mark.parametrize(
    ("cores", "ranks", "bound"),
    [((0, 1), 2, "0|1"), ((4, 5, 6, 7), 2, "4,5|6,7"), ((), 2, "nobind"), ((0, 1, 2), 2, "nobind")],
)
def test_ranks_share_the_cores_of_a_replica_or_are_not_bound(
    cores: tuple[int, ...], ranks: int, bound: str
) -> None:
    assert cores_of_ranks(cores, ranks) == bound
