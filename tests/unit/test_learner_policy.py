"""The packed, shared forward and backward equal the ordinary ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learner_factories import ALONE, make_model, one_row, random_groups, run_rows, with_episodes
from transformers import Phi3Config, Phi3ForCausalLM
from turn_factories import VOCABULARY

from research.benchmarks.naive_model import naive_logp, naive_model
from tasks.learner import head, tree_attention
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.critic import Critic
from tasks.learner.learner_config import CriticConfig
from tasks.learner.log_ratios import k3
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.packing import Sample
from tasks.learner.parameters import ReplicatedParameters
from tasks.learner.policy import load_policy, load_reference
from tasks.learner.samples import SequenceMean, training_set


def samples(seed: int) -> list[Sample]:
    groups = with_episodes(random_groups(seed), seed)
    return list(training_set(groups, GrpoAdvantage(), SequenceMean()).samples)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("max_tokens", [20, 10_000])
def test_packed_gradients_equal_naive_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool, max_tokens: int
) -> None:
    monkeypatch.setattr(tree_attention, "QUERIES_PER_BLOCK", 16)
    monkeypatch.setattr(head, "ROWS_PER_CHUNK", 24)
    path = make_model(tmp_path, tied)
    policy = load_policy(path, "fp32", ALONE)
    step = MicroStep(
        Objective(loss=ReinforceLoss(), kl_coefficient=0.1),
        0.8,
        policy,
        load_reference(path, "fp32", ALONE),
    )
    total = run_rows(step, samples(3), max_tokens).loss_sum

    model = naive_model(path)
    expected = torch.zeros(())
    for sample in samples(3):
        logp, _ = naive_logp(model, sample, temperature=0.8)
        correction = (logp.detach() - torch.from_numpy(sample.sampling_logp)).exp().clamp(max=2.0)
        loss = -correction * sample.advantages[0] * logp + 0.1 * k3(logp, logp.detach())
        expected = expected + sample.weight * loss.sum()
    expected.backward()

    assert total == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            policy.parameters.gradient(name), parameter.grad, rtol=1e-4, atol=2e-6
        )


def test_log_probabilities_and_entropies_equal_naive_ones(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    batch = one_row(samples(5))
    result = load_policy(path, "fp32", ALONE).score(batch)
    with torch.no_grad():
        pairs = [naive_logp(naive_model(path), sample) for sample in samples(5)]
    torch.testing.assert_close(
        result.logp, torch.cat([logp for logp, _ in pairs]), rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        result.entropy, torch.cat([entropy for _, entropy in pairs]), rtol=1e-5, atol=1e-5
    )
    assert result.grad_hidden is None


def test_layers_that_are_recomputed_drop_nothing_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.5,
    )
    Phi3ForCausalLM(config).save_pretrained(tmp_path)
    batch = one_row(samples(5))
    kept = load_policy(str(tmp_path), "fp32", ALONE)
    recomputed = load_policy(str(tmp_path), "fp32", ALONE, recompute_layers=True)
    torch.testing.assert_close(recomputed.score(batch).logp, kept.score(batch).logp)
    critic = Critic(CriticConfig(), str(tmp_path), "fp32", True, ALONE)
    critic.parameters.view("head.weight").fill_(1.0)
    torch.testing.assert_close(critic.values(batch), critic.values(batch))


def test_a_backward_pass_that_was_interrupted_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(make_model(tmp_path), "fp32", ALONE)
    step = MicroStep(Objective(loss=ReinforceLoss()), 1.0, policy, None)
    batch = one_row(samples(3))
    step.run(batch)
    expected = policy.parameters.gradients.clone()
    policy.parameters.discard()

    whole = policy.parameters.gradient
    interrupted_at = "model.layers.0.mlp.down_proj.weight"

    def gradient(name: str) -> torch.Tensor:
        if name == interrupted_at:
            raise MemoryError
        return whole(name)

    monkeypatch.setattr(policy.parameters, "gradient", gradient)
    with pytest.raises(MemoryError):
        step.run(batch)
    monkeypatch.setattr(policy.parameters, "gradient", whole)
    policy.parameters.discard()
    step.run(batch)
    torch.testing.assert_close(policy.parameters.gradients, expected)


def test_mixed_weights_are_those_of_bf16_multiplied_in_fp32(tmp_path: Path) -> None:
    """So that learner and engines have the same numbers where bf16 is not multiplied."""
    path = make_model(tmp_path)
    mixed, rounded = (load_policy(path, compute, ALONE) for compute in ("mixed", "bf16"))
    exact = load_policy(path, "fp32", ALONE)
    for held in (mixed, load_reference(path, "mixed", ALONE)):
        assert held.parameters.compute is torch.float32
        for name, tensor in rounded.parameters.exported():
            with held.parameters.whole(name) as own:
                assert torch.equal(own, tensor.float())
    assert isinstance(mixed.parameters, ReplicatedParameters)
    for piece, other in zip(mixed.parameters.pieces, exact.parameters.pieces, strict=True):
        assert torch.equal(piece.masters, other.masters), "which keep what is lost"
        piece.masters.add_(1e-3)
        other.masters.add_(1e-3)
    mixed.parameters.publish()
    exact.parameters.publish()
    for name, tensor in exact.parameters.exported():
        with mixed.parameters.whole(name) as own:
            assert torch.equal(own, tensor.bfloat16().float())
