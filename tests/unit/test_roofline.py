"""Bytes and arithmetic of models and devices, and what they come to."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from simulated_run_factories import step_s

from tasks.simulation.hardware import DEVICES, SOURCES, Device, Reached
from tasks.simulation.roofline import Roofline
from tasks.simulation.shapes import MODELS, ModelShape

# as published: billions of parameters, and of those outside embedding and head (model cards)
PUBLISHED = {
    "qwen2.5-7b": (7.61, 6.53),
    "qwen2.5-14b": (14.7, 13.1),
    "qwen2.5-32b": (32.5, 31.0),
    "qwen3-8b": (8.2, 6.95),
    "qwen3-14b": (14.8, 13.2),
    "qwen3-32b": (32.8, 31.2),
}
QWEN = Roofline(model=MODELS["qwen2.5-7b"], device=DEVICES["h800"], size=1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_the_published_numbers_of_parameters(name: str) -> None:
    shape, (total, inner) = MODELS[name], PUBLISHED[name]
    assert shape.parameters / 1e9 == pytest.approx(total, rel=0.01)
    outer = 2 * shape.vocabulary_size * shape.hidden_size
    assert (shape.parameters - outer) / 1e9 == pytest.approx(inner, rel=0.01)


def test_a_shape_is_read_from_a_config() -> None:
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    assert ModelShape.from_config("qwen3-8b", config) == MODELS["qwen3-8b"]
    llama = {"model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": None}
    shape = ModelShape.from_config("small", {**config, **llama, "head_dim": None})
    assert (shape.num_kv_heads, shape.head_size, shape.has_head_norms) == (32, 128, False)
    untied = replace(shape, is_tied=False)
    assert untied.parameters - shape.parameters == 151936 * 4096
    assert untied.matrix_parameters == shape.matrix_parameters, "the head is multiplied once"


def test_a_mixture_of_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="must be dense, got sparse"):
        ModelShape.from_config("sparse", {"model_type": "qwen3_moe", "num_experts": 128})


def test_every_constant_has_a_source() -> None:
    names = {field.name for field in fields(Device)} - {"name", "reaches"}
    assert SOURCES.keys() == names | {f"reaches.{field.name}" for field in fields(Reached)}
    for name, sources in SOURCES.items():
        assert all(sources.get(device) or sources[""] for device in DEVICES), name


def test_one_response_waits_for_the_weights_and_the_host() -> None:
    weights_s = 2 * QWEN.model.matrix_parameters / (3.35e12 * 0.8)
    launches_s = 28 * 12 * 2.5e-6
    assert step_s(QWEN, 1, 0) == pytest.approx(weights_s + launches_s + 3.0e-3 + 6.2e-5)
    eager_s = 28 * 12 * (QWEN.device.eager_s - QWEN.device.launch_s)
    eager = replace(QWEN, is_eager=True)
    assert step_s(eager, 1, 0) - step_s(QWEN, 1, 0) == pytest.approx(eager_s)


def test_a_sampler_that_sorts_the_vocabulary_costs_each_sequence_its_logits() -> None:
    sorting = replace(QWEN, sorts_logits=True)
    more_s = step_s(sorting, 100, 0) - step_s(QWEN, 100, 0)
    assert more_s == pytest.approx(100 * 152_064 * 1.43e-10)


def test_a_large_batch_waits_for_the_arithmetic() -> None:
    more_s = step_s(QWEN, 2000, 0) - step_s(QWEN, 1000, 0)
    assert more_s == pytest.approx(1000 * (2 * QWEN.model.matrix_parameters / 593.4e12 + 6.2e-5))


def test_a_cached_token_costs_its_bytes() -> None:
    assert QWEN.kv_s_per_token == pytest.approx(57_344 / (3.35e12 * 0.8))


def test_two_devices_share_weights_and_cache_and_pay_for_the_exchange() -> None:
    pair = replace(QWEN, size=2)
    assert pair.weights_s == QWEN.weights_s / 2
    assert pair.kv_s_per_token == QWEN.kv_s_per_token / 2
    assert pair.fixed_s - QWEN.fixed_s == pytest.approx(1e-3 + 56 * 15e-6)
    # a ring of two sends each activation once, twice a layer
    assert pair.exchange_s_per_token == pytest.approx(56 * 3584 * 2 / (200e9 * 0.7))
    assert replace(pair, is_one_host=False).exchange_s_per_token > pair.exchange_s_per_token


def test_key_value_heads_are_repeated_on_more_devices_than_there_are() -> None:
    assert replace(QWEN, size=8).kv_bytes_per_token == replace(QWEN, size=4).kv_bytes_per_token


def test_the_room_is_what_weights_and_activations_leave() -> None:
    room = 80e9 * 0.85 - QWEN.model.weight_bytes - 4e9
    assert QWEN.kv_tokens == int(room / 57_344)
    assert replace(QWEN, size=2).kv_tokens > 2 * QWEN.kv_tokens


def test_weights_that_do_not_fit_are_refused() -> None:
    large = Roofline(model=MODELS["qwen2.5-32b"], device=DEVICES["h800"], size=1)
    assert not large.fits
    with pytest.raises(ValueError, match=r"must fit 1 devices h800, got 65\.5 GB"):
        _ = large.kv_tokens
    assert replace(large, size=2).fits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["h800", "h100", "h200", "a100"])
def test_a_larger_batch_decodes_more_tokens_a_second(name: str, device: str) -> None:
    roofline = Roofline(model=MODELS[name], device=DEVICES[device], size=2)
    context = 2_000
    rates = [batch / step_s(roofline, batch, batch * context) for batch in range(1, 600, 7)]
    assert rates == sorted(rates)
