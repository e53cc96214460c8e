"""The learner takes the experts that the engine took, weighs them itself, and counts tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from learner_factories import ALONE, VOCABULARY, one_row, random_groups, routed_at_random
from learner_factories import run_rows as train_rows

from artifacts.records import Group, pack, unpack
from research.benchmarks.naive_model import check_gradients, naive_logp, naive_loss, naive_model
from research.benchmarks.tiny_architectures import save_tiny
from tasks.engines.base import ReplicaConfig
from tasks.engines.simulation.replica import SimulatedEngineConfig
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.learner.advantage import GrpoAdvantage
from tasks.learner.architecture import replays_routes
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.packing import Sample
from tasks.learner.policy import PolicyModel, load_policy
from tasks.learner.samples import SequenceMean, TrainingSet, training_set

MIXTURES = ("qwen3_moe", "olmoe", "mixtral", "glm4_moe", "deepseek_v3")
LAYERS, EXPERTS, TOP = 2, 4, 2
MIXTURE = SimpleNamespace(model_type="qwen3_moe", num_experts=4)
DENSE = SimpleNamespace(model_type="llama")


class Recording(ReplicaConfig):
    """An engine with this obstacle."""

    obstacle: str

    def route_obstacle(self, model: Any, on_cpu: bool) -> str:  # Any: a configuration
        return self.obstacle


def samples_of(groups: Sequence[Group]) -> tuple[Sample, ...]:
    return training_set(groups, GrpoAdvantage(), SequenceMean()).samples


def gradients(policy: PolicyModel) -> dict[str, torch.Tensor]:
    return {name: policy.parameters.gradient(name).clone() for name in policy.parameters.shapes}


def step_of(policy: PolicyModel) -> MicroStep:
    return MicroStep(Objective(loss=ReinforceLoss()), 0.8, policy, None)


def forced(model: Any, sample: Sample) -> None:  # Any: a transformers model
    """Have the routers of an ordinary model choose the sample's experts, by its own hooks."""
    routers = [each for each in model.modules() if type(each).__name__.lower().endswith("router")]
    routes = torch.from_numpy(sample.routes.astype(np.int64)).view(-1, LAYERS, TOP)

    def choose(router: Any, place: int) -> Any:  # Any: as above
        def hook(module: Any, given: Any, found: Any) -> Any:
            logits = found[0].float()
            chosen = torch.cat([routes[:, place], found[2][len(routes) :]])  # the last token's own
            is_sigmoid = hasattr(router, "e_score_correction_bias")
            scores = logits.sigmoid() if is_sigmoid else logits.softmax(-1)
            weights = scores.gather(1, chosen)
            if getattr(router, "norm_topk_prob", True):
                weights = weights / weights.sum(-1, keepdim=True)
            return found[0], weights * getattr(router, "routed_scaling_factor", 1.0), chosen

        return hook

    for place, router in enumerate(routers):
        router._forward_hooks.clear()
        router.register_forward_hook(choose(router, place))


@pytest.mark.parametrize(
    ("name", "recomputes"), [*((name, False) for name in MIXTURES), ("qwen3_moe", True)]
)
def test_replayed_routes_give_the_gradients_of_a_model_that_chose_them(
    tmp_path: Path, name: str, recomputes: bool
) -> None:
    path = str(save_tiny(name, tmp_path, VOCABULARY))
    policy, model = load_policy(path, "fp32", ALONE, recompute_layers=recomputes), naive_model(path)
    samples = samples_of(routed_at_random(random_groups(3)))
    total = train_rows(step_of(policy), samples, 60).loss_sum

    def of_forced(sample: Sample) -> torch.Tensor:
        forced(model, sample)
        return naive_logp(model, sample, temperature=0.8)[0]

    expected = naive_loss(samples, of_forced)
    expected.backward()

    assert total == pytest.approx(expected.item(), rel=1e-4)
    assert {name for name, _ in model.named_parameters()} == policy.parameters.shapes.keys()
    check_gradients(policy, model)


def test_what_a_router_would_choose_itself_changes_nothing(tmp_path: Path) -> None:
    path = str(save_tiny("qwen3_moe", tmp_path, VOCABULARY))
    policy, replayed = (load_policy(path, "fp32", ALONE) for _ in range(2))
    row = one_row(samples_of(random_groups(3)))
    alone = policy.score(row)
    chosen = policy.routers.chosen.flatten(1).short()
    assert torch.equal(replayed.score(replace(row, routes=chosen)).logp, alone.logp)
    unknown = torch.full_like(chosen, -1)
    assert torch.equal(replayed.score(replace(row, routes=unknown)).logp, alone.logp)


def test_nodes_take_the_routes_of_the_first_sample_that_has_them() -> None:
    groups = routed_at_random(random_groups(3))
    samples = samples_of(groups)
    row = one_row(samples).batch
    assert row.routes is not None
    assert row.routes.min() >= 0
    of_path = {
        (*sample.prompt, *sample.response)[: end + 1]: sample.routes[end]
        for sample in samples
        for end in range(len(sample.routes))
    }
    path: list[int] = []
    for token, depth, routes in zip(row.tokens, row.positions, row.routes, strict=True):
        path = [*path[:depth], int(token)]
        assert routes.tolist() == of_path[tuple(path)].tolist()


def test_samples_without_routes_have_none_and_a_dense_model_has_no_routers(tmp_path: Path) -> None:
    groups = random_groups(3)
    assert one_row(samples_of(groups)).routes is None
    policy = load_policy(str(save_tiny("qwen3", tmp_path, VOCABULARY)), "fp32", ALONE)
    policy.score(one_row(samples_of(groups)))
    assert policy.routers.count() is None
    with pytest.raises(ValueError, match="must have 0 experts a token, as the model has, got 4"):
        policy.score(one_row(samples_of(routed_at_random(groups))))


def test_routes_of_several_models_are_refused() -> None:
    first, *rest = samples_of(routed_at_random(random_groups(3)))
    with pytest.raises(ValueError, match=r"routed by one model, got \[2, 4\] experts a token"):
        one_row([replace(first, routes=first.routes[:, :2]), *rest])


def test_routes_survive_the_way_to_another_rank() -> None:
    data = training_set(routed_at_random(random_groups(3)), GrpoAdvantage(), SequenceMean())
    again: TrainingSet = unpack(pack(data))
    assert again == data
    assert all(len(sample.routes) for sample in again.samples)


def test_every_token_of_a_pass_is_counted_once_by_layer_and_expert(tmp_path: Path) -> None:
    policy = load_policy(str(save_tiny("qwen3_moe", tmp_path, VOCABULARY)), "fp32", ALONE)
    samples = samples_of(routed_at_random(random_groups(3)))
    row = one_row(samples)
    policy.score(row)
    counts = policy.routers.count()
    assert counts is not None
    assert row.batch.routes is not None
    by_layer = row.batch.routes.reshape(-1, LAYERS, TOP)
    for layer in range(LAYERS):
        wanted = np.bincount(by_layer[:, layer].ravel(), minlength=EXPERTS)
        assert counts[layer].tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("replay", "obstacle", "model", "replays"),
    [
        ("auto", "", MIXTURE, True),
        ("on", "", MIXTURE, True),
        ("off", "", MIXTURE, False),
        ("auto", "it records none", MIXTURE, False),
        ("auto", "", DENSE, False),
    ],
)
def test_routes_are_replayed_where_engines_can_tell_them(
    replay: Literal["auto", "on", "off"], obstacle: str, model: Any, replays: bool
) -> None:  # Any: a configuration
    engine = Recording(obstacle=obstacle)
    assert replays_routes(replay, engine, model, on_cpu=True) is replays


@pytest.mark.parametrize(
    ("obstacle", "model", "told"),
    [("it records none", MIXTURE, "it records none"), ("", DENSE, "llama has no experts")],
)
def test_a_replay_that_is_asked_for_and_cannot_be_is_refused(
    obstacle: str, model: Any, told: str
) -> None:  # Any: a configuration
    with pytest.raises(ValueError, match=f"router_replay=on needs routes of the engines.*{told}"):
        replays_routes("on", Recording(obstacle=obstacle), model, on_cpu=True)


def test_only_engines_that_keep_every_token_record_routes() -> None:
    of_vllm = VllmEngineConfig().route_obstacle
    assert of_vllm(MIXTURE, on_cpu=True) == ""
    assert "first model runner" in of_vllm(MIXTURE, on_cpu=False)
    windowed = SimpleNamespace(num_experts=4, sliding_window=8)
    assert "windows" in of_vllm(windowed, on_cpu=True)
    assert "simulated record no routes" in SimulatedEngineConfig().route_obstacle(MIXTURE, True)
