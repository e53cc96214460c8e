"""Learner throughput against a plain transformers and torch loop: same model, same batch, same
loss, paired runs.

    python -m research.benchmarks.learner_throughput --model smollm2 --threads 2
    python -m research.benchmarks.learner_throughput --model random-1.5b --device cuda --groups 64

The plain loop pads each micro-batch of sequences to its longest, runs every prompt once per
response and takes log-softmax at the response positions only. Both sides count the tokens of
prompts and responses as they stand in the batch, so tokens/s compare. Leaves out rollout and the
update.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from artifacts.models.registry import SmolLM2Config
from artifacts.records import Generated, Group, Outcome, Prompt, Response, Score, VersionSpan, pack
from tasks.learner.learner_config import LearnerConfig
from tasks.learner.losses.clipped import PpoClipLoss
from tasks.learner.packing import Sample
from tasks.learner.samples import training_set
from tasks.learner.token_loss import TokenBatch
from tasks.learner.trainer import LearnerRank
from tasks.tiny_models.models import resolve_model

_SHAPES = {"random-0.5b": (1024, 4096, 24, 16, 8), "random-1.5b": (2048, 8192, 22, 16, 8)}


def long_tailed_groups(num_groups: int, num_responses: int, seed: int) -> tuple[Group, ...]:
    """Prompts of 230 tokens, 200 of them shared by a family; response lengths p50 21, p75 38, p95
    178, at most 256."""
    rng = random.Random(seed)
    families = [_draw(rng, 200) for _ in range(3)]
    return tuple(
        _group(rng, families[index % 3] + _draw(rng, 30), num_responses, index)
        for index in range(num_groups)
    )


def _group(rng: random.Random, tokens: tuple[int, ...], num_responses: int, index: int) -> Group:
    prompt = Prompt(prompt_id=f"0/{index}", domain="synthetic", token_ids=tokens, gold="", text="")
    responses = tuple(
        _response(rng, prompt.prompt_id, number, float(number % 2))
        for number in range(num_responses)
    )
    return Group(prompt=prompt, responses=responses)


def _response(rng: random.Random, prompt_id: str, index: int, reward: float) -> Response:
    tokens = _draw(rng, _length(rng))
    generated = Generated(
        prompt_id=prompt_id,
        index=index,
        token_ids=tokens,
        logprobs=tuple(-10.0 - rng.random() for _ in tokens),
        versions=(VersionSpan(version=0, num_tokens=len(tokens)),),
        finish_reason="stop",
        text="",
        engine="synthetic",
        submitted_s=0.0,
        first_token_s=0.0,
        finished_s=0.0,
    )
    score = Score(
        prompt_id=prompt_id,
        index=index,
        reward=reward,
        outcome=Outcome.OK,
        detail="",
        scorer="none",
        started_s=0.0,
        finished_s=0.0,
    )
    return Response(generated=generated, score=score)


def _draw(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(100, 32000) for _ in range(length))


def _length(rng: random.Random) -> int:
    """Inverse of the piecewise linear distribution through the quartiles above."""
    quantiles = ((0.0, 5), (0.5, 21), (0.75, 38), (0.95, 178), (1.0, 256))
    drawn = rng.random()
    for (low, short), (high, long) in pairwise(quantiles):
        if drawn <= high:
            return round(short + (long - short) * (drawn - low) / (high - low))
    return quantiles[-1][1]


class PaddedLoop:
    """The plain loop: fp32 weights with bf16 autocast, or a bf16 model; torch's fused attention."""

    def __init__(self, model_path: str, device: str, autocast: bool, batch_sequences: int) -> None:
        dtype = torch.float32 if autocast else torch.bfloat16
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=dtype, attn_implementation="sdpa"
        ).to(device)
        self.device, self.autocast, self.batch_sequences = device, autocast, batch_sequences
        self.loss = PpoClipLoss()

    def run(self, samples: tuple[Sample, ...]) -> float:
        """Forward and backward over all samples; the loss sum."""
        self.model.zero_grad(set_to_none=True)
        starts = range(0, len(samples), self.batch_sequences)
        return sum(
            self._micro_batch(samples[start : start + self.batch_sequences]) for start in starts
        )

    def _micro_batch(self, samples: tuple[Sample, ...]) -> float:
        longest = max(len(sample.prompt + sample.response) for sample in samples)
        ids = torch.zeros(len(samples), longest, dtype=torch.int64)
        seen, predicts = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for row, sample in enumerate(samples):
            tokens = sample.prompt + sample.response
            ids[row, : len(tokens)] = torch.tensor(tokens)
            seen[row, : len(tokens)] = 1
            predicts[row, [len(sample.prompt) - 1 + place for place in sample.places]] = True
        ids, seen, predicts = (tensor.to(self.device) for tensor in (ids, seen, predicts))
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.autocast):
            hidden = self.model.base_model(
                input_ids=ids, attention_mask=seen, use_cache=False
            ).last_hidden_state[predicts]
            logits = self.model.get_output_embeddings()(hidden)
        targets = ids.roll(-1, dims=1)[predicts]
        logp = logits.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
        batch = self._tokens(samples)
        loss = (self.loss.token_loss(logp, batch).loss * batch.weight).sum()
        torch.autograd.backward(loss)
        return float(loss.detach())

    def _tokens(self, samples: tuple[Sample, ...]) -> TokenBatch:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.device)

        return TokenBatch(
            sampling_logp=column([value for sample in samples for value in sample.sampling_logp]),
            advantage=column([value for sample in samples for value in sample.token_advantages]),
            reward=column([sample.reward for sample in samples for _ in sample.places]),
            weight=column([sample.weight for sample in samples for _ in sample.places]),
            num_tokens=column([sample.num_sampled for sample in samples for _ in sample.places]),
            reference=None,
            mean_log_ratio=None,
        )


def matmul_ceiling(device: str) -> float:
    """Best bf16 matrix product rate of the device, FLOP/s."""
    size = 8192 if device == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = [_timed(lambda: left @ right, device) for _ in range(8)]
    return 2 * size**3 / min(times)


def _timed(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _model_path(name: str) -> str:
    if name not in _SHAPES:
        return (
            str(resolve_model(SmolLM2Config(), Path("runs/models"))) if name == "smollm2" else name
        )
    hidden, inner, layers, heads, key_heads = _SHAPES[name]
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        tie_word_embeddings=True,
    )
    path = tempfile.mkdtemp(prefix="rollflow-random-model-")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        default="smollm2",
        help="smollm2, random-0.5b, random-1.5b, or a model's directory",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument(
        "--repeats", type=int, default=3, help="paired runs after one that warms up"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of either side")
    parser.add_argument(
        "--max-tokens", type=int, default=2048, help="computed tokens per packed row"
    )
    parser.add_argument(
        "--batch-sequences", type=int, default=8, help="sequences per padded micro-batch"
    )
    parser.add_argument(
        "--autocast",
        action="store_true",
        help="plain loop with fp32 weights under autocast instead of bf16 weights",
    )
    return parser.parse_args()


def main() -> None:
    """Print every pair, the medians and the ratio."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    config, path = (
        LearnerConfig(max_tokens_per_microbatch=arguments.max_tokens),
        _model_path(arguments.model),
    )
    learner = LearnerRank(config, path, 0, 1, arguments.device)
    plain = PaddedLoop(path, arguments.device, arguments.autocast, arguments.batch_sequences)
    groups = long_tailed_groups(arguments.groups, arguments.responses, seed=0)
    payload, samples = (
        pack(groups),
        training_set(groups, config.advantage, config.aggregation).samples,
    )
    num_tokens = sum(len(sample.prompt) + len(sample.response) for sample in samples)
    warm = long_tailed_groups(1, 2, seed=1)
    learner.accumulate(pack(warm))
    plain.run(training_set(warm, config.advantage, config.aggregation).samples)
    pairs: list[tuple[float, float]] = []
    for _ in range(arguments.repeats):
        learner.discard()
        pairs.append(
            (
                _timed(lambda: learner.accumulate(payload), arguments.device),
                _timed(lambda: plain.run(samples), arguments.device),
            )
        )
        ours, theirs = (num_tokens / seconds for seconds in pairs[-1])
        print(
            f"learner_tokens_per_s={ours:.0f} plain_tokens_per_s={theirs:.0f}"
            f" ratio={ours / theirs:.2f}",
            flush=True,
        )
    learner.discard()
    report = learner.accumulate(payload)
    ours, theirs = (num_tokens / statistics.median(column) for column in zip(*pairs, strict=True))
    size = sum(parameter.numel() for parameter in plain.model.parameters())
    head = plain.model.get_output_embeddings().weight.numel()
    flops = 6 * (size - head) * report.num_tokens_computed + 6 * head * report.num_tokens_scored
    utilisation = flops / (num_tokens / ours) / matmul_ceiling(arguments.device)
    print(
        f"batch_tokens={num_tokens} computed_tokens={report.num_tokens_computed}"
        f" micro_batches={report.num_micro_batches}"
    )
    print(
        f"median: learner_tokens_per_s={ours:.0f} plain_tokens_per_s={theirs:.0f}"
        f" ratio={ours / theirs:.2f}"
    )
    print(f"matmul share of the measured ceiling, attention not counted: {utilisation:.2f}")


if __name__ == "__main__":
    main()
