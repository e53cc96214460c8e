"""A model of random weights whose responses have geometric lengths, questions for it, and a reward:
timing runs know the length distribution of what they generate.

Times depend on the model's sizes and on lengths, not on words. One channel of the residual stream
is the same number everywhere: all embeddings have it, no layer writes to it. The end token's row of
the head reads only that channel, so that its logit is the same at every position, and is scaled
until the token's probability is 1 / mean. Holds at temperature 1 while the learning rate is too
small to move the weights.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<s>", "</s>")
CONSTANT = 8.0  # of the channel that no layer writes to
TEMPLATE = "{{ bos_token }} {% for message in messages %}{{ message['content'] }} {% endfor %}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a Llama."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int = 49152


SHAPES = {
    "tiny": Shape(hidden=64, inner=128, layers=2, heads=2, key_heads=1, vocabulary=512),
    "0.5b": Shape(hidden=1024, inner=4096, layers=24, heads=16, key_heads=8),
    "1b": Shape(hidden=2048, inner=8192, layers=12, heads=16, key_heads=8),
    "1.5b": Shape(hidden=2048, inner=8192, layers=22, heads=16, key_heads=8),
    "7b": Shape(hidden=4096, inner=14336, layers=28, heads=32, key_heads=8),
}


def make_model(folder: Path, shape: Shape, mean_tokens: float, device: str) -> Path:
    """Make the model and its tokenizer, every token of which is a word, in `folder`."""
    words = [*SPECIAL, *map(str, range(shape.vocabulary - len(SPECIAL)))]
    backend = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=shape.vocabulary,
                hidden_size=shape.hidden,
                intermediate_size=shape.inner,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.key_heads,
                max_position_embeddings=8192,
                tie_word_embeddings=False,
                bos_token_id=1,
                eos_token_id=2,
                pad_token_id=2,
            )
        ).to(torch.bfloat16)
        _set_end(model, 2, 1.0 / mean_tokens)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def _set_end(model: LlamaForCausalLM, end: int, probability: float) -> None:
    """Give the end token this probability at every position."""
    head = model.lm_head.weight
    model.model.embed_tokens.weight[:, 0] = CONSTANT
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    head[:, 0] = 0.0
    head[end] = 0.0
    states = model.model(input_ids=torch.randint(3, len(head), (4, 64))).last_hidden_state.float()
    others = (states @ head.float().t()).logsumexp(-1).mean()
    wanted = float(others) + math.log(probability / (1.0 - probability))
    head[end, 0] = wanted / float(states[..., 0].mean())


def write_questions(path: Path, number: int = 2000) -> Path:
    """Write questions of 40 to 120 words, one JSON object a line."""
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(number):
            words = (str(draw.randrange(400)) for _ in range(draw.randint(40, 120)))
            file.write(json.dumps({"prompt": " ".join(words), "answer": "0"}) + "\n")
    return path


def reward(prompt: str, response: str, gold: str) -> float:
    """1 for half of all responses, by the last bit of a checksum."""
    return float(zlib.crc32(response.encode()) & 1)
