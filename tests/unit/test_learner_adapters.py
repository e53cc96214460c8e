"""Adapters in the learner: gradients of a plain loop, the base as reference, what is published,
saved, exported and begun with, on one rank. Two ranks and sharded bases: `test_learner_sharded`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_factories import ALONE, add_adapter, make_model, one_row, random_groups
from plan_factories import CONTEXT
from torch import Tensor
from transformers import Qwen3MoeConfig

from artifacts.adapter_files import A, B, merged_weights, read_adapter, write_adapter, write_merged
from artifacts.records import pack
from artifacts.weight_files import weight_files
from artifacts.weights import fingerprint, read_weights
from flows.config.run_config import RunConfig
from research.benchmarks.naive_model import naive_logp, naive_model
from tasks.checkpointing import export_model
from tasks.engines.base import AdapterShape
from tasks.learner.adapters import check_adapter
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.lora_config import LoraConfig
from tasks.learner.losses.weighted import PolicyGradientLoss
from tasks.learner.memory import adapter_parameters, model_size
from tasks.learner.policy import load_policy, load_reference
from tasks.learner.trainer import LearnerRank

LORA = LoraConfig(rank=4)
CONFIG = LearnerConfig(
    compute="fp32",
    lora=LORA,
    max_tokens_per_microbatch=64,
    optimizer=AdamWConfig(learning_rate=1e-2),
)


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    return make_model(tmp_path / "model")


def changed(**settings: Any) -> LearnerConfig:  # Any: values of fields of the adapter
    lora = LoraConfig.model_validate({**LORA.model_dump(exclude_unset=True), **settings})
    return CONFIG.model_copy(update={"lora": lora})


def trained(path: str, config: LearnerConfig = CONFIG, num_steps: int = 2) -> LearnerRank:
    rank = LearnerRank(config, path, 0, 1)
    for step in range(1, num_steps + 1):
        rank.accumulate(pack(random_groups(step)))
        assert rank.update(step).applied
    return rank


def published(rank: LearnerRank, path: Path) -> dict[str, Tensor]:
    reference = rank.export_weights(1, str(path / "exported.safetensors"))
    assert reference is not None
    return dict(read_weights(reference.path))


def adapted(path: str, adapter: dict[str, Tensor], scale: float) -> Any:  # Any: of transformers
    """The plain model with the adapter."""
    model = naive_model(path)
    add_adapter(model, adapter, scale)
    return model


def adapter_of(rank: LearnerRank) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in rank._policy.parameters.exported()}


@pytest.mark.parametrize("rank_stable", [False, True])
def test_gradients_are_those_of_a_plain_loop(model_path: str, rank_stable: bool) -> None:
    """After two updates, when neither matrix is zero: of every group's loss over each sequence by
    itself, in fp32."""
    config = changed(rank_stable=rank_stable, alpha=6.0)
    config = config.model_copy(update={"loss": PolicyGradientLoss()})
    rank = trained(model_path, config)
    scale = 6.0 / (2.0 if rank_stable else 4.0)
    groups = random_groups(7)
    report = rank.accumulate(pack(groups))
    leaves = {name: each.requires_grad_() for name, each in adapter_of(rank).items()}
    assert all(each.any() for each in leaves.values())
    model = adapted(model_path, leaves, scale)
    total = torch.zeros(())
    for sample in config.training_set(groups).samples:
        logp, _ = naive_logp(model, sample)
        advantages = torch.tensor(
            [
                advantage
                for advantage, places in zip(sample.advantages, sample.sampled, strict=True)
                for _ in places
            ]
        )
        total = total - sample.weight * (advantages * logp).sum()
    total.backward()
    assert report.normaliser > 0
    for name, leaf in leaves.items():
        got = rank._policy.parameters.gradient(name)
        assert leaf.grad is not None
        largest = float(leaf.grad.abs().max())
        torch.testing.assert_close(got, leaf.grad, rtol=0, atol=1e-5 * max(largest, 1.0))


def test_the_first_version_is_the_model(model_path: str) -> None:
    policy = load_policy(model_path, "fp32", ALONE, lora=LORA)
    reference = load_reference(model_path, "fp32", ALONE)
    row = one_row(CONFIG.training_set(random_groups(3)).samples)
    assert torch.equal(policy.score(row).logp, reference.score(row).logp)


def test_the_reference_is_the_policy_without_its_adapter(model_path: str) -> None:
    config = CONFIG.model_copy(update={"kl_coefficient": 0.1})
    rank = trained(model_path, config)
    row = one_row(config.training_set(random_groups(3)).samples)
    reference = rank._micro_step._reference
    assert reference is not None
    expected = load_reference(model_path, "fp32", ALONE).score(row).logp
    assert torch.equal(reference.score(row).logp, expected)
    assert not torch.equal(rank._policy.score(row).logp, expected), "it is on again"
    report = rank.accumulate(pack(random_groups(4)))
    assert report.reference_kl_sum > 0


def test_only_the_adapter_is_trained_published_and_saved(model_path: str, tmp_path: Path) -> None:
    rank = trained(model_path)
    names = set(adapter_of(rank))
    layers = [f"model.layers.{layer}" for layer in range(2)]
    leaves = [*(f"self_attn.{each}_proj" for each in "qkvo")]
    leaves += [f"mlp.{each}_proj" for each in ("gate", "up", "down")]
    number = sum(each.numel() for each in adapter_of(rank).values())
    assert number == adapter_parameters(LORA, model_size(Path(model_path)))
    assert names == {f"{at}.{leaf}{end}" for at in layers for leaf in leaves for end in (A, B)}
    assert set(rank.fingerprints()) == names == set(published(rank, tmp_path))
    assert {piece.name for piece in rank._updater.optimizer.pieces} == names
    base = dict(load_reference(model_path, "fp32", ALONE).parameters.exported())
    for name, tensor in rank._policy.parameters._base.exported():
        assert fingerprint(tensor) == fingerprint(base[name])
    rank.save_checkpoint(str(tmp_path / "checkpoint"), 2)
    again = LearnerRank(CONFIG, model_path, 0, 1)
    assert again.load_checkpoint(str(tmp_path / "checkpoint")) == 2
    assert again.fingerprints() == rank.fingerprints()
    for each in (rank, again):
        each.accumulate(pack(random_groups(5)))
        each.update(3)
    assert again.fingerprints() == rank.fingerprints(), "the next step is the same, to the bit"


def test_merged_weights_are_the_model_with_its_adapter(model_path: str, tmp_path: Path) -> None:
    """Published by the run itself, and made from files: the same bytes."""
    merged, beside = (trained(model_path, changed(publish=kind)) for kind in ("merged", "adapter"))
    assert changed(publish="merged").lora.engine_shape is None
    assert changed().lora.engine_shape == AdapterShape(rank=4, scale=2.0, modules=LORA.modules)
    found = published(merged, tmp_path / "merged")
    base = load_reference(model_path, "fp32", ALONE).parameters.exported()
    made = dict(merged_weights(base, adapter_of(beside), 2.0))
    assert found.keys() == made.keys()
    for name, tensor in made.items():
        assert torch.equal(found[name], tensor.to(torch.bfloat16))
    plain = naive_model(model_path)
    plain.load_state_dict({name: each.float() for name, each in made.items()}, strict=False)
    sample = CONFIG.training_set(random_groups(3)).samples[0]
    row = one_row([sample])
    expected, _ = naive_logp(plain, sample)
    torch.testing.assert_close(beside._policy.score(row).logp, expected, rtol=0, atol=1e-4)


def test_an_adapter_is_written_and_begun_with(model_path: str, tmp_path: Path) -> None:
    rank = trained(model_path)
    write_adapter(tmp_path / "saved", adapter_of(rank), scale=2.0, base_model="base")
    saved = read_adapter(str(tmp_path / "saved"))
    assert saved.scale == 2.0
    again = LearnerRank(changed(initial=str(tmp_path / "saved")), model_path, 0, 1)
    assert again.fingerprints() == rank.fingerprints()
    for settings in ({"rank": 8}, {"alpha": 4.0}, {"targets": "attention"}):
        with pytest.raises(ValueError, match="with the rank, alpha and targets"):
            LearnerRank(changed(initial=str(tmp_path / "saved"), **settings), model_path, 0, 1)
    with pytest.raises(ValueError, match="is not"):
        LearnerRank(changed(initial=str(tmp_path / "nowhere")), model_path, 0, 1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_run_exports_its_adapter_and_the_model_with_it(tmp_path: Path, tied: bool) -> None:
    """The model of several files, as merged in memory; PEFT, if it is here, says the same."""
    path = make_model(tmp_path / "model", tied=tied)
    naive_model(path).save_pretrained(path, max_shard_size="20KB")
    (tmp_path / "model" / "model.safetensors").unlink()
    rank = trained(path)
    reference = rank.export_weights(2, str(tmp_path / "2.safetensors"))
    assert reference is not None
    run = replace(CONTEXT, model_path=path, artifact_root=str(tmp_path), learner=CONFIG)
    assert export_model(run, reference, "me/base").endswith("/model")
    folder = tmp_path / run.run_id
    adapter = {name: each.bfloat16() for name, each in adapter_of(rank).items()}
    saved = read_adapter(str(folder / "adapter"))
    assert saved.scale == 2.0
    assert all(torch.equal(saved.tensors[name], each) for name, each in adapter.items())
    base = load_reference(path, "bf16", ALONE).parameters.exported()
    expected = dict(merged_weights(base, adapter, 2.0))
    exported = dict(read_weights(folder / "model" / "model.safetensors"))
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], each) for name, each in expected.items())
    sample = CONFIG.training_set(random_groups(3)).samples[0]
    peft = pytest.importorskip("peft")
    plain = naive_model(path).bfloat16().float()
    with torch.no_grad():
        merged, _ = naive_logp(naive_model(str(folder / "model")), sample)
        before, _ = naive_logp(plain, sample)
        beside = peft.PeftModel.from_pretrained(plain, folder / "adapter")
        after, _ = naive_logp(beside, sample)
    assert float((after - merged).abs().max()) < 0.1 * float((after - before).abs().max())


def test_an_adapter_of_another_model_is_not_exported(model_path: str, tmp_path: Path) -> None:
    rank = trained(model_path, num_steps=1)
    adapter = {name.replace("layers.1", "layers.9"): v for name, v in adapter_of(rank).items()}
    with pytest.raises(ValueError, match=r"has no model\.layers\.9\.mlp\.down_proj\.weight"):
        write_merged(
            weight_files(Path(model_path)), adapter, 2.0, {}, tmp_path / "made.safetensors"
        )


def test_targets_choose_the_matrices(model_path: str) -> None:
    for targets, leaves in (
        ("attention", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (("q_proj", "down_proj"), {"q_proj", "down_proj"}),
    ):
        rank = LearnerRank(changed(targets=targets), model_path, 0, 1)
        assert {name.split(".")[-3] for name in rank.fingerprints()} == leaves
    with pytest.raises(ValueError, match=r"got \['qq'\]; the model has down_proj"):
        LearnerRank(changed(targets=("q_proj", "qq")), model_path, 0, 1)


def test_what_a_model_cannot_have_is_told_by_its_configuration(
    model_path: str, tmp_path: Path
) -> None:
    check_adapter(LORA, Path(model_path))
    with pytest.raises(ValueError, match=r"got \['qq'\]; the model has down_proj"):
        check_adapter(changed(targets=("q_proj", "qq")).lora, Path(model_path))
    write_adapter(
        tmp_path / "saved", adapter_of(LearnerRank(CONFIG, model_path, 0, 1)), scale=2.0,
        base_model="base",
    )  # fmt: skip
    initial = changed(initial=str(tmp_path / "saved")).lora
    initial.check_initial()
    check_adapter(initial, Path(model_path))
    with pytest.raises(ValueError, match="with the rank, alpha and targets"):
        check_adapter(initial.model_copy(update={"rank": 8}), Path(model_path))
    with pytest.raises(ValueError, match=r"model has no adapter_config\.json; give the folder"):
        changed(initial=model_path).lora.check_initial()
    experts = Qwen3MoeConfig(
        vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_experts=2, moe_intermediate_size=8, intermediate_size=8,
    )  # fmt: skip
    experts.save_pretrained(tmp_path / "experts")
    with pytest.raises(ValueError, match=r"in a model with experts, .* got all; set"):
        check_adapter(LORA, tmp_path / "experts")
    check_adapter(changed(targets="attention").lora, tmp_path / "experts")


@pytest.mark.parametrize(
    "engine", [{"kind": "simulated"}, {"kind": "custom", "path": "examples.echo_engine:EchoEngine"}]
)
def test_any_engine_may_have_an_adapter(engine: dict[str, str]) -> None:
    learner = {"lora": {"rank": 4}, "advantage": {"kind": "gae"}}
    config = RunConfig.model_validate({"preset": "tiny", "engine": engine, "learner": learner})
    assert config.engine.adapter == AdapterShape(rank=4, scale=2.0, modules=LORA.modules)


def test_settings_of_no_adapter_are_refused() -> None:
    with pytest.raises(ValueError, match=r"learner\.lora\.alpha needs an adapter"):
        LoraConfig(alpha=2.0)
    with pytest.raises(ValueError, match="must name a matrix"):
        LoraConfig(rank=2, targets=())


def test_every_start_draws_the_same_adapter(model_path: str) -> None:
    first, second = (LearnerRank(CONFIG, model_path, 0, 1) for _ in range(2))
    assert first.fingerprints() == second.fingerprints()
    drawn = [each for name, each in adapter_of(first).items() if name.endswith(A)]
    assert len({fingerprint(each) for each in drawn}) == len(drawn), "each its own"


def test_layers_that_are_recomputed_have_the_same_gradients(model_path: str) -> None:
    kept, recomputed = (
        trained(model_path, CONFIG.model_copy(update={"recompute_layers": each}))
        for each in (False, True)
    )
    assert kept.fingerprints() == recomputed.fingerprints()
