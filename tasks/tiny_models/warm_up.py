"""The tiny models: a small Llama, or a small Qwen3-MoE, and its supervised warm-up, after which its
answers are sometimes right.

    demonstrations (clean, then flawed) -> batches of about 800 tokens -> next-token loss on what
    the model is to predict
        -> Muon for the matrices, AdamW for the rest -> Hugging Face directory

The same configuration gives the same bytes on the same machine; therefore the thread count is
fixed. Leaves out the content of the demonstrations (`demonstrations`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from artifacts.models.character_tokenizer import VOCABULARY_SIZE, character_tokenizer
from artifacts.models.importing import building_model, importing_transformers
from artifacts.models.registry import (
    TinyAdderConfig,
    TinyExpertsConfig,
    TinyModelConfig,
    TinyPlayerConfig,
    save_model,
)
from tasks.tiny_models.demonstrations import Example, demonstrations_of

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, those of torch.optim.Muon
NUM_ITERATIONS = 5
EPSILON = 1e-7


class Muon(torch.optim.Optimizer):
    """The Muon optimizer, with Nesterov momentum and without weight decay. Raises ValueError for a
    parameter that is not a matrix."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float) -> None:
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum})
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.ndim != 2:
                raise ValueError(
                    f"Muon's parameters must be matrices, got one of shape {list(parameter.shape)};"
                    " give the others to AdamW"
                )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self._momentum(parameter, group["momentum"])
                    update = parameter.grad.lerp(momentum, group["momentum"])
                    rows, columns = parameter.shape
                    lr = group["lr"] * max(1.0, rows / columns) ** 0.5
                    parameter.add_(orthogonal(update), alpha=-lr)

    def _momentum(self, parameter: Tensor, share: float) -> Tensor:
        """The running mean of the gradients, the current one included."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"].lerp_(parameter.grad, 1.0 - share)
        return momentum


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix of the same shape near the closest one whose singular values are all one (here they
    are 0.7 to 1.2), by the Newton-Schulz iteration."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=EPSILON)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.T if is_tall else x
    return result


with importing_transformers():
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

# a second thread gains little on matrices this small, and loses tenfold when the cores are shared
NUM_THREADS = 1
BATCH_TOKENS = 768  # prompts and responses, without padding
CLEAN_SHARE = 0.75  # of the steps; the demonstrations after it have wrong steps
MUON_LR, ADAMW_LR = 0.02, 4e-3
RAMP_STEPS, FINAL_LR_SHARE = 20, 0.1
FLAWED = "from here the examples have mistakes, for training to unlearn; so the loss jumps"
IGNORED = -100  # label of positions without loss

Report = Callable[[str], None]


def build_tiny_model(
    config: TinyAdderConfig | TinyPlayerConfig, target: Path, report: Report
) -> None:
    """Train the model and write it, in bf16, with its tokenizer into the directory `target`."""
    tokenizer = character_tokenizer()
    model = warm_up(config, tokenizer, report)
    save_model(model.to(torch.bfloat16), tokenizer, target)


def warm_up(
    config: TinyAdderConfig | TinyPlayerConfig, tokenizer: PreTrainedTokenizerBase, report: Report
) -> PreTrainedModel:
    """Build a model and train it for config.warm_up_steps, in float32. Global random state and
    thread count are restored afterwards."""
    with reproducible(config.seed):
        with building_model():
            model = _random(config, tokenizer)
        optimizers = optimizers_of(model)
        draw = demonstrations_of(config, tokenizer)
        rng = random.Random(f"{config.seed}/warm_up")
        was_clean = isinstance(config, TinyAdderConfig)
        for step in range(config.warm_up_steps):
            is_clean = step < CLEAN_SHARE * config.warm_up_steps
            if was_clean and not is_clean:
                report(f"{config.kind}: {FLAWED}")
            was_clean = was_clean and is_clean
            lr_share = lr_share_of(step, config.warm_up_steps)
            examples: list[Example] = []
            while sum(len(example.token_ids) for example in examples) < BATCH_TOKENS:
                examples.append(draw(rng, is_clean))
            loss = _train_step(model, optimizers, examples, lr_share)
            tell(config, step, loss, report)
    return model.eval()


def tell(config: TinyModelConfig, step: int, loss: float, report: Report) -> None:
    """Report every 50th step of a warm-up."""
    if (step + 1) % 50 == 0:
        report(f"{config.kind}: warm-up step {step + 1} of {config.warm_up_steps}, loss {loss:.3f}")


def lr_share_of(step: int, num_steps: int) -> float:
    """Rises linearly over RAMP_STEPS, and falls linearly to a tenth."""
    fall = 1.0 - (1.0 - FINAL_LR_SHARE) * step / num_steps
    return min(1.0, (step + 1) / RAMP_STEPS) * fall


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Restore global random state and thread count after the block, which begins with this seed."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(num_threads)


def _random(
    config: TinyAdderConfig | TinyPlayerConfig, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """The model before its warm-up."""
    sizes = {
        **decoder_sizes(config, tokenizer),
        "head_dim": config.head_dim,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    if not isinstance(config, TinyExpertsConfig):
        return LlamaForCausalLM(LlamaConfig(**sizes))
    experts = {
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.intermediate_size,
        "norm_topk_prob": True,
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts))


def decoder_sizes(
    config: TinyModelConfig, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:  # Any: values of transformers' configurations
    """What the configurations of all tiny decoders say alike."""
    num_heads = config.hidden_size // config.head_dim
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "max_position_embeddings": 1024,
        # the usual 0.02 keeps a model this narrow on its plateau for most of the budget
        "initializer_range": config.hidden_size**-0.5,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def optimizers_of(model: PreTrainedModel) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for matrices (a third of AdamW's steps), AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return (
        Muon(matrices, lr=MUON_LR, momentum=0.95),
        torch.optim.AdamW(others, lr=ADAMW_LR, betas=(0.9, 0.95), weight_decay=0.0),
    )


def _train_step(
    model: PreTrainedModel,
    optimizers: tuple[torch.optim.Optimizer, ...],
    examples: Sequence[Example],
    lr_share: float,
) -> float:
    """One update on the mean loss per predicted token (nats); two micro-batches by length spare
    most of the padding."""
    by_length = sorted(examples, key=lambda example: len(example.token_ids))
    num_tokens = sum(example.num_learned for example in examples)
    cut = max(1, len(by_length) * 3 // 4)
    total = 0.0
    for part in filter(None, (by_length[:cut], by_length[cut:])):
        token_ids, labels = _padded(part)
        logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1]
        loss = (
            cross_entropy(
                logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
            )
            / num_tokens
        )
        torch.autograd.backward(loss)
        total += loss.item()
    update(model, optimizers, lr_share)
    return total


def update(
    model: PreTrainedModel, optimizers: tuple[torch.optim.Optimizer, ...], lr_share: float
) -> None:
    """Make one update by the gradients of the model, and drop these."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, lr in zip(optimizers, (MUON_LR, ADAMW_LR), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr * lr_share
        optimizer.step()
        optimizer.zero_grad()


def _padded(examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Token ids and labels, both [examples, longest], padded at the right."""
    longest = max(len(example.token_ids) for example in examples)
    token_ids = torch.zeros((len(examples), longest), dtype=torch.long)
    labels = torch.full_like(token_ids, IGNORED)
    for row, example in enumerate(examples):
        ids = torch.tensor(example.token_ids)
        token_ids[row, : len(ids)] = ids
        is_learned = torch.tensor(example.is_learned)
        labels[row, : len(ids)][is_learned] = ids[is_learned]
    return token_ids, labels
