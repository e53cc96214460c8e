"""Tiny models with random weights, one for each architecture that people bring.

Every one has two or more layers, grouped-query attention, and what is particular to it: windows
short enough to matter, layers without positions, scaled embeddings or logits, experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512,
    "initializer_range": 0.1, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
WINDOW = 8  # shorter than the sequences of the tests
# model_type in Hugging Face's words, and what the architecture has beside the sizes
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {  # Any: values of configurations
    "llama": {},
    "qwen2": {},
    "qwen2 with windows": {
        "model_type": "qwen2", "use_sliding_window": True, "sliding_window": WINDOW,
        "max_window_layers": 1,
    },
    "qwen3": {},
    "mistral": {"sliding_window": None},
    "mistral with windows": {"model_type": "mistral", "sliding_window": WINDOW},
    "gemma": {},
    "gemma2": {"sliding_window": WINDOW},
    "gemma3_text": {
        "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 32,
    },
    "phi": {},
    "phi3": {"sliding_window": None},
    "olmo2": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "granite": {
        "logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
    },
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "glm4_moe": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
        "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    },
    "deepseek_v3": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "n_shared_experts": 1, "n_group": 2, "topk_group": 2, "first_k_dense_replace": 0,
        "norm_topk_prob": True, "routed_scaling_factor": 1.5, "num_key_value_heads": 2,
        "q_lora_rank": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 32, "head_dim": 32,
        "qk_nope_head_dim": 64, "v_head_dim": 48,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid",  # vLLM asks, transformers knows
    },
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
}  # fmt: skip

LABELS = {  # as people call them, those that see among them (`tasks.tiny_models` builds these)
    "llama": "Llama",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen2 with windows": "Qwen2, windows in some layers",
    "qwen3": "Qwen3",
    "mistral": "Mistral",
    "mistral with windows": "Mistral, with windows",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 (text)",
    "phi": "Phi (1, 2)",
    "phi3": "Phi-3, Phi-4",
    "olmo2": "OLMo 2",
    "smollm3": "SmolLM3",
    "granite": "Granite",
    "qwen3_moe": "Qwen3-MoE",
    "olmoe": "OLMoE",
    "mixtral": "Mixtral",
    "glm4_moe": "GLM-4-MoE",
    "deepseek_v3": "DeepSeek-V3",
    "gpt_oss": "gpt-oss",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
}


def save_tiny(
    name: str,
    path: Path,
    vocabulary: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,  # Any: as above
) -> Path:
    """Save an architecture of the table with random weights, without a tokenizer. Buffers do not
    depend on the seed: they are the same in all versions of a run."""
    fields = {**SIZES, "vocab_size": vocabulary, **ARCHITECTURES[name], **(changes or {})}
    model_type = fields.pop("model_type", name)
    config = AutoConfig.for_model(model_type, **fields)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    chance = torch.Generator().manual_seed(0)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.1, generator=chance)
    model.save_pretrained(path)
    return path
