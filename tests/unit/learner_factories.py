"""Small models and groups for the learner's tests."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record_factories import make_generated
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM
from turn_factories import VOCABULARY, as_episode, random_turns

from artifacts.adapter_files import A, B
from artifacts.records import Group, Outcome, Prompt, Response, Routes, Score
from tasks.learner.dealing import GroupPart
from tasks.learner.micro_step import MicroStep
from tasks.learner.packing import Sample, micro_batches, pack_samples
from tasks.learner.ranks import Ranks
from tasks.learner.reports import AccumulateReport
from tasks.learner.row_report import total
from tasks.learner.rows import DeviceRow, prepared, row_of
from tasks.learner.split import in_mini_batches

ALONE = Ranks(0, 1, torch.device("cpu"))


def make_model(path: Path, tied: bool = True, seed: int = 0, head_dim: int = 8) -> str:
    """A Llama of two layers with grouped-query attention, fp32, saved to `path`."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


def make_group(
    prompt: tuple[int, ...],
    responses: list[tuple[int, ...]],
    rewards: list[float | None],
    prompt_id: str = "0/0",
) -> Group:
    """A scored group; behaviour log-probabilities are made up from the token ids."""
    made = []
    for index, (tokens, reward) in enumerate(zip(responses, rewards, strict=True)):
        generated = make_generated(
            prompt_id=prompt_id,
            index=index,
            token_ids=tokens,
            logprobs=tuple(-1.0 - (token % 7) / 3 for token in tokens),
        )
        outcome = Outcome.INFRA if reward is None else Outcome.OK
        score = Score(
            prompt_id=prompt_id,
            index=index,
            reward=reward,
            outcome=outcome,
            detail="",
            scorer="test",
            started_s=0.0,
            finished_s=0.0,
        )
        made.append(Response(generated=generated, score=score))
    asked = Prompt(prompt_id=prompt_id, domain="test", token_ids=prompt, gold="", text="")
    return Group(prompt=asked, responses=tuple(made))


def with_episodes(groups: Sequence[Group], seed: int) -> tuple[Group, ...]:
    """The same, half of the responses in episodes: the same sampled tokens, others between."""
    rng = random.Random(f"{seed}/episodes")
    made = []
    for group in groups:
        first = tuple(rng.randrange(VOCABULARY) for _ in range(3))
        responses = tuple(
            replace(
                response,
                generated=as_episode(
                    response.generated,
                    random_turns(rng, response.generated.num_sampled, first),
                ),
            )
            if rng.random() < 0.5
            else response
            for response in group.responses
        )
        made.append(replace(group, responses=responses))
    return tuple(made)


def random_groups(seed: int, num_groups: int = 4, num_responses: int = 4) -> tuple[Group, ...]:
    """Groups in two families with a shared prefix, long-tailed response lengths, some equal
    responses, a few infra failures."""
    rng = random.Random(seed)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(length))

    families = [draw(9), draw(5)]
    groups = []
    for index in range(num_groups):
        prompt = families[index % 2] + draw(rng.randint(1, 6))
        responses = [draw(rng.choice([1, 2, 3, 5, 8, 30])) for _ in range(num_responses)]
        responses[-1] = responses[0]
        rewards = [rng.choice([0.0, 0.0, 1.0, 1.0, 0.5, None]) for _ in responses]
        groups.append(make_group(prompt, responses, rewards, prompt_id=f"0/{index}"))
    return tuple(groups)


def routed_at_random(
    groups: Sequence[Group], experts: int = 4, layers: int = 2, top: int = 2, seed: int = 0
) -> tuple[Group, ...]:
    """The groups, with routes that no router chose: two different experts in every layer, which
    depend on the tokens up to each, as those of an engine do."""
    known: dict[tuple[int, ...], list[int]] = {}
    draw = np.random.default_rng(seed)

    def of(group: Group, generated: Any) -> Routes:  # Any: a response
        tokens = (*group.prompt.token_ids, *generated.token_ids)
        rows = []
        for end in range(1, len(tokens)):
            if tokens[:end] not in known:
                drawn = [draw.permutation(experts)[:top] for _ in range(layers)]
                known[tokens[:end]] = np.concatenate(drawn).tolist()
            rows += known[tokens[:end]]
        return Routes(width=layers * top, num_bytes=1, data=bytes(rows))

    return tuple(
        replace(
            group,
            responses=tuple(
                replace(each, generated=replace(each.generated, routes=of(group, each.generated)))
                for each in group.responses
            ),
        )
        for group in groups
    )


def one_row(samples: Sequence[Sample]) -> DeviceRow:
    """The samples as one row on the CPU."""
    return row_of(pack_samples(samples), torch.device("cpu"))


def run_rows(step: MicroStep, samples: Sequence[Sample], max_tokens: int) -> AccumulateReport:
    """Train the samples in rows on the CPU."""
    rows = prepared(micro_batches(samples, max_tokens), torch.device("cpu"))
    return total([step.run(each) for each in rows])


def add_adapter(model: nn.Module, adapter: Mapping[str, Tensor], scale: float) -> None:
    """Freeze a plain model, and add the adapter's products to its layers' outputs by hooks, which
    are functions of tensors with gradients of their own."""
    model.requires_grad_(False)
    for name, tensor in adapter.items():
        if name.endswith(A):
            stem = name.removesuffix(A)
            first, second = tensor, adapter[stem + B]

            def add(
                module: nn.Module,
                inputs: tuple[Tensor, ...],
                output: Tensor,
                first: Tensor = first,
                second: Tensor = second,
            ) -> Tensor:
                return output + scale * (inputs[0] @ first.T @ second.T)

            model.get_submodule(stem).register_forward_hook(add)


@contextmanager
def new_objects_alone() -> Iterator[None]:
    """In the block `live_tensors` looks through what is made there, not through the million objects
    of the libraries."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def live_tensors() -> list[Tensor]:
    """Every tensor of this process that has a storage: not those that stand for the shards of
    others."""
    gc.collect()
    objects = [found for found in gc.get_objects() if issubclass(type(found), Tensor)]
    return [found for found in objects if not issubclass(type(found), DTensor)]


def parts_in_mini_batches(
    groups: Sequence[Group], step: int, rank: int
) -> Iterator[tuple[GroupPart, ...]]:
    """What one of two ranks gets of a step's two mini-batches, in their order."""
    by_id = {group.prompt.prompt_id: group for group in groups}
    for share in in_mini_batches(groups, step, 2, 2, flat_costs=True):
        if share.rank == rank:
            yield tuple(GroupPart(group=by_id[name], places=at) for name, at in share.parts)
