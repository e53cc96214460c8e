"""Invariant 14 in the learner: what was given within an episode is read, and is in nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from learner_factories import make_group, make_model, one_row, random_groups, with_episodes
from torch.nn.functional import cross_entropy
from turn_factories import as_episode

from artifacts.episodes import Ending
from artifacts.records import Group, Outcome, Response, VersionSpan, pack, sampled_versions
from research.benchmarks.naive_model import naive_model
from tasks.learner.advantage import (
    Advantage,
    DrGrpoAdvantage,
    GaeAdvantage,
    GrpoAdvantage,
    ReinforcePlusPlusAdvantage,
)
from tasks.learner.dealing import as_part, predicted_cost, rows_of
from tasks.learner.gae import token_advantages, token_rewards
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.losses.weighted import PolicyGradientLoss
from tasks.learner.objective import DriftMask
from tasks.learner.overlong import SoftPunishment
from tasks.learner.samples import (
    ConstantLength,
    SequenceMean,
    TokenMean,
    TrainingSet,
    advantages_of,
    moments_of,
    training_set,
)
from tasks.learner.trainer import LearnerRank

PLAIN = LearnerConfig(compute="fp32", max_tokens_per_microbatch=64)
CONFIGS = {
    "one update": PLAIN,
    "everything that looks at whole responses": PLAIN.model_copy(
        update={
            "mini_batches": 2,
            "passes": 2,
            "sequence_mask": DriftMask(bound=2.0),
            "kl_coefficient": 0.1,
            "kl_place": "reward",
            "entropy_coefficient": 0.01,
        }
    ),
    "critic": PLAIN.model_copy(update={"advantage": GaeAdvantage()}),
}
# two turns and an observation after the last action; one turn that goes on after it was cut
TURNS = (((9, 8), 2), ((7,), 3), ((6, 5), 0))


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def learner(path: str, config: LearnerConfig = PLAIN) -> LearnerRank:
    return LearnerRank(config=config, model_path=path, rank=0, world_size=1)


def updated(rank: LearnerRank, groups: Sequence[Group], number: int) -> torch.Tensor:
    """Weights after a step of so many mini-batches."""
    for start in range(number):
        rank.accumulate(pack(tuple(groups[start::number])))
    rank.update(1)
    return rank._policy.parameters.values


def with_noise(group: Group, rng: random.Random) -> Group:
    """Other log-probabilities of given tokens; other tokens where nothing is sampled after them."""

    def noisy(response: Response) -> Response:
        generated = response.generated
        if generated.episode is None:
            return response
        sampled = {place for places in generated.sampled for place in places}
        last = max(sampled, default=-1)
        numbers = enumerate(zip(generated.token_ids, generated.logprobs, strict=True))
        changed = [
            (
                token if place <= last else rng.randrange(61),
                logprob if place in sampled else rng.choice([-rng.random(), 5.0, float("nan")]),
            )
            for place, (token, logprob) in numbers
        ]
        tokens, logprobs = zip(*changed, strict=True) if changed else ((), ())
        return replace(response, generated=replace(generated, token_ids=tokens, logprobs=logprobs))

    return replace(group, responses=tuple(map(noisy, group.responses)))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_is_said_of_given_tokens_changes_no_weight(
    model_path: str, config: LearnerConfig
) -> None:
    """To the last bit: their behaviour log-probabilities, and tokens after the last action."""
    groups = with_episodes(random_groups(3, num_groups=6), seed=3)
    rng = random.Random(5)
    noisy = tuple(with_noise(group, rng) for group in groups)
    assert pack(noisy) != pack(groups)
    before = learner(model_path, config)._policy.parameters.values.clone()
    found = [
        updated(learner(model_path, config), each, config.mini_batches) for each in (groups, noisy)
    ]
    assert torch.equal(*found)
    assert not torch.equal(found[0], before)


@pytest.mark.parametrize(
    "normalisation", [TokenMean(), SequenceMean(), ConstantLength(length_tokens=8)]
)
def test_gradients_of_episodes_are_those_of_an_ordinary_loop_over_their_sampled_tokens(
    model_path: str, normalisation: TokenMean | SequenceMean | ConstantLength
) -> None:
    """Masked cross-entropy of whole sequences: labels of given tokens are ignored."""
    group = make_group((1, 2, 3), [(11, 12, 13, 14, 15), (16, 17)], [1.0, 0.0])
    first = as_episode(group.responses[0].generated, TURNS)
    second = as_episode(group.responses[1].generated, (((9, 8), 1), ((4, 4, 4), 1)))
    episodes = replace(
        group,
        responses=(
            replace(group.responses[0], generated=first),
            replace(group.responses[1], generated=second),
        ),
    )
    config = PLAIN.model_copy(
        update={
            "loss": PolicyGradientLoss(),
            "advantage": DrGrpoAdvantage(),
            "aggregation": normalisation,
        }
    )
    rank = learner(model_path, config)
    report = rank.accumulate(pack((episodes,)))

    model = naive_model(model_path)
    ids = [
        [1, 2, 3, 9, 8, 11, 12, 7, 13, 14, 15, 6, 5],
        [1, 2, 3, 9, 8, 16, 4, 4, 4, 17],
    ]
    labels = [
        [-100] * 5 + [11, 12, -100, 13, 14, 15, -100, -100],
        [-100] * 5 + [16, -100, -100, -100, 17],
    ]
    weights = {"token_mean": (1, 1), "sequence_mean": (1 / 5, 1 / 2), "constant": (1 / 8, 1 / 8)}
    total = torch.zeros(())
    for sequence, told, advantage, weight in zip(
        ids, labels, (0.5, -0.5), weights[normalisation.kind], strict=True
    ):
        logits = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0, :-1]
        lost = cross_entropy(logits, torch.tensor(told[1:]), ignore_index=-100, reduction="sum")
        total = total + weight * advantage * lost
    total.backward()

    assert report.normaliser == (7.0 if normalisation.kind == "token_mean" else 2.0)
    assert (report.num_tokens, report.num_tokens_scored) == (7, 7)
    assert report.num_tokens_computed == 5 + 5 + 4, "the head once, no last action, nothing after"
    assert report.loss_sum == pytest.approx(total.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            rank._policy.parameters.gradient(name), parameter.grad, rtol=1e-4, atol=2e-6
        )


@pytest.mark.parametrize(
    "normalisation", [TokenMean(), SequenceMean(), ConstantLength(length_tokens=8)]
)
def test_an_episode_whose_history_was_written_anew_is_trained_on_what_was_read(
    model_path: str, normalisation: TokenMean | SequenceMean | ConstantLength
) -> None:
    """Two paths behind one prompt; both count as the one response that they are."""
    group = make_group((1, 2, 3), [(11, 12, 13, 14, 15), (16, 17)], [1.0, 0.0])
    turns = (((9, 8), 2), ((9, 8, 12, 7), 3))
    rewritten = as_episode(group.responses[0].generated, turns, restarts=(1,))
    second = as_episode(group.responses[1].generated, (((9, 8), 2),))
    responses = tuple(
        replace(response, generated=generated)
        for response, generated in zip(group.responses, (rewritten, second), strict=True)
    )
    config = PLAIN.model_copy(
        update={
            "loss": PolicyGradientLoss(),
            "advantage": DrGrpoAdvantage(),
            "aggregation": normalisation,
        }
    )
    rank = learner(model_path, config)
    report = rank.accumulate(pack((replace(group, responses=responses),)))

    model = naive_model(model_path)
    paths = (  # token ids, how many of them at the end were sampled, advantage, response
        ([1, 2, 3, 9, 8, 11, 12], 2, 0.5, 0),
        ([1, 2, 3, 9, 8, 12, 7, 13, 14, 15], 3, 0.5, 0),
        ([1, 2, 3, 9, 8, 16, 17], 2, -0.5, 1),
    )
    weights = {"token_mean": (1, 1), "sequence_mean": (1 / 5, 1 / 2), "constant": (1 / 8, 1 / 8)}
    total = torch.zeros(())
    for sequence, num_sampled, advantage, place in paths:
        logits = model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0, :-1]
        told = torch.tensor(sequence[-num_sampled:])
        lost = cross_entropy(logits[-num_sampled:], told, reduction="sum")
        total = total + weights[normalisation.kind][place] * advantage * lost
    total.backward()

    assert report.normaliser == (7.0 if normalisation.kind == "token_mean" else 2.0)
    assert (report.num_responses, report.num_tokens_scored) == (2, 7)
    assert report.num_tokens_computed == 5 + 1 + 4 + 1, "what paths share is computed once"
    assert report.loss_sum == pytest.approx(total.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            rank._policy.parameters.gradient(name), parameter.grad, rtol=1e-4, atol=2e-6
        )


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_episode_without_a_sampled_token_is_in_no_sum_and_no_divisor(
    model_path: str, config: LearnerConfig
) -> None:
    group = make_group((1, 2), [(11, 12), (13,), ()], [1.0, 0.0, None])
    silent = as_episode(group.responses[2].generated, (((5, 5, 5), 0),))
    with_silent = replace(
        group,
        responses=(*group.responses[:2], replace(group.responses[2], generated=silent)),
    )
    scored = replace(group.responses[1].score, index=2, reward=0.5, outcome=Outcome.WRONG)
    judged = replace(with_silent.responses[2], score=scored)
    for advantage in (GrpoAdvantage(), GaeAdvantage()):
        for response in (with_silent.responses[2], judged):
            data = training_set([replace(group, responses=(response,))], advantage, TokenMean())
            assert (data.samples, data.normaliser, data.num_responses_excluded) == ((), 0.0, 1)
    groups = [replace(group, responses=group.responses[:2]), with_silent]
    found = [updated(learner(model_path, config), [each], config.mini_batches) for each in groups]
    assert torch.equal(*found)


def test_sums_by_version_are_of_sampled_tokens_alone(model_path: str) -> None:
    """A version begins within the second turn."""
    group = make_group((1, 2), [(11, 12, 13, 14, 15), (16, 17)], [1.0, 0.0])
    versions = (VersionSpan(version=1, num_tokens=3), VersionSpan(version=2, num_tokens=2))
    first, second = (response.generated for response in group.responses)
    episode = as_episode(replace(first, versions=versions), TURNS)
    assert sampled_versions(episode) == versions
    spoken = (replace(group.responses[0], generated=episode), group.responses[1])
    report = learner(model_path).accumulate(pack((replace(group, responses=spoken),)))
    found = {version: sums.num_tokens for version, sums in report.by_version.of.items()}
    assert found == {0: second.num_sampled, 1: 3, 2: 2}
    assert report.num_tokens_scored == 7


def test_returns_skip_what_is_said_between_turns() -> None:
    """Discounted by a half for a sampled token: two of them, whatever was said between."""
    group = make_group((1,), [(11, 12)], [1.0])
    episode = as_episode(group.responses[0].generated, (((9,), 1), ((7, 7, 7), 1), ((5,), 0)))
    spoken = replace(group, responses=(replace(group.responses[0], generated=episode),))
    advantage = GaeAdvantage(gamma=0.5, trace_decay=1.0)
    data = training_set([spoken], advantage, TokenMean())
    lengths = one_row(data.samples).lengths
    rewards = token_rewards(torch.full((sum(lengths),), 1.0), None, lengths)
    assert token_advantages(rewards, torch.zeros(2), lengths, advantage).tolist() == [0.5, 1.0]
    # what the first action is worth bootstraps from the value before the second
    values = torch.tensor([0.0, 0.6])
    cut = GaeAdvantage(gamma=0.5, trace_decay=0.0)
    assert token_advantages(rewards, values, lengths, cut).tolist() == pytest.approx([0.3, 0.4])


def test_ranks_are_dealt_what_they_compute_and_rows_are_filled_with_it() -> None:
    """Given tokens cost what others cost, unless they come after the last action."""
    group = make_group((1,), [(11, 12), (11, 12)], [1.0, 0.0])
    spoken = as_episode(group.responses[0].generated, (((9,) * 30, 2),))
    longer = as_episode(group.responses[0].generated, (((9,) * 30, 2), ((9,) * 500, 0)))
    plain, first, second = (
        replace(group, responses=(replace(group.responses[0], generated=each), group.responses[1]))
        for each in (group.responses[0].generated, spoken, longer)
    )
    costs = [predicted_cost([as_part(each)]) for each in (plain, first, second)]
    assert costs[1] == costs[2]
    assert costs[1] == pytest.approx(costs[0] + 30, rel=0.05)
    assert [len(rows_of(each, 34)) for each in (plain, first, second)] == [1, 2, 2]


def test_a_response_is_as_long_as_what_was_sampled() -> None:
    generated = make_group((1,), [(11, 12, 13)], [1.0]).responses[0].generated
    soft = SoftPunishment(max_tokens=4, buffer_tokens=2)
    episode = as_episode(generated, (((9,) * 30, 2), ((9,) * 30, 1)))
    assert soft.shaped(1.0, episode) == soft.shaped(1.0, generated) == 0.5


def test_turns_that_do_not_add_up_are_not_trained() -> None:
    group = make_group((1,), [(11, 12)], [1.0])
    episode = as_episode(group.responses[0].generated, (((9,), 2),))
    broken = replace(episode, token_ids=(*episode.token_ids, 1), logprobs=(*episode.logprobs, 0.0))
    spoken = replace(group, responses=(replace(group.responses[0], generated=broken),))
    with pytest.raises(AssertionError, match=r"turns of 0/0:0 have 3 of 4 tokens"):
        training_set([spoken], GrpoAdvantage(), TokenMean())


# --- how episodes end ---

FAILURES = [Ending.CRASHED, Ending.UNANSWERED]
BOUNDS = [Ending.TURNS, Ending.TOKENS, Ending.TIME, Ending.TRUNCATED]
ADVANTAGES: list[Advantage] = [
    GrpoAdvantage(),
    DrGrpoAdvantage(),
    ReinforcePlusPlusAdvantage(),
]


def group_with(ending: Ending, outcome: Outcome, reward: float | None) -> Group:
    """Two responses with verdicts, and an episode of two turns that ended like this."""
    group = make_group((1,), [(11, 12), (13,), (14, 15, 16)], [1.0, 0.0, reward])
    last = group.responses[2]
    assert last.score is not None
    ended = Response(
        generated=as_episode(last.generated, (((9,), 2), ((8, 8), 1)), ending),
        score=replace(last.score, outcome=outcome),
    )
    return replace(group, responses=(*group.responses[:2], ended))


@pytest.mark.parametrize("advantage", ADVANTAGES, ids=lambda each: each.kind)
@pytest.mark.parametrize("ending", FAILURES)
def test_an_environment_that_failed_leaves_baseline_and_divisor_alone(
    ending: Ending, advantage: Advantage
) -> None:
    failed = group_with(ending, Outcome.INFRA, None)
    alone = replace(failed, responses=failed.responses[:2])
    assert ending.is_failure
    for normalisation in (TokenMean(), SequenceMean(), ConstantLength()):
        with_it, without = (
            training_set_of(group, advantage, normalisation) for group in (failed, alone)
        )
        assert with_it.samples == without.samples
        assert with_it.normaliser == without.normaliser
        assert with_it.num_responses_excluded == 1


@pytest.mark.parametrize("ending", [*BOUNDS, Ending.TERMINATED])
def test_an_episode_that_was_played_is_trained_and_compared_with(ending: Ending) -> None:
    """Whatever ended it: a bound, or the model's own program that ran out of its time."""
    assert not ending.is_failure
    played = group_with(ending, Outcome.TRUNCATED, -1.0)
    assert list(advantages_of([played], DrGrpoAdvantage()).values()) == [1.0, 0.0, -1.0]


@pytest.mark.parametrize("advantage", ADVANTAGES, ids=lambda each: each.kind)
def test_a_group_with_one_survivor_is_no_baseline_of_itself(
    model_path: str, advantage: Advantage
) -> None:
    """Its one verdict has the advantage zero and no gradient; its tokens stay in the divisor, as
    those of every group whose rewards agree."""
    group = group_with(Ending.CRASHED, Outcome.INFRA, None)
    survivors = replace(group, responses=group.responses[::2])
    data = training_set_of(survivors, advantage, TokenMean())
    assert [sample.advantages[0] for sample in data.samples] == [0.0]
    assert (data.normaliser, data.num_groups_flat) == (2.0, 1)
    rank = learner(model_path)
    report = rank.accumulate(pack((survivors,)))
    assert (report.num_responses_skipped, report.num_tokens_scored) == (1, 0)
    assert not rank.update(1).applied


def training_set_of(
    group: Group, advantage: Advantage, normalisation: TokenMean | SequenceMean | ConstantLength
) -> TrainingSet:
    """Of a step that has this group alone."""
    part = replace(as_part(group), moments=moments_of([group], advantage))
    return training_set([part], advantage, normalisation)
