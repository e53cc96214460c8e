"""The memory of every GPU is summed before a run, and what cannot fit is refused with its cure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from artifacts.models.size import ModelSize
from flows.commands.algebra_rows import algebra_rows
from flows.config.gpu_memory import GB, cards_of, check_gpu_memory, cures, fullest_card, with_sleep
from flows.config.run_config import RunConfig
from tasks.engines.base import AdapterShape
from tasks.learner.lora_config import LoraConfig
from tasks.learner.memory import adapter_parameters

CARD = 80 * GB


def shaped(billions: float) -> ModelSize:
    """A Llama of about this size."""
    return ModelSize(
        num_parameters=int(billions * 1e9),
        largest_layer=int(billions * 1e9 / 32),
        table=128_000 * 2048,
        is_tied=False,
        num_layers=28,
        hidden=2048,
        inner=8192,
        heads=16,
        head_width=128,
        key_heads=8,
        normed=2 * 2048,
        largest_matrix=2048 * 8192,
    )


def configured(preset: str, **parts: Any) -> RunConfig:  # Any: values of fields
    return RunConfig.model_validate({"preset": preset, **parts})


def test_one_card_of_80_gb_holds_a_model_of_two_billion_and_not_of_three() -> None:
    config = configured("one-gpu")
    check_gpu_memory(config, shaped(1.5), CARD)
    with pytest.raises(ValueError, match=r"GPU 0 must hold what runs there, got engine 32 .* set "):
        check_gpu_memory(config, shaped(3.0), CARD)


def test_eight_cards_hold_seven_billion_sharded_and_not_replicated() -> None:
    sharded = configured("eight-gpu")
    check_gpu_memory(sharded, shaped(7.6), CARD)
    replicated = configured("eight-gpu", learner={"parameters": "replicated"})
    with pytest.raises(ValueError, match=r"set .*learner\.parameters=sharded"):
        check_gpu_memory(replicated, shaped(7.6), CARD)


@pytest.mark.parametrize("billions", [1.8, 2.2, 2.5, 3.0, 3.5])
@pytest.mark.parametrize("recomputes", [True, False])
def test_every_cure_makes_it_fit(billions: float, recomputes: bool) -> None:
    config = configured("one-gpu", learner={"recompute_layers": recomputes})
    size = shaped(billions)
    if fullest_card(config, size, CARD).fits:
        return
    for cure in cures(config, size, CARD):
        parts: dict[str, dict[str, object]] = {"learner": {"recompute_layers": recomputes}}
        for part, field, value in re.findall(r"(\w+)\.(\w+)=(\S+)", cure):
            parts.setdefault(part, {})[field] = value
        check_gpu_memory(configured("one-gpu", **parts), size, CARD)


def test_a_share_without_room_for_the_model_is_refused() -> None:
    config = configured("one-gpu", engine={"gpu_memory_utilization": 0.05})
    assert not fullest_card(config, shaped(1.5), CARD).fits


def test_no_setting_helps_a_model_that_is_too_large() -> None:
    with pytest.raises(ValueError, match="no setting helps: take a smaller model"):
        check_gpu_memory(configured("one-gpu"), shaped(70.0), CARD)


def test_an_engine_that_sleeps_leaves_its_share_to_the_rows() -> None:
    size, rows = shaped(1.5), {"max_tokens_per_microbatch": 131072}
    awake = configured("one-gpu", learner=rows)
    asleep = configured("one-gpu", learner=rows, engine={"sleep_mode": True})
    (one,), (other,) = (cards_of(config, size, CARD) for config in (awake, asleep))
    assert other.total < one.total


LINEAR = (
    *((f"{each}_proj", 4096, 4096) for each in "qo"),
    *((f"{each}_proj", 4096, 1024) for each in "kv"),
    *((f"{each}_proj", 4096, 14336) for each in ("gate", "up")),
    ("down_proj", 14336, 4096),
)


def test_an_adapter_of_eight_billion_fits_where_all_weights_do_not() -> None:
    """Llama-3.1-8B: 42 million parameters of rank 16, beside one copy in bf16."""
    size = replace(
        shaped(8.03), largest_layer=218_112_000, table=128_256 * 4096, num_layers=32, hidden=4096,
        inner=14336, heads=32, normed=2 * 4096, largest_matrix=4096 * 14336, linear=LINEAR,
    )  # fmt: skip
    learner = {"recompute_layers": True, "max_tokens_per_microbatch": 32768}
    adapter = configured("one-gpu", learner=learner | {"lora": {"rank": 16}})
    assert adapter_parameters(adapter.learner.lora, size) == 41_943_040
    check_gpu_memory(adapter, size, CARD)
    with pytest.raises(ValueError, match="GPU 0 must hold"):
        check_gpu_memory(configured("one-gpu", learner=learner), size, CARD)
    (one,) = cards_of(adapter, size, CARD)
    assert one.learner is not None
    held = one.learner.held
    assert held["weights"] == 2 * (size.num_parameters + 41_943_040)
    assert held["gradients"] == held["masters"] == held["moments"] // 2 == 4 * 41_943_040
    plain = adapter.engine.model_copy(update={"adapter": None})
    slots = adapter.engine.least_gpu_bytes(size) - plain.least_gpu_bytes(size)
    assert slots == 2 * 2 * 41_943_040, "as vLLM computes with it, and as it came"
    odd = adapter.engine.model_copy(
        update={"adapter": AdapterShape(rank=12, scale=2.0, modules=("q_proj",))}
    )
    slots = odd.least_gpu_bytes(size) - plain.least_gpu_bytes(size)
    assert slots == 2 * (16 + 12) * 32 * (4096 + 4096)
    few, all_attention = (
        adapter_parameters(LoraConfig(rank=16, targets=targets), size)
        for targets in (("q_proj",), "attention")
    )
    assert few < all_attention < 41_943_040


APART = {"num_devices": 2, "roles": "rollout: 0, learner: 1"}
LONG_ROWS = {"max_tokens_per_microbatch": 131072}


@pytest.mark.parametrize(
    ("card", "share", "changes", "sleeps"),
    [
        (CARD, 0.4, {}, False),
        (CARD, 0.6, {}, True),
        (2 * CARD, 0.6, {}, False),
        (CARD, 0.4, {"learner": LONG_ROWS}, True),
        (CARD, 0.6, {"engine": {"sleep_mode": False}}, False),
        (CARD, 0.9, {"cluster": APART}, False),
        (CARD, 0.6, {"scheduling": {"kind": "asynchronous"}, "cluster": APART}, False),
        (None, 0.6, {}, False),
        (None, 0.8, {}, True),
        (None, 0.8, {"cluster": APART}, False),
    ],
)
def test_engines_sleep_where_the_sum_asks_for_it(
    card: int | None, share: float, changes: dict[str, dict[str, object]], sleeps: bool
) -> None:
    engine = {"gpu_memory_utilization": share} | changes.get("engine", {})
    config = configured("one-gpu", **(changes | {"engine": engine}))
    size = shaped(1.5)
    chosen = with_sleep(config, size, card)
    assert chosen.engine.sleeps is sleeps
    if sleeps:
        check_gpu_memory(chosen, size, card)


def test_a_refusal_counts_engines_asleep_where_they_would_sleep() -> None:
    config = configured("one-gpu", engine={"gpu_memory_utilization": 0.6})
    with pytest.raises(ValueError, match="asleep while the learner trains") as refused:
        check_gpu_memory(with_sleep(config, shaped(3.5), CARD), shaped(3.5), CARD)
    assert "engine.sleep_mode" not in str(refused.value)


def test_weights_on_their_way_are_counted_where_they_are_copied() -> None:
    size = shaped(1.5)
    (in_place,) = cards_of(configured("one-gpu"), size, CARD)
    assert in_place.transfer == 0, "engines map the buffer on which the learner computes"
    (rounded,) = cards_of(configured("one-gpu", learner={"compute": "fp32"}), size, CARD)
    assert rounded.transfer == 2 * size.num_parameters
    sharded = cards_of(configured("eight-gpu"), size, CARD)
    assert {card.transfer for card in sharded} == {2 * (size.num_parameters + size.table)}
    apart = configured("one-gpu", cluster=APART)
    engine, learner = cards_of(apart, size, CARD)
    assert (engine.transfer, learner.transfer) == (2 * 2 * size.table, 0), "two buckets to receive"
    assert "weights on their way 1.05" in engine.explain()


def test_without_a_card_only_the_sum_is_told() -> None:
    config = configured("one-gpu")
    check_gpu_memory(config, shaped(70.0), None)
    assert " of " not in fullest_card(config, shaped(1.5), None).explain().rpartition(":")[2]


def test_cards_that_only_generate_hold_no_learner() -> None:
    config = configured("one-gpu", cluster={"num_devices": 2, "roles": "rollout: 0-1, learner: 0"})
    first, second = cards_of(config, shaped(1.5), CARD)
    assert second.learner is None
    assert first.total > second.total


def test_explain_prints_the_sum_beside_the_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    module = "flows.commands.algebra_rows"
    monkeypatch.setattr(f"{module}.present_model", lambda *_: tmp_path)
    monkeypatch.setattr(f"{module}.model_size", lambda _: shaped(3.0))
    told = dict(algebra_rows(configured("one-gpu"), CARD))["memory of GPU 0"]
    assert re.search(r"engine 32 .* \+ learner .*: [\d.]+ of 80 GB; does not fit: ", told)
    assert "memory of GPU 0" not in dict(algebra_rows(configured("tiny")))
