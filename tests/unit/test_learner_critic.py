"""Advantages by a critic: GAE by hand, the critic's loss and gradients, and steps of a learner that
has one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from learner_factories import (
    ALONE,
    make_group,
    make_model,
    one_row,
    parts_in_mini_batches,
    random_groups,
    with_episodes,
)
from pydantic import ValidationError
from rank_processes import run_processes
from torch import Tensor

from artifacts.records import Group, pack
from flows.config.run_config import RunConfig
from research.benchmarks.naive_model import naive_logp, naive_model
from tasks.learner.advantage import GaeAdvantage
from tasks.learner.critic import Critic, value_loss
from tasks.learner.dealing import mini_batches
from tasks.learner.gae import spread_of, token_advantages, token_rewards, whitened
from tasks.learner.learner_config import AdamWConfig, CriticConfig, LearnerConfig
from tasks.learner.memory import bytes_per_parameter
from tasks.learner.reports import Skipped, UpdateReport, update_figures
from tasks.learner.samples import training_set
from tasks.learner.trainer import LearnerRank

CONFIG = LearnerConfig(
    compute="fp32",
    advantage=GaeAdvantage(),
    max_tokens_per_microbatch=64,
    optimizer=AdamWConfig(learning_rate=1e-2, epsilon=1e-4),
    critic=CriticConfig(optimizer=AdamWConfig(learning_rate=5e-3, epsilon=1e-4)),
)
GROUPS = with_episodes(random_groups(7, num_groups=6), seed=7)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def learner(path: str, config: LearnerConfig = CONFIG) -> LearnerRank:
    return LearnerRank(config=config, model_path=path, rank=0, world_size=1)


def play(rank: LearnerRank, step: int, groups: Sequence[Group] = GROUPS) -> UpdateReport:
    for mini_batch in mini_batches(groups, step, rank._config.mini_batches):
        rank.accumulate(pack(mini_batch))
    return rank.update(step)


def critic_of(rank: LearnerRank) -> Critic:
    assert rank._critic is not None
    return rank._critic


def policy_values(rank: LearnerRank) -> Tensor:
    return rank._policy.parameters.values


def critic_values(rank: LearnerRank) -> Tensor:
    return critic_of(rank).parameters.values


# --- advantages ---


def test_gae_by_hand() -> None:
    """Four tokens, and a response of one that knows nothing of them."""
    rewards = token_rewards(torch.tensor([1.0] * 4 + [2.0]), None, (4, 1))
    assert rewards.tolist() == [0.0, 0.0, 0.0, 1.0, 2.0]
    values = torch.tensor([0.5, 0.4, 0.2, 0.1, 0.5])
    advantage = GaeAdvantage(gamma=0.9, trace_decay=0.5)
    found = token_advantages(rewards, values, (4, 1), advantage)
    # deltas: .9 .4 - .5 = -.14, .9 .2 - .4 = -.22, .9 .1 - .2 = -.11, 1 - .1 = .9
    third = -0.11 + 0.45 * 0.9
    second = -0.22 + 0.45 * third
    expected = [-0.14 + 0.45 * second, second, third, 0.9, 1.5]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_without_discount_and_decay_it_is_the_reward_to_go_less_the_value() -> None:
    penalty = torch.tensor([0.1, 0.2, -0.3, 0.4, 0.5])
    rewards = token_rewards(torch.tensor([1.0, 1.0, 1.0, -2.0, -2.0]), penalty, (3, 2))
    values = torch.tensor([0.5, -0.4, 0.2, 0.1, 0.3])
    found = token_advantages(rewards, values, (3, 2), GaeAdvantage(trace_decay=1.0))
    to_go = torch.tensor([1.0 - 0.0, 1.0 + 0.1, 1.0 + 0.3, -2.0 - 0.9, -2.0 - 0.5])
    torch.testing.assert_close(found, to_go - values)


def test_whitening_is_over_all_tokens_of_the_step() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([6.0])]
    spread = spread_of(rows, ALONE)
    assert (spread.mean, spread.variance) == (3.0, 7.0), "divided by one less than three"
    found = torch.cat([whitened(row, spread) for row in rows])
    torch.testing.assert_close(found, torch.tensor([-2.0, -1.0, 3.0]) / 7**0.5)
    alone = spread_of(rows[1:], ALONE)
    assert whitened(rows[1], alone).tolist() == [6.0]


# --- the critic ---


@pytest.mark.parametrize(
    ("value", "before", "target", "clip", "loss", "slope"),
    [
        (1.0, 0.0, 3.0, None, 2.0, -2.0),
        (0.2, 0.0, 3.0, 0.5, 3.92, -2.8),
        (1.0, 0.0, 3.0, 0.5, 3.125, 0.0),  # held at .5
        (1.0, 0.0, 0.2, 0.5, 0.32, 0.8),  # too far, and too far off
    ],
)
def test_the_value_loss_is_half_the_square_of_the_larger_error(
    value: float, before: float, target: float, clip: float | None, loss: float, slope: float
) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    given = (torch.tensor([before]).double(), torch.tensor([target]).double(), clip)
    found = value_loss(values, *given)
    (gradient,) = torch.autograd.grad(found.sum(), values)
    assert (found.item(), gradient.item()) == pytest.approx((loss, slope))
    assert torch.autograd.gradcheck(lambda moved: value_loss(moved, *given), (values,))


def test_values_and_gradients_are_those_of_an_ordinary_forward_pass(model_path: str) -> None:
    """The head set to something; one sequence at a time, by transformers and autograd."""
    critic = Critic(CriticConfig(value_clip=None), model_path, "fp32", False, ALONE)
    samples = training_set(GROUPS, CONFIG.advantage, CONFIG.aggregation).samples
    batch = one_row(samples)
    assert not critic.values(batch).any(), "a new critic says 0"
    torch.manual_seed(1)
    head = torch.nn.Linear(32, 1)
    for name in ("weight", "bias"):
        critic.parameters.view(f"head.{name}").copy_(getattr(head, name).detach())
    naive = naive_model(model_path)
    expected = []
    for sample in samples:
        ids = torch.from_numpy(sample.tokens)[None]
        hidden = naive.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        before = [len(sample.prompt) - 1 + place for place in sample.places]
        expected.append(head(hidden[before])[:, 0])
    values = torch.cat(expected)
    torch.testing.assert_close(critic.values(batch), values.detach(), rtol=1e-4, atol=1e-5)
    (values - 1.0).square().sum().backward()
    ones = torch.ones(len(values))
    critic.train(batch, 2 * ones, before=0 * ones, returns=ones)
    for name, parameter in [*naive.model.named_parameters(), *head.named_parameters()]:
        own = f"head.{name}" if name in ("weight", "bias") else f"backbone.{name}"
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(
            critic.parameters.gradient(own), parameter.grad, rtol=1e-3, atol=1e-4 * scale
        )


# --- a learner with a critic ---


def test_a_new_critic_gives_the_policy_the_discounted_reward_whitened(model_path: str) -> None:
    """All values are 0: a plain loop with advantages of lambda to the tokens that follow."""
    rank, model = learner(model_path), naive_model(model_path)
    data = training_set(GROUPS, CONFIG.advantage, CONFIG.aggregation)
    raw = [
        sample.reward * torch.tensor([0.95**left for left in range(sample.num_sampled)]).flip(0)
        for sample in data.samples
    ]
    everything = torch.cat(raw)
    terms = []
    for sample, own in zip(data.samples, raw, strict=True):
        advantages = (own - everything.mean()) / everything.std()
        logp = naive_logp(model, sample)[0]
        weight = torch.exp(logp.detach() - torch.from_numpy(sample.sampling_logp)).clamp(max=2.0)
        terms.append(-(weight * advantages * logp).sum())
    (torch.stack(terms).sum() / data.normaliser).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(
        model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0
    ).step()
    report = play(rank, 1)
    for name, parameter in model.named_parameters():
        found = rank._policy.parameters.view(name)
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-3, atol=2e-5)
    assert report.critic is not None
    assert report.critic.explained_variance == 0.0, "values that are all alike explain nothing"
    figures = update_figures(report)
    expected = 0.5 * everything.square().sum() / data.normaliser
    assert figures["train/value_loss"] == pytest.approx(float(expected), rel=1e-4)


def test_the_value_loss_falls_on_a_fixed_batch_and_values_come_to_explain_returns(
    model_path: str,
) -> None:
    """The policy stands still: lambda 1, so that the returns are the rewards."""
    optimizer = AdamWConfig(learning_rate=1e-9)
    advantage = GaeAdvantage(trace_decay=1.0)
    rank = learner(
        model_path, CONFIG.model_copy(update={"optimizer": optimizer, "advantage": advantage})
    )
    told = [play(rank, step).critic for step in range(1, 31)]
    first, last = told[0], told[-1]
    assert first is not None
    assert last is not None
    assert last.loss < 0.5 * first.loss
    assert last.explained_variance > 0.25 > first.explained_variance == 0.0


def test_a_kl_penalty_in_the_reward_reaches_the_advantages_and_not_the_loss(
    model_path: str,
) -> None:
    """At the first step the policy is the reference: the penalty is 0, and so is the difference."""
    changes = {"kl_coefficient": 0.5, "kl_place": "reward", "kl_estimator": "k1"}
    plain, penalised = learner(model_path), learner(model_path, CONFIG.model_copy(update=changes))
    for rank in (plain, penalised):
        play(rank, 1)
    values = [rank._policy.parameters.values for rank in (plain, penalised)]
    torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)
    for rank in (plain, penalised):
        play(rank, 2)
    assert not penalised._config.objective.needs_whole_responses, "it would be taken off again"
    assert (values[0] - values[1]).abs().max() > 1e-4, "from the second on it is not"


def test_the_critic_may_learn_first(model_path: str) -> None:
    warm = CONFIG.model_copy(
        update={"critic": CONFIG.critic.model_copy(update={"warmup_steps": 1}), "passes": 2}
    )
    rank = learner(model_path, warm)
    before, valued = rank.fingerprints(), critic_of(rank).parameters.values.clone()
    update = play(rank, 1)
    assert update.skipped is Skipped.CRITIC_WARMUP
    assert update.reasons == (Skipped.CRITIC_WARMUP,) * 2
    assert rank.fingerprints() == before
    assert not torch.equal(critic_of(rank).parameters.values, valued)
    assert play(rank, 2).applied
    assert rank._updater.optimizer.num_updates == 2


def test_a_checkpoint_brings_policy_and_critic_back_bit_by_bit(
    model_path: str, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"mini_batches": 2, "passes": 2})
    original, restored = learner(model_path, config), learner(model_path, config)
    play(original, 1)
    original.save_checkpoint(str(tmp_path / "one"), 1)
    play(restored, 1, random_groups(9))
    assert restored.load_checkpoint(str(tmp_path / "one")) == 1
    for rank in (original, restored):
        play(rank, 2)
    for values_of in (policy_values, critic_values):
        assert torch.equal(values_of(original), values_of(restored))


def test_a_step_that_is_made_again_comes_to_the_very_bits(model_path: str) -> None:
    first, again = learner(model_path), learner(model_path)
    again.accumulate(pack(GROUPS[:2]))
    again.discard()
    for rank in (first, again):
        for step in (1, 2):
            play(rank, step)
    for values_of in (policy_values, critic_values):
        assert torch.equal(values_of(first), values_of(again))


def _train(rank: int, path: str, out: str) -> None:
    torch.set_num_threads(1)
    config = CONFIG.model_copy(update={"mini_batches": 2})
    member = LearnerRank(config=config, model_path=path, rank=rank, world_size=2)
    member.join(f"file://{out}/meeting", 60.0)
    for step in (1, 2):
        for parts in parts_in_mini_batches(GROUPS, step, rank):
            member.accumulate(pack(parts))
        update = member.update(step)
    torch.save(update.critic, f"{out}/{rank}.pt")
    member.save_checkpoint(f"{out}/checkpoint", 2)
    member.close()


def test_two_ranks_make_the_updates_of_one(model_path: str, tmp_path: Path) -> None:
    run_processes(_train, [(rank, model_path, str(tmp_path)) for rank in range(2)])
    config = CONFIG.model_copy(update={"mini_batches": 2})
    alone, together = learner(model_path, config), learner(model_path, config)
    for step in (1, 2):
        update = play(alone, step)
    assert together.load_checkpoint(str(tmp_path / "checkpoint")) == 2
    for values_of in (policy_values, critic_values):
        torch.testing.assert_close(values_of(together), values_of(alone), rtol=1e-3, atol=5e-5)
    told = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    assert told[0] == told[1]
    assert update.critic is not None
    assert told[0].loss == pytest.approx(update.critic.loss, rel=1e-3)
    assert told[0].explained_variance == pytest.approx(update.critic.explained_variance, abs=1e-3)


def test_groups_whose_rewards_agree_are_trained(model_path: str) -> None:
    flat = make_group((1, 2), [(3,), (4, 5)], [1.0, 1.0])
    report = learner(model_path).accumulate(pack((flat,)))
    assert (report.num_responses_skipped, report.num_tokens_scored) == (0, 3)


def test_a_critic_doubles_what_is_trained() -> None:
    plain = LearnerConfig()
    with_critic = plain.model_copy(update={"advantage": GaeAdvantage()})
    assert bytes_per_parameter(with_critic, 2) == 2 * bytes_per_parameter(plain, 2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learner": {"parameters": "sharded"}}, "a critic cannot be sharded"),
        ({"stream_trainer": {"enabled": True}}, "waits for all rewards of the step"),
    ],
)
def test_what_a_critic_cannot_go_with_is_refused(values: dict[str, object], words: str) -> None:
    learner = {"advantage": {"kind": "gae"}} | values.get("learner", {})
    with pytest.raises(ValidationError, match=words):
        RunConfig.model_validate({"preset": "tiny"} | values | {"learner": learner})
