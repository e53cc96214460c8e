"""What a learner computes of an architecture, beside transformers' own passes over one sequence at
a time (`naive_model`), in fp32: forward within 1e-5, gradients within 1e-5 of their largest.

packed_training     rows of packed trees, all parameters, of some prompts with a picture
adapter_training    the same with a random adapter, whose gradients are those of merged weights
expert_parallel     two gloo processes that share experts, each with half of the rows

Every check raises an error with what differs.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from artifacts.adapter_files import A, B, merged, stem_of, write_adapter
from artifacts.records import ShownPicture
from research.benchmarks.naive_model import (
    Read,
    check_gradient,
    check_gradients,
    gradient_of,
    naive_logp,
    naive_loss,
    naive_model,
    no_patches,
    random_samples,
)
from tasks.learner.architecture import empty_model, read_config
from tasks.learner.expert_parallel import spreadable
from tasks.learner.lora_config import LoraConfig
from tasks.learner.losses.weighted import ReinforceLoss
from tasks.learner.micro_step import MicroStep
from tasks.learner.objective import Objective
from tasks.learner.packing import Sample, micro_batches
from tasks.learner.policy import PolicyModel, load_policy
from tasks.learner.ranks import Ranks
from tasks.learner.row_report import total
from tasks.learner.rows import prepared
from tasks.learner.tower import Pictures

TEMPERATURE = 0.8
ROW_TOKENS = 60  # some samples share a row, none have all
ONE_ROW = 10**6
OF_TEXT = 32  # token ids below are of characters in the tokenizers of all tiny models
FORWARD = 1e-5  # of a log-probability, relative and in nats
CPU = torch.device("cpu")
NUM_RANKS = 2
DEADLINE_S = 300.0  # of two ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrompt:
    """A prompt that shows pictures, and how they are read by content."""

    tokens: tuple[int, ...]
    pictures: tuple[ShownPicture, ...]
    read: Read


def packed_training(model: Path, shown: ShownPrompt | None = None) -> None:
    """Check that packed rows have the log-probabilities and gradients of a plain pass. shown: the
    prompt of half of the samples, for a model that sees. Raises AssertionError, and ValueError for
    a model that a learner refuses."""
    pictures = Pictures(read=shown.read, is_trained=True) if shown else None
    policy = load_policy(str(model), "fp32", Ranks(0, 1, CPU), pictures=pictures)
    plain = naive_model(str(model))
    assert {name for name, _ in plain.named_parameters()} == policy.parameters.shapes.keys()
    _check_passes(policy, plain, shown)
    check_gradients(policy, plain)


def _check_passes(policy: PolicyModel, plain: nn.Module, shown: ShownPrompt | None = None) -> None:
    """Check the forward pass, and leave the gradients of one loss in both models."""
    samples = random_samples(3, OF_TEXT)
    read: Read = no_patches
    if shown is not None:
        prompt, read = np.array(shown.tokens), shown.read
        seeing = [replace(each, prompt=prompt, pictures=shown.pictures) for each in samples[::2]]
        samples = [*seeing, *samples[1::2]]
    logp = {id(each): naive_logp(plain, each, TEMPERATURE, read)[0] for each in samples}
    for row in prepared(micro_batches(samples, ROW_TOKENS), CPU):
        wanted = torch.cat([logp[id(sample)] for sample in row.batch.samples])
        found = policy.score(row, TEMPERATURE).logp
        torch.testing.assert_close(found, wanted.detach(), rtol=FORWARD, atol=FORWARD)
    loss = naive_loss(samples, lambda sample: logp[id(sample)])
    torch.autograd.backward(loss)
    loss_sum = _train(policy, samples)
    torch.testing.assert_close(loss_sum, loss.item(), rtol=FORWARD, atol=FORWARD)


def _train(policy: PolicyModel, samples: Sequence[Sample], row_tokens: int = ROW_TOKENS) -> float:
    """Add the samples' gradients to the policy's; returns the sum of their losses."""
    step = MicroStep(Objective(loss=ReinforceLoss()), TEMPERATURE, policy, None)
    rows = prepared(micro_batches(samples, row_tokens), CPU)
    return total([step.run(row) for row in rows]).loss_sum


def save_random_adapter(
    model: Path, lora: LoraConfig, folder: Path, shown: ShownPrompt | None = None
) -> LoraConfig:
    """Save an adapter of which no matrix is zero; returns the settings that begin with it."""
    made = _adapted(model, lora, shown).parameters
    chance = torch.Generator().manual_seed(1)
    tensors = {
        name: 0.15 * torch.randn(shape, generator=chance) for name, shape in made.shapes.items()
    }
    write_adapter(folder, tensors, scale=lora.scale, base_model=str(model))
    return lora.model_copy(update={"initial": str(folder)})


def _adapted(model: Path, lora: LoraConfig, shown: ShownPrompt | None) -> PolicyModel:
    """The model with an adapter, beside a frozen tower if it sees."""
    pictures = Pictures(read=shown.read, is_trained=False) if shown else None
    return load_policy(str(model), "fp32", Ranks(0, 1, CPU), lora=lora, pictures=pictures)


def adapter_training(model: Path, lora: LoraConfig, shown: ShownPrompt | None = None) -> None:
    """Check an adapter, published beside the weights, against a plain model with merged weights.
    shown: as above. Raises AssertionError."""
    policy = _adapted(model, lora, shown)
    plain = naive_model(str(model))
    adapter = {name: tensor.clone() for name, tensor in policy.parameters.exported()}
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            weight.copy_(merged(name, weight, adapter, lora.scale))
    _check_passes(policy, plain, shown)
    for stem in dict.fromkeys(map(stem_of, adapter)):
        of_weight = gradient_of(plain.get_parameter(f"{stem}.weight"))
        first, second = adapter[stem + A], adapter[stem + B]
        for name, wanted in ((stem + A, second.T @ of_weight), (stem + B, of_weight @ first.T)):
            check_gradient(name, policy.parameters.gradient(name), lora.scale * wanted)


def expert_parallel(model: Path, folder: Path) -> None:
    """Check that two ranks with half of the experts and rows each sum up the plain gradients.
    folder: where they meet. Raises RuntimeError if one does not end well, ValueError for experts
    that two ranks cannot share."""
    if not list(spreadable(empty_model(read_config(model)), NUM_RANKS)):
        raise ValueError(
            f"experts that {NUM_RANKS} ranks cannot share evenly; keep"
            " learner.parameters=replicated"
        )
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_check_rank, args=(rank, str(model), str(folder)))
        for rank in range(NUM_RANKS)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(DEADLINE_S)
        process.kill()
        process.join()
    codes = [process.exitcode for process in ranks]
    if any(codes):
        raise RuntimeError(f"two ranks that share experts ended with {codes}, see above")


def _check_rank(rank: int, model: str, folder: str) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank, NUM_RANKS, CPU)
    ranks.join(f"file://{folder}/meeting", DEADLINE_S)
    policy, plain = load_policy(model, "fp32", ranks, "sharded"), naive_model(model)
    samples = random_samples(3, OF_TEXT)
    loss = naive_loss(samples, lambda each: naive_logp(plain, each, TEMPERATURE)[0])
    torch.autograd.backward(loss)
    _train(policy, samples[rank::NUM_RANKS], ONE_ROW)  # ranks work in step: a row for each
    reduced = policy.parameters.reduced()
    for piece, found in zip(policy.parameters.pieces, reduced, strict=True):
        whole = gradient_of(plain.get_parameter(piece.name)).flatten()
        wanted = whole[piece.start : piece.start + found.numel()]
        check_gradient(piece.name, found, wanted)
    ranks.close()
