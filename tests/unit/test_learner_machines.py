"""Sharded parameters on two machines of two ranks, four gloo processes: each machine holds all of
them, and the learner is the replicated one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_factories import VOCABULARY, make_model, random_groups
from rank_processes import run_processes
from safetensors.torch import load_file

from artifacts.records import Group, pack
from artifacts.weights import fingerprints
from research.benchmarks.tiny_architectures import save_tiny
from tasks.cluster.devices import ClusterConfig, learners_per_machine
from tasks.learner.dealing import balance
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.memory import bytes_per_parameter
from tasks.learner.optimizer import AdamWConfig
from tasks.learner.ranks import PeerLost, Ranks
from tasks.learner.trainer import LearnerRank

NUM_RANKS, PER_MACHINE = 4, 2
KINDS = ("replicated", "sharded")
CONFIG = LearnerConfig(
    compute="fp32",
    kl_coefficient=0.05,
    max_tokens_per_microbatch=48,
    optimizer=AdamWConfig(learning_rate=1e-2, weight_decay=0.1, epsilon=1e-4, max_grad_norm=0.5),
)
STEPS = tuple(random_groups(seed, num_groups=8) for seed in (7, 8, 9))


def share(groups: tuple[Group, ...], rank: int) -> bytes:
    return pack(balance(groups, NUM_RANKS)[rank])


def joined(rank: int, meeting: Path, model: str, kind: str) -> LearnerRank:
    config = CONFIG.model_copy(update={"parameters": kind})
    made = LearnerRank(config, model, rank, NUM_RANKS, per_machine=PER_MACHINE)
    made.join(f"file://{meeting}", 60.0)
    return made


def step(learner: LearnerRank, rank: int, number: int) -> Any:
    """One step, in which the second machine has no row of the second step."""
    groups = STEPS[number - 1]
    payload = pack((groups, (), (), ())[rank]) if number == 2 else share(groups, rank)
    loss = learner.accumulate(payload).loss_sum
    return loss, replace(learner.update(number), busy=())


def story(rank: int, out: str, model: str) -> None:
    torch.set_num_threads(1)
    folder, told = Path(out), dict[str, Any]()
    for kind in KINDS:
        learner = joined(rank, folder / f"meet-{kind}", model, kind)
        steps = [step(learner, rank, number) for number in (1, 2)]
        learner.save_checkpoint(str(folder / kind), 2)
        held = learner.fingerprints()
        steps.append(step(learner, rank, 3))
        learner.export_weights(3, str(folder / f"{kind}.safetensors"))
        pieces = sum(piece.masters.numel() for piece in learner._policy.parameters.pieces)
        told[kind] = (steps, held, learner.fingerprints(), pieces)
    for kind in KINDS:  # of which both go on
        learner = joined(rank, folder / f"again-{kind}", model, "sharded")
        assert learner.load_checkpoint(str(folder / kind)) == 2
        told[f"from {kind}"] = (learner.fingerprints(), step(learner, rank, 3))
        told[f"from {kind}"] += (learner.fingerprints(),)
    learner.close()
    torch.save(told, folder / f"told-{rank}.pt")


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, list[dict[str, Any]]]:
    """Experts are spread over the ranks of a machine."""
    out = tmp_path_factory.mktemp("machines")
    if request.param == "llama":
        model = make_model(out / "model", tied=True)
    else:
        model = str(save_tiny(request.param, out / "model", VOCABULARY))
    run_processes(story, [(rank, str(out), model) for rank in range(NUM_RANKS)])
    told = [torch.load(out / f"told-{rank}.pt", weights_only=False) for rank in range(NUM_RANKS)]
    return out, model, told


Played = tuple[Path, str, list[dict[str, Any]]]


def test_losses_norms_and_weights_are_those_of_replicated_ranks(played: Played) -> None:
    out, _, told = played
    for rank in told:
        for (loss, update), (expected_loss, expected) in zip(
            rank["sharded"][0], rank["replicated"][0], strict=True
        ):
            assert loss == pytest.approx(expected_loss, rel=1e-4, abs=1e-6)
            assert update.loss == pytest.approx(expected.loss, rel=1e-4)
            assert update.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
            assert update.skipped is expected.skipped is None
    ours, theirs = (load_file(out / f"{kind}.safetensors") for kind in KINDS[::-1])
    gaps = torch.cat([(ours[name].float() - theirs[name].float()).flatten() for name in theirs])
    assert gaps.abs().max() < 2e-2
    assert (gaps != 0).float().mean() < 2e-3, "the last bit of bf16, where one of fp32 decides"


def test_every_rank_of_both_machines_holds_what_the_first_one_published(played: Played) -> None:
    out, _, told = played
    written = fingerprints(out / "sharded.safetensors")
    assert [rank["sharded"][2] == written for rank in told] == [True] * NUM_RANKS


def test_every_element_is_updated_by_one_rank(played: Played) -> None:
    """So each holds a fourth of the moments, and checkpoints hold everything once."""
    _, model, told = played
    size = sum(tensor.numel() for tensor in load_file(Path(model) / "model.safetensors").values())
    assert sum(rank["sharded"][3] for rank in told) == size
    config = CONFIG.model_copy(update={"parameters": "sharded", "kl_coefficient": 0.0})
    assert bytes_per_parameter(config, NUM_RANKS, PER_MACHINE) == 8 / 2 + 8 / 4


@pytest.mark.parametrize("kind", KINDS)
def test_machines_go_on_from_a_checkpoint(played: Played, kind: str) -> None:
    """From their own with the same bits; from that of replicated ranks, with its weights."""
    for rank in played[2]:
        steps, held, last, _ = rank[kind]
        again, (_, update), end = rank[f"from {kind}"]
        assert again == held
        assert update.grad_norm == pytest.approx(steps[2][1].grad_norm, rel=1e-5)
        assert kind == "replicated" or end == last


def test_one_rank_goes_on_from_what_two_machines_have_saved(played: Played) -> None:
    out, model, told = played
    alone = LearnerRank(CONFIG, model, 0, 1)
    assert alone.load_checkpoint(str(out / "sharded")) == 2
    assert alone.fingerprints() == told[0]["sharded"][1]


def _loses_the_other_machine(rank: int, out: str) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank, NUM_RANKS, torch.device("cpu"), PER_MACHINE)
    ranks.join(f"file://{out}/meeting", 60.0)
    if rank >= PER_MACHINE:
        return
    assert ranks.near.sum([1.0]) == [PER_MACHINE]
    with pytest.raises(PeerLost, match=f"rank {rank} lost another rank during all-gather"):
        ranks.across.all_gather(torch.ones(4))
    for part in (ranks, ranks.near, ranks.across):
        with pytest.raises(PeerLost):
            part.check()


def test_a_machine_that_is_lost_is_lost_for_all_collectives(tmp_path: Path) -> None:
    run_processes(_loses_the_other_machine, [(rank, str(tmp_path)) for rank in range(NUM_RANKS)])


@pytest.mark.parametrize(
    ("learners", "per_host", "expected"),
    [
        ("0-15", 8, 8),  # two whole machines
        ("4-7,12-15", 8, 4),  # the same half of each
        ("0-7", 8, 8),  # one machine
        ("0-11", 8, 12),  # uneven: over all
        ("0,8", 8, 2),  # nobody to share with on a machine
        ("8-15,0-7", 8, 8),
    ],
)
def test_machines_are_told_from_the_numbers_of_devices(
    learners: str, per_host: int, expected: int
) -> None:
    config = ClusterConfig(
        num_devices=16, devices_per_host=per_host, roles=f"rollout: 0-15, learner: {learners}"
    )
    assert learners_per_machine(config) == expected
