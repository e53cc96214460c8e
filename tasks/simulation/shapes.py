"""The size of a model: parameters, bytes and arithmetic of a token, from its config.json.

Dense decoder-only transformers with gated feed-forward layers (Llama, Qwen2, Qwen3, ...). Leaves
out mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

BF16_BYTES = 2
BIASED = ("qwen2",)  # model types whose query, key and value projections always have a bias
NORMED = ("qwen3",)  # model types that normalise every query and key head


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model, as in its config.json."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int  # query heads of a layer
    num_kv_heads: int  # key-value heads of a layer
    head_size: int
    intermediate_size: int  # of the feed-forward layer, which is gated
    vocabulary_size: int
    is_tied: bool  # whether the head is the embedding
    has_qkv_bias: bool = False
    has_head_norms: bool = False

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, Any]) -> Self:  # Any: JSON values
        """The shape that a transformers config.json describes. ValueError for a mixture of
        experts."""
        if config.get("num_experts") or config.get("num_local_experts"):
            raise ValueError(
                f"the model must be dense, got {name}, a mixture of experts, whose cost is not"
                " modelled; give a dense model of as many active parameters"
            )
        kind, heads = config["model_type"], config["num_attention_heads"]
        return cls(
            name=name,
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate_size=config["intermediate_size"],
            vocabulary_size=config["vocab_size"],
            is_tied=config.get("tie_word_embeddings", False),
            has_qkv_bias=kind in BIASED or config.get("attention_bias", False),
            has_head_norms=kind in NORMED,
        )

    @property
    def layer_matrix_parameters(self) -> int:
        """Parameters of the matrix products of one layer."""
        queries = self.num_heads * self.head_size
        keys = self.num_kv_heads * self.head_size
        attention = self.hidden_size * (2 * queries + 2 * keys)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def matrix_parameters(self) -> int:
        """Parameters of the matrix products of all layers and the head. The embedding is left out:
        a token reads only one row of it."""
        return self.num_layers * self.layer_matrix_parameters + self._embedding_parameters

    @property
    def parameters(self) -> int:
        """All parameters."""
        head_sizes = self.head_size * (self.num_heads + 2 * self.num_kv_heads)
        vectors = 2 * self.hidden_size + self.has_qkv_bias * head_sizes
        vectors += self.has_head_norms * 2 * self.head_size
        num_embeddings = 1 if self.is_tied else 2
        return (
            self.num_layers * (self.layer_matrix_parameters + vectors)
            + num_embeddings * self._embedding_parameters
            + self.hidden_size
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, in bf16."""
        return BF16_BYTES * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in all layers, in bf16."""
        return 2 * BF16_BYTES * self.num_layers * self.num_kv_heads * self.head_size

    @property
    def flops_per_token(self) -> int:
        """FLOPs of a token's forward pass without attention: a multiplication and an addition for
        each parameter."""
        return 2 * self.matrix_parameters

    @property
    def flops_per_token_pair(self) -> int:
        """FLOPs of a token that attends to another one: its scores and its values, in all
        layers."""
        return 4 * self.num_layers * self.num_heads * self.head_size

    @property
    def _embedding_parameters(self) -> int:
        return self.vocabulary_size * self.hidden_size


def _qwen(
    kind: str,
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    intermediate: int,
    vocabulary: int,
) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_size=128,
        intermediate_size=intermediate,
        vocabulary_size=vocabulary,
        is_tied=False,
        has_qkv_bias=kind in BIASED,
        has_head_norms=kind in NORMED,
    )


# from the config.json of each model's public repository (huggingface.co/Qwen)
MODELS: Mapping[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _qwen("qwen2", "qwen2.5-7b", 28, 3584, (28, 4), 18944, 152064),
        _qwen("qwen2", "qwen2.5-14b", 48, 5120, (40, 8), 13824, 152064),
        _qwen("qwen2", "qwen2.5-32b", 64, 5120, (40, 8), 27648, 152064),
        _qwen("qwen3", "qwen3-8b", 36, 4096, (32, 8), 12288, 151936),
        _qwen("qwen3", "qwen3-14b", 40, 5120, (40, 8), 17408, 151936),
        _qwen("qwen3", "qwen3-32b", 64, 5120, (64, 8), 25600, 151936),
    )
}
