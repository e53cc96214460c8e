"""Learner throughput against a plain transformers and torch loop: same model, same batch, same
loss, paired runs.

    python -m research.benchmarks.learner_throughput --model smollm2 --threads 2
    python -m research.benchmarks.learner_throughput --model random-1.5b --device cuda --groups 64
    python -m research.benchmarks.learner_throughput --model random-1.5b --device cuda \
        --row-tokens 4096 16384 65536 --json out.json

The plain loop pads each micro-batch of sequences to its longest, runs every prompt once per
response and takes log-softmax at the response positions only. Both sides count the tokens of
prompts and responses as they stand in the batch, so tokens/s compare. With --row-tokens the learner
runs alone, on full rows of each of these lengths, and its share of the matmul ceiling is printed.
Leaves out rollout and the update.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
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
from tasks.learner.reports import AccumulateReport
from tasks.learner.samples import training_set
from tasks.learner.token_loss import TokenBatch
from tasks.learner.trainer import LearnerRank
from tasks.tiny_models.models import resolve_model

_SHAPES = {
    "random-tiny": (64, 128, 2, 4, 2),
    "random-0.5b": (1024, 4096, 24, 16, 8),
    "random-1.5b": (2048, 8192, 22, 16, 8),
}


def long_tailed_groups(num_groups: int, num_responses: int, seed: int) -> tuple[Group, ...]:
    """Prompts of 230 tokens, 200 of them shared by a family; response lengths p50 21, p75 38, p95
    178, at most 256."""
    rng = random.Random(seed)
    families = [_draw(rng, 200) for _ in range(3)]
    return tuple(
        _group(
            rng,
            families[index % 3] + _draw(rng, 30),
            [_length(rng) for _ in range(num_responses)],
            index,
        )
        for index in range(num_groups)
    )


def row_groups(row_tokens: int, num_rows: int) -> tuple[Group, ...]:
    """Groups of eight long responses, each of which fills a row of so many computed tokens."""
    rng = random.Random(0)
    response = max(2, (row_tokens - 200) // 8)
    return tuple(_group(rng, _draw(rng, 200), [response] * 8, index) for index in range(num_rows))


def _group(
    rng: random.Random, tokens: tuple[int, ...], lengths: Sequence[int], index: int
) -> Group:
    prompt = Prompt(prompt_id=f"0/{index}", domain="synthetic", token_ids=tokens, gold="", text="")
    responses = tuple(
        _response(rng, prompt.prompt_id, number, length) for number, length in enumerate(lengths)
    )
    return Group(prompt=prompt, responses=responses)


def _response(rng: random.Random, prompt_id: str, index: int, length: int) -> Response:
    tokens = _draw(rng, length)
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
        reward=float(index % 2),
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
        longest = max(len(sample.tokens) for sample in samples)
        ids = torch.zeros(len(samples), longest, dtype=torch.int64)
        seen, predicts = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for row, sample in enumerate(samples):
            tokens = sample.tokens
            ids[row, : len(tokens)] = torch.from_numpy(tokens)
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


def ceiling_share(
    config: LearnerConfig, model_path: str, device: str, row_tokens: int, num_rows: int = 4
) -> float:
    """The learner's share of the matmul ceiling on full rows of this length, attention not counted.
    The row that warms up is not timed."""
    limits = {"max_tokens_per_microbatch": row_tokens}
    learner = LearnerRank(config.model_copy(update=limits), model_path, 0, 1, device)
    learner.accumulate(pack(row_groups(row_tokens, 1)))
    learner.discard()
    payload, reports = pack(row_groups(row_tokens, num_rows)), []
    seconds = _timed(lambda: reports.append(learner.accumulate(payload)), device)
    shapes = learner._policy.parameters.shapes
    size = sum(shape.numel() for shape in shapes.values())
    head = shapes[learner._policy._head_name].numel()
    return _flops(size, head, reports[0]) / seconds / matmul_ceiling(device)


def _flops(size: int, head: int, report: AccumulateReport) -> float:
    return 6 * (size - head) * report.num_tokens_computed + 6 * head * report.num_tokens_scored


def model_of(name: str) -> str:
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
        help="smollm2, random-tiny, random-0.5b, random-1.5b, or a model's directory",
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
    parser.add_argument(
        "--row-tokens", type=int, nargs="+", help="no plain loop: the share of the matmul ceiling"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    return parser.parse_args()


def main() -> None:
    """Print every pair, the medians and the ratio; or the learner's shares of the ceiling."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    config = LearnerConfig(max_tokens_per_microbatch=arguments.max_tokens)
    path = model_of(arguments.model)
    figures: dict[str, float] = {}
    for row_tokens in arguments.row_tokens or ():
        share = ceiling_share(config, path, arguments.device, row_tokens)
        figures[f"ceiling_share_at_{row_tokens}"] = share
        print(f"row_tokens={row_tokens} share of the measured matmul ceiling: {share:.2f}")
    if not arguments.row_tokens:
        figures = _against_plain(arguments, config, path)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


def _against_plain(
    arguments: argparse.Namespace, config: LearnerConfig, path: str
) -> dict[str, float]:
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
    utilisation = (
        _flops(size, head, report) / (num_tokens / ours) / matmul_ceiling(arguments.device)
    )
    print(
        f"batch_tokens={num_tokens} computed_tokens={report.num_tokens_computed}"
        f" micro_batches={report.num_micro_batches}"
    )
    print(
        f"median: learner_tokens_per_s={ours:.0f} plain_tokens_per_s={theirs:.0f}"
        f" ratio={ours / theirs:.2f}"
    )
    print(f"matmul share of the measured ceiling, attention not counted: {utilisation:.2f}")
    return {"tokens_per_s": ours, "plain_tokens_per_s": theirs, "ceiling_share": utilisation}


if __name__ == "__main__":
    main()
