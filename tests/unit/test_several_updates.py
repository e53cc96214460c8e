"""Steps of several updates: their mini-batches, the proximal policy, and what one rank and two make
of them, compared with a loop of plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from learner_factories import make_group, make_model, parts_in_mini_batches, random_groups
from pydantic import ValidationError
from rank_processes import run_processes
from torch import Tensor
from transformers import LlamaForCausalLM

from artifacts.records import Group, pack, unpack
from flows.config.run_config import RunConfig
from research.benchmarks.naive_model import naive_logp, naive_model
from tasks.learner.advantage import ReinforcePlusPlusAdvantage
from tasks.learner.dealing import GroupPart, balance, mini_batches
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.losses.clipped import GspoLoss, PpoClipLoss
from tasks.learner.losses.weighted import CispoLoss, PolicyGradientLoss, ReinforceLoss
from tasks.learner.objective import DriftMask, Objective
from tasks.learner.optimizer import ShardedAdamW
from tasks.learner.packing import Sample
from tasks.learner.remote import LearnerActor
from tasks.learner.reports import (
    AccumulateReport,
    MadeUpdate,
    Skipped,
    UpdateReport,
    skipped_of,
    update_figures,
)
from tasks.learner.samples import moments_of, training_set
from tasks.learner.split import in_mini_batches
from tasks.learner.token_loss import TokenBatch
from tasks.learner.trainer import LearnerRank

CONFIG = LearnerConfig(
    compute="fp32",
    mini_batches=2,
    passes=2,
    max_tokens_per_microbatch=64,
    optimizer=AdamWConfig(learning_rate=1e-2, warmup_steps=2, epsilon=1e-4),
)
GROUPS = random_groups(7, num_groups=6)
FLAT = tuple(
    make_group((1, 2, place), [(3,), (4, 5)], [1.0, 1.0], prompt_id=f"0/{place}")
    for place in range(3)
)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def learner(path: str, config: LearnerConfig = CONFIG) -> LearnerRank:
    return LearnerRank(config=config, model_path=path, rank=0, world_size=1)


def take_all(
    rank: LearnerRank, groups: Sequence[Group], config: LearnerConfig = CONFIG
) -> AccumulateReport:
    """Every mini-batch of the first step to a single rank."""
    report, moments = AccumulateReport(), moments_of(groups, config.advantage)
    for mini_batch in mini_batches(groups, 1, config.mini_batches):
        (parts,) = balance(mini_batch, 1)
        report += rank.accumulate(pack(tuple(replace(part, moments=moments) for part in parts)))
    return report


# --- mini-batches ---


def names(batches: Sequence[Sequence[Group]]) -> list[list[str]]:
    return [[group.prompt.prompt_id for group in batch] for batch in batches]


def test_mini_batches_are_whole_even_and_the_same_in_any_order() -> None:
    groups = random_groups(3, num_groups=8)
    found = mini_batches(groups, 4, 3)
    assert [len(batch) for batch in found] == [3, 3, 2]
    assert sorted(chain(*names(found))) == sorted(group.prompt.prompt_id for group in groups)
    assert mini_batches(groups[::-1], 4, 3) == found
    assert names(mini_batches(groups, 5, 3)) != names(found), "every step mixes anew"
    assert [len(batch) for batch in mini_batches(groups[:2], 4, 3)] == [1, 1, 0]


def test_the_split_of_a_step_names_every_rank_in_every_mini_batch() -> None:
    """Whose mini-batch a group is in does not depend on the number of ranks."""
    alone, shared = (in_mini_batches(GROUPS[:3], 1, 2, ranks, True) for ranks in (1, 2))
    assert [share.rank for share in alone] == [0, 0]
    assert [share.rank for share in shared] == [0, 1, 0, 1]
    for place in range(2):
        together = sorted(shared[2 * place].parts + shared[2 * place + 1].parts)
        assert {name for name, _ in together} == {name for name, _ in alone[place].parts}


# --- the loss ---


@pytest.mark.parametrize(
    ("ratio", "behind", "advantage", "loss", "gradient"),
    [
        # policy over proximal, proximal over engine
        (1.1, 1.5, 1.0, -1.5 * 1.1, -1.5 * 1.1),
        (1.5, 1.5, 1.0, -1.5 * 1.28, 0.0),
        (1.5, 9.0, 1.0, -2.0 * 1.28, 0.0),
        (0.5, 0.5, 1.0, -0.5 * 0.5, -0.5 * 0.5),
        (0.5, 0.5, -2.0, 0.5 * 0.8 * 2, 0.0),
        (1.5, 3.0, -1.0, 2.0 * 1.5, 2.0 * 1.5),
    ],
)
def test_decoupled_ppo_clips_against_the_proximal_policy_and_weighs_it_against_the_engine(
    ratio: float, behind: float, advantage: float, loss: float, gradient: float
) -> None:
    def one(value: float) -> Tensor:
        return torch.tensor([value], dtype=torch.float64)

    batch = TokenBatch(
        sampling_logp=one(-2.0 - math.log(behind)),
        advantage=one(advantage),
        reward=one(1.0),
        weight=one(1.0),
        num_tokens=one(1.0),
        reference=None,
        mean_log_ratio=None,
        proximal=one(-2.0),
    )
    logp = one(-2.0 + math.log(ratio)).requires_grad_()
    result = PpoClipLoss().token_loss(logp, batch)
    (slope,) = torch.autograd.grad(result.loss.sum(), logp)
    assert result.loss.item() == pytest.approx(loss)
    assert slope.item() == pytest.approx(gradient)
    assert bool(result.clipped) is (gradient == 0)
    assert bool(result.truncated) is (behind > 2)


def test_a_kl_penalty_in_the_reward_is_that_of_the_proximal_policy() -> None:
    objective = Objective(
        loss=PpoClipLoss(), kl_coefficient=0.1, kl_estimator="k1", kl_place="reward"
    )
    proximal = torch.tensor([-1.0, -2.0])
    batch = TokenBatch(
        sampling_logp=proximal,
        advantage=torch.ones(2),
        reward=torch.ones(2),
        weight=torch.ones(2),
        num_tokens=torch.full((2,), 2.0),
        reference=proximal - torch.tensor([0.4, -0.2]),
        mean_log_ratio=None,
        proximal=proximal,
    )
    completed = objective.completed(torch.tensor([-0.3, -0.3]), batch, (2,))
    assert completed.advantage.tolist() == pytest.approx([1 - 0.1 * 0.2, 1 + 0.1 * 0.2])


# --- a rank ---

TermsOf = Callable[[Tensor, Tensor, Sample], Tensor]  # (logp, proximal, sample) -> losses of tokens


def plain_ppo(logp: Tensor, proximal: Tensor, sample: Sample) -> Tensor:
    """Decoupled PPO, spelled out."""
    ratio = torch.exp(logp - proximal)
    clipped = ratio.clamp(0.8, 1.28)
    kept = torch.minimum(ratio * sample.advantages[0], clipped * sample.advantages[0])
    weight = torch.exp(proximal - torch.from_numpy(sample.sampling_logp)).clamp(max=2.0)
    return -sample.weight * weight * kept


def naive_updates(path: str, terms_of: TermsOf, config: LearnerConfig) -> LlamaForCausalLM:
    """The step as a loop of plain PyTorch, one sequence at a time."""
    model = naive_model(path)
    moments = moments_of(GROUPS, config.advantage)
    data = [
        training_set(
            [
                GroupPart(group=group, places=tuple(range(4)), moments=moments)
                for group in mini_batch
            ],
            config.advantage,
            config.aggregation,
        )
        for mini_batch in mini_batches(GROUPS, 1, config.mini_batches)
    ]
    with torch.no_grad():
        proximal = [[naive_logp(model, sample)[0] for sample in part.samples] for part in data]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.5e-2, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0
    )
    for _ in range(config.passes):
        for part, before in zip(data, proximal, strict=True):
            terms = [
                terms_of(naive_logp(model, sample)[0], old, sample).sum()
                for sample, old in zip(part.samples, before, strict=True)
            ]
            (torch.stack(terms).sum() / part.normaliser).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_same_weights(rank: LearnerRank, model: LlamaForCausalLM) -> None:
    for name, parameter in model.named_parameters():
        found = rank._policy.parameters.view(name)
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-3, atol=2e-5)


def test_updates_are_those_of_a_plain_ppo_loop_over_the_same_mini_batches(model_path: str) -> None:
    rank = learner(model_path)
    take_all(rank, GROUPS)
    report = rank.update(1)
    assert_same_weights(rank, naive_updates(model_path, plain_ppo, CONFIG))
    assert report.learning_rate == 0.5e-2, "that of the step, in all of its updates"
    assert report.reasons == (None,) * 4
    assert rank._updater.optimizer.num_updates == 4
    first, *later = report.several
    assert (first.clip_fraction, first.proximal_k3) == (0.0, 0.0), "ratios of exactly 1"
    assert all(made.proximal_k3 > 1e-4 for made in later)
    assert later[-1].clip_fraction > 0.02, "the clip acts"
    assert report.computed.num_tokens_passed == 2 * sum(
        len(sample.response)
        for sample in training_set(GROUPS, CONFIG.advantage, CONFIG.aggregation).samples
        if sample.advantages[0]
    )


OBJECTIVES = {
    "engine": {"loss": PpoClipLoss(old_policy="engine", dual_clip=3.0)},
    "dual clip": {"loss": PpoClipLoss(dual_clip=1.3)},
    "gspo": {"loss": GspoLoss(clip_low=0.5, clip_high=0.5)},
    "cispo": {"loss": CispoLoss(), "kl_coefficient": 0.1},
    "gated": {
        "loss": ReinforceLoss(level="geometric"),
        "sequence_mask": DriftMask(statistic="geometric", bound=4.0),
        "kl_coefficient": 0.1,
        "kl_place": "reward",
    },
    "whole step": {"advantage": ReinforcePlusPlusAdvantage(baseline="step")},
}


@pytest.mark.parametrize("changes", OBJECTIVES.values(), ids=OBJECTIVES.keys())
def test_every_objective_goes_on_from_one_update_to_the_next(
    model_path: str, changes: dict[str, object]
) -> None:
    """Against the objective itself, differentiated by autograd on sequences of their own."""
    config = CONFIG.model_copy(update=changes)
    start = naive_model(model_path)

    def terms_of(logp: Tensor, proximal: Tensor, sample: Sample) -> Tensor:
        size = len(sample.response)
        with torch.no_grad():
            reference = naive_logp(start, sample)[0] if config.kl_coefficient else None
        batch = TokenBatch(
            sampling_logp=torch.from_numpy(sample.sampling_logp),
            advantage=torch.full((size,), sample.advantages[0]),
            reward=torch.full((size,), sample.reward),
            weight=torch.full((size,), sample.weight),
            num_tokens=torch.full((size,), float(size)),
            reference=reference,
            mean_log_ratio=None,
            proximal=proximal,
        )
        completed = config.objective.completed(logp, batch, (size,))
        return config.objective.weighted_loss(logp, completed)

    rank = learner(model_path, config)
    report = take_all(rank, GROUPS, config)
    assert 0 < report.num_responses_dropped < report.num_responses_droppable or (
        not config.sequence_mask.drops
    )
    assert rank.update(1).reasons == (None,) * 4
    assert_same_weights(rank, naive_updates(model_path, terms_of, config))


def test_a_step_of_one_update_is_bit_by_bit_one_adamw_step_on_the_summed_gradients(
    model_path: str,
) -> None:
    config = CONFIG.model_copy(update={"mini_batches": 1, "passes": 1})
    rank, other = learner(model_path, config), learner(model_path, config)
    normaliser = rank.accumulate(pack(GROUPS)).normaliser
    gradients = [gradient.clone() / normaliser for gradient in rank._policy.parameters.reduced()]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    clipped = [gradient * (1.0 / norm) for gradient in gradients] if norm > 1 else gradients
    optimizer = ShardedAdamW(config.optimizer, other._policy.parameters.pieces)
    optimizer.step(clipped, config.optimizer.rate(1))
    other._policy.parameters.publish()
    report = rank.update(1)
    assert report.several == ()
    assert report.grad_norm == pytest.approx(norm, rel=1e-9)
    assert torch.equal(rank._policy.parameters.values, other._policy.parameters.values)


def test_equal_steps_give_bitwise_equal_weights_and_a_discarded_one_leaves_no_trace(
    model_path: str,
) -> None:
    first, second = learner(model_path), learner(model_path)
    take_all(second, random_groups(8))
    second.discard()
    for rank in (first, second):
        take_all(rank, GROUPS)
        rank.update(1)
    assert torch.equal(first._policy.parameters.values, second._policy.parameters.values)


def test_a_mini_batch_without_a_gradient_is_left_out_and_the_others_are_not(
    model_path: str,
) -> None:
    """A group that says something, one with NaN, one of equal rewards, and none."""
    config = CONFIG.model_copy(update={"mini_batches": 4, "passes": 1})
    telling = make_group((1, 2, 9), [(3,), (4, 5)], [1.0, 0.0], prompt_id="0/9")
    nan = tuple(math.nan for _ in range(2))
    answer = telling.responses[1]
    spoilt = replace(answer, generated=replace(answer.generated, logprobs=nan))
    sick = replace(telling, responses=(telling.responses[0], spoilt))
    sick = replace(sick, prompt=replace(sick.prompt, prompt_id="0/8"))
    rank = learner(model_path, config)
    take_all(rank, (telling, sick, *FLAT[:1]), config)
    update = rank.update(1)
    expected = {None: 1, Skipped.NONFINITE: 1, Skipped.FLAT: 1, Skipped.EMPTY: 1}
    assert {reason: update.reasons.count(reason) for reason in expected} == expected
    assert update.applied
    assert rank._updater.optimizer.num_updates == 1
    figures = update_figures(update)
    assert figures["train/applied"] == figures["train/skipped_nonfinite"] == 1.0
    assert skipped_of(figures) is None
    assert rank._policy.parameters.values.isfinite().all()


def test_a_step_without_any_update_says_what_is_wrong_before_what_is_usual(
    model_path: str,
) -> None:
    rank = learner(model_path)
    take_all(rank, FLAT)
    assert rank.update(1).skipped is Skipped.FLAT
    made = MadeUpdate(
        skipped=Skipped.NONFINITE, normaliser=1.0, loss=1.0, grad_norm=1.0, busy=(0.0, 1.0)
    )
    several = (made, replace(made, skipped=Skipped.FLAT))
    report = UpdateReport(
        step=1,
        skipped=Skipped.NONFINITE,
        normaliser=2.0,
        loss=1.0,
        grad_norm=1.0,
        learning_rate=1.0,
        busy=(),
        several=several,
    )
    figures = update_figures(report)
    assert figures["train/applied"] == 0.0
    assert figures["train/update_2_grad_norm"] == 1.0
    assert skipped_of(figures) is Skipped.NONFINITE


def test_an_actor_makes_the_updates_of_a_step_once(model_path: str) -> None:
    actor = LearnerActor(CONFIG, model_path, rank=0, world_size=1, core_ids=(), device="cpu")
    for mini_batch in mini_batches(GROUPS, 1, 2):
        actor.accumulate(1, pack(mini_batch))
    told = actor.update(1)
    after = actor._rank.fingerprints()
    assert actor.accumulate(1, pack(GROUPS)) == b""
    assert actor.update(1) == told
    assert len(unpack(told).several) == 4
    assert actor._rank.fingerprints() == after


def _train(rank: int, path: str, out: str, placement: str) -> None:
    torch.set_num_threads(1)
    config = CONFIG.model_copy(update={"parameters": placement, "kl_coefficient": 0.05})
    member = LearnerRank(config=config, model_path=path, rank=rank, world_size=2)
    member.join(f"file://{out}/{placement}", 60.0)
    for step in (1, 2):
        for parts in parts_in_mini_batches(GROUPS, step, rank):
            member.accumulate(pack(parts))
        update = member.update(step)
        assert update.reasons == (None,) * 4
    torch.save([made.proximal_k3 for made in update.several], f"{out}/{placement}-{rank}.pt")
    member.save_checkpoint(f"{out}/{placement}-checkpoint", 2)
    member.close()


@pytest.mark.parametrize("placement", ["replicated", "sharded"])
def test_two_ranks_make_the_updates_of_one(model_path: str, tmp_path: Path, placement: str) -> None:
    arguments = [(rank, model_path, str(tmp_path), placement) for rank in range(2)]
    run_processes(_train, arguments)
    config = CONFIG.model_copy(update={"kl_coefficient": 0.05})
    alone, together = learner(model_path, config), learner(model_path, config)
    for step in (1, 2):
        for mini_batch in mini_batches(GROUPS, step, 2):
            alone.accumulate(pack(mini_batch))
        update = alone.update(step)
    assert together.load_checkpoint(str(tmp_path / f"{placement}-checkpoint")) == 2
    assert together._updater.optimizer.num_updates == 8
    size = alone._policy.parameters.num_elements
    got, expected = (rank._policy.parameters.values[:size] for rank in (together, alone))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=5e-5)
    told = [torch.load(tmp_path / f"{placement}-{rank}.pt") for rank in range(2)]
    assert told[0] == told[1]
    assert told[0] == pytest.approx([made.proximal_k3 for made in update.several], rel=1e-2)


# --- what is refused ---


def test_a_loss_that_corrects_nothing_has_one_update() -> None:
    with pytest.raises(ValidationError, match=r"must be 1 with .*policy_gradient.*got 3"):
        LearnerConfig(loss=PolicyGradientLoss(), passes=3)
    assert LearnerConfig(loss=PolicyGradientLoss()).num_updates == 1


def test_a_dual_clip_that_could_not_act_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"old_policy=engine, raise learner\.mini_batches"):
        LearnerConfig(loss=PpoClipLoss(dual_clip=3.0))
    assert LearnerConfig(loss=PpoClipLoss(dual_clip=3.0), mini_batches=2).num_updates == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"stream_trainer": {"enabled": True}}, "stream_trainer needs steps of one update"),
        ({"batch": {"prompts_per_step": 2}}, r"at most the groups that a step trains \(2\), got 3"),
    ],
)
def test_what_several_updates_cannot_go_with_is_refused(
    values: dict[str, object], words: str
) -> None:
    given = {"preset": "tiny-sync", "learner": {"mini_batches": 3}} | values
    with pytest.raises(ValidationError, match=words):
        RunConfig.model_validate(given)
