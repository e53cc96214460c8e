"""Judges in a configuration: role and reward need each other, placements become vLLM's arguments,
layers follow the tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from artifacts.models.registry import TinyLlamaConfig
from flows.config.run_config import RunConfig
from tasks.cluster.devices import ClusterConfig, worker_specs
from tasks.rewards.judges.engine_config import (
    JudgeEngineConfig,
    LayerStreaming,
    Placement,
    break_even_tokens,
    placement_arguments,
    resident_layers,
)

PCIE4 = LayerStreaming()
STREAMED = {"offload_backend": "prefetch", "offload_group_size": 8, "offload_prefetch_step": 1}
PCIE5 = LayerStreaming(link_gb_per_s=50)


def run_config(**changes: object) -> RunConfig:
    return RunConfig.model_validate({"preset": "tiny-judged", **changes})


@pytest.mark.parametrize("preset", ["tiny-judged", "smollm2-judged"])
def test_the_judged_presets_are_sound(preset: str) -> None:
    config = RunConfig.model_validate({"preset": preset})
    assert [spec.device for spec in worker_specs(config.cluster) if spec.name == "judge-0"] == [
        "cpu:1"
    ]


def test_a_role_without_judges_has_no_judge_workers() -> None:
    assert [spec.name for spec in worker_specs(ClusterConfig())] == [
        "control",
        "engine-0",
        "engine-1",
        "learner-0",
        "learner-1",
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cluster": {"roles": "rollout: 0-1, learner: 0-1"}},
            "got roles 'rollout: 0-1, learner: 0-1'; add ', judge: 1'"),
        ({"rewards": {"*": {"kind": "math_answer"}}},
            "the role judge needs a reward of kind judge, got none"),
        ({"rewards": {"*": {"engine": {"placement": "sleep"}}}},
            "CPU device must have placement 'resident', got 'sleep'"),
        ({"rewards": {"*": {"engine": {"placement": "prefetch"}}}},
            "set placement=resident, or cluster.device_kind=cuda"),
        ({"rewards": {"a": {"kind": "judge", "engine": {"model": {"kind": "smollm2"}}}}},
            "must have the same engine"),
        ({"rewards": {"*": {"mode": "generative", "engine": {"max_model_len": 200}}}},
            "must leave half of engine.max_model_len (200)"),
        (
            {"cluster": {"device_kind": "cuda"},
                "rewards": {"*": {"engine": {"gpu_memory_utilization": 0.5}}}},
            "must together have a gpu_memory_utilization of at most 1, got 1.1",
        ),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused_with_the_cure(
    changes: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        run_config(**changes)
    assert told in str(refused.value)


def test_two_judge_rewards_may_share_a_model_with_rubrics_of_their_own() -> None:
    config = run_config()
    judge = config.rewards["*"].model_dump(mode="json")
    assert len(run_config(rewards={"a": {**judge, "rubric": "Be kind."}}).rewards) == 2


def test_a_copy_is_hidden_from_the_break_even_on() -> None:
    """A 7B layer is 0.45 GB: 18 ms at 25 GB/s, and 1.1 us a token at 400 TFLOP/s, so 16k tokens; 8k
    with twice the link."""
    assert break_even_tokens(PCIE4) == pytest.approx(16_000)
    assert break_even_tokens(PCIE5) == pytest.approx(8_000)
    assert pytest.approx(16_000 * 0.45e9 / 400e12) == 0.45e9 / 25e9


@pytest.mark.parametrize(
    ("tokens", "resident"),
    [
        (1, 28),
        (500, 28),
        (571, 28),
        (572, 27),
        (4096, 21),
        (8192, 14),
        (15_999, 1),
        (16_000, 0),
        (32_768, 0),
    ],
)
def test_resident_layers_follow_the_tokens_of_a_forward_pass(tokens: int, resident: int) -> None:
    assert resident_layers(28, tokens, PCIE4) == resident


@given(st.integers(1, 100), st.integers(1, 40_000), st.floats(1, 100))
def test_streamed_layers_are_never_more_than_are_hidden(
    num_layers: int, tokens: int, link: float
) -> None:
    streaming = LayerStreaming(link_gb_per_s=link)
    resident = resident_layers(num_layers, tokens, streaming)
    arguments = placement_arguments("prefetch", num_layers, tokens, streaming)
    group = arguments.get("offload_group_size", 0)
    streamed = arguments.get("offload_num_in_group", 0)
    assert 0 <= resident <= num_layers
    assert resident_layers(num_layers, tokens + 1, streaming) <= resident
    assert 0 <= streamed <= group <= num_layers
    assert streamed * num_layers <= (num_layers - resident) * group
    if not math.isclose(tokens, break_even_tokens(streaming)):
        assert (resident == 0) == (tokens > break_even_tokens(streaming))


@pytest.mark.parametrize(
    ("placement", "tokens", "expected"),
    [
        ("resident", 16_384, {}),
        ("sleep", 16_384, {"enable_sleep_mode": True}),
        ("prefetch", 512, {}),
        ("prefetch", 8192, STREAMED | {"offload_num_in_group": 4}),
        ("prefetch", 16_384, STREAMED | {"offload_num_in_group": 8}),
    ],
)  # fmt: skip
def test_a_placement_becomes_vllms_arguments(
    placement: Placement, tokens: int, expected: dict[str, object]
) -> None:
    assert placement_arguments(placement, 28, tokens, PCIE4) == expected


def test_on_a_cpu_a_judge_is_told_nothing_of_gpus() -> None:
    arguments = JudgeEngineConfig(model=TinyLlamaConfig()).vllm_arguments(
        "model", 0, on_cpu=True, has_tokenizer=True
    )
    assert "gpu_memory_utilization" not in arguments
    assert not arguments["skip_tokenizer_init"]
    assert "worker_extension_cls" not in arguments
