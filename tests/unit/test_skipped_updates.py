"""Updates that are not made leave no trace; too many gradients that are not finite end the run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learner_factories import make_group, make_model, random_groups
from rank_processes import run_processes

from artifacts.records import Group, pack, unpack
from flows.terminal import TerminalView
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.losses.clipped import PpoClipLoss
from tasks.learner.remote import LearnerActor
from tasks.learner.reports import (
    REASONS,
    GradientsNotFinite,
    Skipped,
    UpdateReport,
    check_updates,
    update_figures,
)
from tasks.learner.trainer import LearnerRank

CONFIG = LearnerConfig(
    compute="fp32",
    max_tokens_per_microbatch=64,
    optimizer=AdamWConfig(learning_rate=1e-2, weight_decay=0.1, epsilon=1e-4),
)
FLAT = (make_group((1, 2), [(3,), (4, 5)], [1.0, 1.0]),)
NOTHING = (make_group((1, 2), [(3,)], [None]),)
GOOD, LATER = random_groups(7), random_groups(8)


def sick(logprob: float, groups: tuple[Group, ...] = GOOD) -> tuple[Group, ...]:
    """The groups, with one log-probability of every response replaced by this."""

    def spoilt(group: Group) -> Group:
        responses = []
        for response in group.responses:
            logprobs = (*response.generated.logprobs[:-1], logprob)
            generated = replace(response.generated, logprobs=logprobs)
            responses.append(replace(response, generated=generated))
        return replace(group, responses=tuple(responses))

    return tuple(map(spoilt, groups))


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("model"))


def learner(path: str, config: LearnerConfig = CONFIG) -> LearnerRank:
    return LearnerRank(config=config, model_path=path, rank=0, world_size=1)


def state(rank: LearnerRank) -> tuple[torch.Tensor, ...]:
    """Copies of all that an update may change."""
    optimizer = rank._updater.optimizer
    masters = [piece.masters for piece in optimizer.pieces]
    kept = (rank._policy.parameters.values, *masters, *optimizer.mean, *optimizer.square)
    return (*(tensor.clone() for tensor in kept), torch.tensor(optimizer.num_updates))


def assert_equal(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> None:
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("groups", "reason"),
    [(sick(math.nan), Skipped.NONFINITE), (FLAT, Skipped.FLAT), (NOTHING, Skipped.EMPTY)],
    ids=lambda value: str(value) if isinstance(value, Skipped) else "",
)
def test_a_skipped_update_leaves_weights_and_optimizer_as_they_were(
    model_path: str,
    groups: tuple[Group, ...],
    reason: Skipped,
) -> None:
    rank, undisturbed = learner(model_path), learner(model_path)
    for trained in (rank, undisturbed):
        trained.accumulate(pack(GOOD))
        assert trained.update(1).skipped is None
    before = state(rank)
    rank.accumulate(pack(groups))
    update = rank.update(2)
    assert (update.skipped, update.applied) == (reason, False)
    assert_equal(state(rank), before)
    for trained in (rank, undisturbed):
        trained.accumulate(pack(LATER))
        assert trained.update(3).applied
    assert_equal(state(rank), state(undisturbed))


def test_an_infinite_ratio_is_skipped_and_an_infinite_weight_is_truncated(model_path: str) -> None:
    groups = sick(-math.inf)
    rank = learner(model_path)
    rank.accumulate(pack(groups))
    assert rank.update(1).applied
    ratio = PpoClipLoss(old_policy="engine")
    unbounded = learner(model_path, CONFIG.model_copy(update={"loss": ratio}))
    report = unbounded.accumulate(pack(groups))
    assert unbounded.update(1).skipped is Skipped.NONFINITE
    scored = report.num_responses - report.num_responses_skipped
    assert report.num_tokens_nonfinite == scored, "one token of every scored response"


def test_a_step_without_an_update_makes_its_version_and_is_not_made_again(model_path: str) -> None:
    actor = LearnerActor(CONFIG, model_path, rank=0, world_size=1, core_ids=(), device="cpu")
    before = actor._rank.fingerprints()
    actor.accumulate(1, pack(sick(math.nan)))
    first = actor.update(1)
    assert unpack(first).skipped is Skipped.NONFINITE
    assert actor.update(1) == first
    assert (actor._version, actor._rank.fingerprints()) == (1, before)
    actor.accumulate(2, pack(GOOD))
    assert unpack(actor.update(2)).applied


def _train(rank: int, path: str, shares: list[list[tuple[Group, ...]]], out: str) -> None:
    torch.set_num_threads(1)
    learner = LearnerRank(config=CONFIG, model_path=path, rank=rank, world_size=2)
    learner.join(f"file://{out}/rendezvous", 60.0)
    skipped = []
    for step, groups in enumerate(shares[rank], 1):
        learner.accumulate(pack(groups))
        skipped.append(learner.update(step).skipped)
    learner.save_checkpoint(f"{out}/checkpoint", len(skipped))
    learner.close()
    assert skipped == [None, Skipped.NONFINITE, Skipped.FLAT, None]


def test_all_ranks_leave_the_same_updates_out(model_path: str, tmp_path: Path) -> None:
    """Two gloo processes, one with NaN, end where one rank ends that sees the good steps."""
    first = [GOOD[:2], GOOD[:2], FLAT, LATER[:2]]
    shares = [first, [GOOD[2:], sick(math.nan, GOOD[2:]), FLAT, LATER[2:]]]
    arguments = [(rank, model_path, shares, str(tmp_path)) for rank in range(2)]
    run_processes(_train, arguments)
    together, alone = learner(model_path), learner(model_path)
    together.load_checkpoint(str(tmp_path / "checkpoint"))
    for step, groups in ((1, GOOD), (4, LATER)):
        alone.accumulate(pack(groups))
        alone.update(step)
    size = alone._policy.parameters.num_elements
    got, expected = (rank._policy.parameters.values[:size] for rank in (together, alone))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert together._updater.optimizer.num_updates == alone._updater.optimizer.num_updates == 2


def figures(*reasons: Skipped | None) -> list[dict[str, float]]:
    """The figures of steps whose updates were made or left out for these reasons."""
    made = UpdateReport(
        step=1, skipped=None, normaliser=1.0, loss=0.0, grad_norm=1.0, learning_rate=1.0, busy=()
    )  # fmt: skip
    return [update_figures(replace(made, skipped=reason)) for reason in reasons]


def test_too_many_gradients_in_a_row_that_are_not_finite_end_the_run() -> None:
    bad, flat = Skipped.NONFINITE, Skipped.FLAT
    check_updates(figures(), 3)
    check_updates(figures(bad, bad, None, bad, bad), 3)
    check_updates(figures(*[flat] * 50), 3)
    check_updates(figures(bad, bad, bad, None), 3)
    for reasons in ((None, bad, bad, bad), (bad, bad, flat, Skipped.EMPTY, bad)):
        told = r"in 3 steps in a row.*learning_rate.*max_nonfinite_steps \(3\)"
        with pytest.raises(GradientsNotFinite, match=told):
            check_updates(figures(*reasons), 3)


def test_the_line_of_a_step_says_that_it_made_no_update(capsys: pytest.CaptureFixture[str]) -> None:
    view = TerminalView("run", 3, list)
    for reason in (None, Skipped.FLAT):
        view.add_step(1, "short", {"reward/mean": 0.5, **figures(reason)[0]})
    made, skipped = capsys.readouterr().out.splitlines()
    assert made.endswith("queue 0")
    assert skipped.endswith("queue 0  no update: " + REASONS[Skipped.FLAT])


def test_steps_of_an_earlier_version_have_no_such_figures() -> None:
    check_updates([{"train/applied": 1.0}] * 5, 1)
