"""Sharded parameters, two gloo processes: the learner that they make is the replicated one.

Both kinds play the same story in the same two processes; what they came to is compared here. Sums
over ranks and rows are the same numbers in another order (replicated: the rows of a rank, then
ranks; sharded: the ranks of a row, then rows), so gradients differ by the rounding of fp32 sums.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_factories import (
    VOCABULARY,
    live_tensors,
    make_group,
    make_model,
    new_objects_alone,
    one_row,
    random_groups,
    routed_at_random,
)
from rank_processes import run_processes
from safetensors.torch import load_file

from artifacts.records import Group, pack
from artifacts.weights import fingerprint, fingerprints
from research.benchmarks.tiny_architectures import save_tiny
from tasks.cluster.ports import LOOPBACK
from tasks.engines.transports.base import TransferPlan
from tasks.engines.transports.registry import opened
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.dealing import balance
from tasks.learner.learner_config import AdamWConfig, LearnerConfig
from tasks.learner.lora_config import LoraConfig
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.memory import bytes_per_parameter, model_size
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.policy import load_policy
from tasks.learner.ranks import PeerLost, Ranks
from tasks.learner.reports import Skipped
from tasks.learner.samples import SequenceMean, training_set
from tasks.learner.trainer import LearnerRank

CONFIG = LearnerConfig(
    compute="fp32",
    kl_coefficient=0.05,
    max_tokens_per_microbatch=48,
    optimizer=AdamWConfig(learning_rate=1e-2, weight_decay=0.1, epsilon=1e-4, max_grad_norm=0.5),
)
# fp32 sums of a few dozen terms in another order: some of the last of 24 bits, where terms cancel
# a little more; relative to the largest gradient of the parameter
ROUNDING = 2e-6


@dataclass(frozen=True, kw_only=True)
class Case:
    """A learner whose sharded parameters are compared with replicated ones."""

    model: str  # an architecture
    config: LearnerConfig
    tied: bool = False  # of a Llama
    is_routed: bool = False  # whether tokens go to recorded experts, three of four


# an odd vocabulary and 2 ranks: shards of 31 and 30 rows
CASES = {
    "tied, fp32": Case(model="llama", tied=True, config=CONFIG),
    "bf16, layers recomputed": Case(
        model="llama",
        config=CONFIG.model_copy(update={"compute": "bf16", "recompute_layers": True}),
    ),
    "an adapter": Case(
        model="llama", tied=True, config=CONFIG.model_copy(update={"lora": LoraConfig(rank=3)})
    ),
    "an adapter, merged": Case(
        model="llama",
        config=CONFIG.model_copy(update={"lora": LoraConfig(rank=2, publish="merged")}),
    ),
    "experts": Case(model="qwen3_moe", config=CONFIG),
    "experts, routes replayed, layers recomputed": Case(
        model="qwen3_moe",
        config=CONFIG.model_copy(update={"recompute_layers": True}),
        is_routed=True,
    ),
    "experts under an adapter, merged": Case(
        model="qwen3_moe",
        config=CONFIG.model_copy(update={"lora": LoraConfig(rank=2, publish="merged")}),
    ),
    "experts with shared ones": Case(model="deepseek_v3", config=CONFIG, is_routed=True),
}
KINDS = ("replicated", "sharded")
FIRST, SECOND, THIRD = STEPS = tuple(random_groups(seed, num_groups=6) for seed in (7, 8, 9))
ROUTED = tuple(routed_at_random(groups, experts=3) for groups in STEPS)
PROBES = ((1, 2, 3, 4), (5, 6, 7), (8,))


Steps = tuple[tuple[Group, ...], ...]


def sick(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """The same with a log-probability that is not a number."""
    first, *others = groups[0].responses
    logprobs = (math.nan,) * len(first.generated.logprobs)
    spoilt = replace(first, generated=replace(first.generated, logprobs=logprobs))
    return (replace(groups[0], responses=(spoilt, *others)), *groups[1:])


def shares(groups: tuple[Group, ...], rank: int) -> bytes:
    return pack(balance(groups, 2)[rank])


def own_gradients(learner: LearnerRank) -> dict[str, tuple[int, torch.Tensor]]:
    """By parameter, what this rank has of the summed gradient, and where it begins."""
    parameters = learner._policy.parameters
    return {
        piece.name: (piece.start, gradient.clone())
        for piece, gradient in zip(parameters.pieces, parameters.reduced(), strict=True)
    }


def play(learner: LearnerRank, rank: int, out: Path, steps: Steps) -> dict[str, Any]:
    """Steps with unequal numbers of rows, one of them with nothing for a rank, one that is
    discarded, one that is not finite; a checkpoint before the last one."""
    first, second, third = steps
    told: dict[str, Any] = {"start": learner.fingerprints()}
    learner.export_weights(0, str(out / "zero.safetensors"))
    reports = [learner.accumulate(shares(first, rank))]
    reports.append(learner.accumulate(pack(second if rank else ())))
    told["rows"] = [report.num_micro_batches for report in reports]
    told["loss_sums"] = [report.loss_sum for report in reports]
    told["gradients"] = own_gradients(learner)
    learner.discard()
    learner.accumulate(shares(second, rank))
    learner.discard()
    updates = []
    for step, payload in enumerate((shares(first, rank), pack(() if rank else second)), 1):
        learner.accumulate(payload)
        updates.append(learner.update(step))
    told["second"] = learner.fingerprints()
    learner.accumulate(shares(sick(third), rank))
    updates.append(learner.update(3))
    told["third"] = learner.fingerprints()
    learner.save_checkpoint(str(out / "checkpoint"), 3)
    updates.append(last_step(learner, rank, third))
    told["updates"] = [replace(update, busy=()) for update in updates]
    told["file"] = learner.export_weights(4, str(out / "four.safetensors"))
    told["last"] = learner.fingerprints()
    # mapped by this process itself; shards are gathered by all ranks, each for its own device
    offered = learner.offer_weights(4, "", TransferPlan(kind="ipc"), LOOPBACK)
    assert offered is not None
    with opened(offered, torch.device("cpu"), "engine-0/0", {}) as stream:
        (bucket,) = stream.buckets
        told["offered"] = {name: fingerprint(tensor) for name, tensor in bucket.items()}
    learner.withdraw_weights()
    told["probed"] = learner.probe(PROBES)
    return told


def last_step(learner: LearnerRank, rank: int, third: tuple[Group, ...]) -> Any:
    learner.accumulate(shares(third, rank))
    return learner.update(4)


def story(rank: int, out: str, model: str, case: Case) -> None:
    torch.set_num_threads(1)
    folder, config = Path(out), case.config
    steps = ROUTED if case.is_routed else STEPS
    told: dict[str, Any] = {}
    for kind in KINDS:
        learner = joined(rank, folder / f"meet-{kind}", model, config, kind)
        told[kind] = play(learner, rank, folder / kind, steps)
    for kind, other in (KINDS, KINDS[::-1]):
        learner = joined(rank, folder / f"again-{kind}", model, config, kind)
        assert learner.load_checkpoint(str(folder / other / "checkpoint")) == 3
        told[f"{kind} goes on from {other}"] = (
            learner.fingerprints(),
            replace(last_step(learner, rank, steps[-1]), busy=()),
            learner.fingerprints(),
        )
    learner.close()
    torch.save(told, folder / f"told-{rank}.pt")


def joined(rank: int, meeting: Path, model: str, config: LearnerConfig, kind: str) -> LearnerRank:
    made = LearnerRank(config.model_copy(update={"parameters": kind}), model, rank, 2)
    made.join(f"file://{meeting}", 60.0)
    return made


Told = list[dict[str, Any]]  # by rank; Any: what a story is told in


@pytest.fixture(scope="module", params=list(CASES))
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, Case, Told]:
    case = CASES[request.param]
    out = tmp_path_factory.mktemp("story")
    if case.model == "llama":
        model = make_model(out / "model", case.tied)
    else:
        model = str(save_tiny(case.model, out / "model", VOCABULARY))
    run_processes(story, [(rank, str(out), model, case) for rank in range(2)])
    told = [torch.load(out / f"told-{rank}.pt", weights_only=False) for rank in range(2)]
    return out, model, case, told


Played = tuple[Path, str, Case, Told]


def whole_gradients(told: Told, kind: str) -> dict[str, torch.Tensor]:
    """What the ranks have of each parameter, put together."""
    parts = [told[rank][kind]["gradients"] for rank in range(2)]
    return {
        name: torch.cat(
            [part for _, part in sorted((own[name] for own in parts if name in own), key=first)]
        )
        for name in {**parts[0], **parts[1]}
    }


def first(part: tuple[int, torch.Tensor]) -> int:
    return part[0]


def test_gradients_are_those_of_replicated_parameters(played: Played) -> None:
    told = played[3]
    rows = [told[rank]["sharded"]["rows"] for rank in range(2)]
    assert rows[0][1] == 0 < rows[1][1], "a rank has idled"
    expected, got = (whole_gradients(told, kind) for kind in KINDS)
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(got[name], gradient, rtol=0, atol=ROUNDING * scale)


def test_reports_and_updates_are_those_of_replicated_parameters(played: Played) -> None:
    for told in played[3]:
        replicated, sharded = (told[kind] for kind in KINDS)
        assert sharded["rows"] == replicated["rows"]
        # experts sum over other batches of tokens
        assert sharded["loss_sums"] == pytest.approx(replicated["loss_sums"], rel=1e-6)
        for got, expected in zip(sharded["updates"], replicated["updates"], strict=True):
            assert got.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5, nan_ok=True)
            assert got.loss == pytest.approx(expected.loss, rel=1e-4, nan_ok=True)
            assert got.skipped == expected.skipped
        reasons = [update.skipped for update in sharded["updates"]]
        assert reasons == [None, None, Skipped.NONFINITE, None]
        if not played[2].config.lora.rank:  # gradients of an adapter are smaller
            bound = CONFIG.optimizer.max_grad_norm
            assert sharded["updates"][1].grad_norm > bound, "it was clipped"


def test_a_gradient_that_is_not_finite_changes_nothing(played: Played) -> None:
    for told in played[3]:
        assert told["sharded"]["third"] == told["sharded"]["second"] != told["sharded"]["start"]


def test_every_rank_attests_what_the_first_one_published(played: Played) -> None:
    out, _, _, told = played
    assert told[0]["sharded"]["start"] == told[0]["replicated"]["start"]
    written = fingerprints(out / "sharded" / "four.safetensors")
    assert told[0]["sharded"]["last"] == told[1]["sharded"]["last"] == written
    assert told[0]["sharded"]["probed"] == told[1]["sharded"]["probed"]
    assert told[1]["sharded"]["file"] is None


def test_the_file_of_the_same_weights_is_that_of_replicated_parameters(played: Played) -> None:
    ours, theirs = (played[0] / kind / "zero.safetensors" for kind in KINDS)
    assert ours.read_bytes() == theirs.read_bytes()


def test_every_rank_offers_what_it_attests(played: Played) -> None:
    *_, told = played
    for rank in told:
        for kind in ("replicated", "sharded"):
            assert rank[kind]["offered"] == rank[kind]["last"]


def differing(got: Path, expected: Path) -> tuple[float, float]:
    """The largest difference of two weight files, and the share of elements that differ."""
    ours, theirs = load_file(got), load_file(expected)
    assert ours.keys() == theirs.keys()
    gaps = torch.cat([(ours[name].float() - theirs[name].float()).flatten() for name in theirs])
    return gaps.abs().max().item(), (gaps != 0).float().mean().item()


def test_published_weights_are_those_of_replicated_parameters(played: Played) -> None:
    """To the bit of bf16, but where the last bit of an fp32 master decides about rounding."""
    out = played[0]
    largest, share = differing(*(out / kind / "four.safetensors" for kind in KINDS[::-1]))
    assert largest < 2e-2
    assert share < 2e-3


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_goes_on_from_the_checkpoint_of_the_other(played: Played, kind: str) -> None:
    """It holds the other's weights exactly, and makes its next step."""
    (other,) = set(KINDS) - {kind}
    for told in played[3]:
        held, update, last = told[f"{kind} goes on from {other}"]
        assert held == told[other]["third"]
        assert update.grad_norm == pytest.approx(told[other]["updates"][3].grad_norm, rel=1e-5)
        same = [name for name, mark in told[other]["last"].items() if last[name] == mark]
        assert len(same) > len(last) // 2, "the same step, but for single roundings"


def test_one_rank_goes_on_from_the_shards_of_two(played: Played, tmp_path: Path) -> None:
    out, model, case, told = played
    alone = LearnerRank(case.config, model, 0, 1)
    assert alone.load_checkpoint(str(out / "sharded" / "checkpoint")) == 3
    assert alone.fingerprints() == told[0]["sharded"]["third"]
    assert alone._updater.optimizer.num_updates == 2
    alone.save_checkpoint(str(tmp_path), 3)
    run_processes(_read, [(rank, str(tmp_path), model, case, told) for rank in range(2)])


def _read(rank: int, path: str, model: str, case: Case, told: Told) -> None:
    """And two ranks from what one has saved."""
    torch.set_num_threads(1)
    learner = joined(rank, Path(path) / "meeting", model, case.config, "sharded")
    assert learner.load_checkpoint(path) == 3
    assert learner.fingerprints() == told[0]["sharded"]["third"]
    update = last_step(learner, rank, (ROUTED if case.is_routed else STEPS)[-1])
    assert update.grad_norm == told[rank]["sharded"]["updates"][3].grad_norm
    assert learner.fingerprints() == told[0]["sharded"]["last"], "the very step of the story"
    learner.close()


def _interrupted(rank: int, out: str, model: str) -> None:
    """Backward passes that fail at the same place on both ranks, with gradients half reduced."""
    torch.set_num_threads(1)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    ranks.join(f"file://{out}/meeting", 60.0)
    policy = load_policy(model, "fp32", ranks, "sharded")
    step = MicroStep(Objective(loss=ReinforceLoss()), 1.0, policy, None)
    data = training_set(FIRST, GrpoAdvantage(), SequenceMean()).samples
    batch = one_row(data[rank::2])
    step.run(batch)
    expected = [gradient.clone() for gradient in policy.parameters.reduced()]
    policy.parameters.discard()
    assert not any(gradient.any() for gradient in policy.parameters.reduced())

    def fail(gradient: torch.Tensor) -> None:
        raise MemoryError

    def spoil(module: torch.nn.Module, args: object, output: tuple[torch.Tensor, ...]) -> None:
        output[0].register_hook(fail)

    spoiling = policy.backbone.layers[0].self_attn.register_forward_hook(spoil)
    with pytest.raises(MemoryError):
        step.run(batch)
    spoiling.remove()
    policy.parameters.discard()
    step.run(batch)
    for got, gradient in zip(policy.parameters.reduced(), expected, strict=True):
        assert torch.equal(got, gradient)
    ranks.close()


def test_a_backward_pass_that_was_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    run_processes(_interrupted, [(rank, str(tmp_path), model) for rank in range(2)])


def _fails(rank: int, out: str, model: str) -> None:
    """Rank 1 is given a token that the model does not have; rank 0 waits until it has ended."""
    torch.set_num_threads(1)
    learner = joined(rank, Path(out) / "meeting", model, CONFIG, "sharded")
    foreign = (make_group((1, 99), [(2,), (3,)], [0.0, 1.0]),)
    with pytest.raises(ValueError if rank else PeerLost):
        learner.accumulate(pack(foreign if rank else FIRST))
    with pytest.raises(PeerLost, match="rank 1 failed" if rank else "rank 0 lost another rank"):
        learner.check_peers()
    with pytest.raises(PeerLost):
        learner.accumulate(pack(FIRST))


def test_a_rank_that_fails_in_step_breaks_the_group(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    run_processes(_fails, [(rank, str(tmp_path), model) for rank in range(2)])


def _holds(rank: int, out: str, model: str) -> None:
    """What is there after a rank's gradients is what the formula says."""
    torch.set_num_threads(1)
    size = model_size(Path(model))
    kinds = KINDS[1:] if size.experts else KINDS
    for kind, compute, kl in itertools.product(kinds, ("bf16", "fp32"), (0.0, 0.1)):
        updated = {"compute": compute, "kl_coefficient": kl}
        config = CONFIG.model_copy(update=updated | {"parameters": kind})
        with new_objects_alone():
            learner = joined(rank, Path(out) / f"{kind}-{compute}-{kl}", model, config, kind)
            learner.accumulate(shares(FIRST, rank))
            # objects of Python's, which alone are found
            gradients = [each.grad for each in learner._policy.backbone.parameters()]
            added = [found.untyped_storage() for found in live_tensors()]
            held = sum({store.data_ptr(): store.nbytes() for store in added}.values())
            expected = bytes_per_parameter(config, 2) * size.num_parameters
            assert held == pytest.approx(expected, rel=0.01), (kind, compute, kl)
            learner.close()
            del learner, added, gradients


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_a_rank_holds_the_bytes_that_explain_tells(tmp_path: Path, name: str) -> None:
    """Of a model of millions of parameters, with and without a reference."""
    sizes = {
        "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "initializer_range": 0.02,
    }  # fmt: skip
    changes = sizes | ({"moe_intermediate_size": 352} if name == "qwen3_moe" else {})
    model = str(save_tiny(name, tmp_path / "model", 4001, changes=changes))
    run_processes(_holds, [(rank, str(tmp_path), model) for rank in range(2)])


def test_one_rank_has_nobody_to_share_with(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"learner\.parameters=sharded needs two ranks"):
        LearnerRank(CONFIG.model_copy(update={"parameters": "sharded"}), "", 0, 1)
