"""What an engine reads from a model directory besides weights: required files, tokenizer, end
tokens, vocabulary size and head counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.models.importing import importing_transformers

GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")  # in tokenizer_config.json
TOKENIZER_AS_NAMED = ("llama",)  # architectures whose tokenizer is what tokenizer_config.json names


def check_model_directory(model_path: str) -> None:
    """Raises ValueError, before anything heavy starts, if an engine cannot serve the directory."""
    directory = Path(model_path)
    missing = [
        name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()
    ]
    if not any(directory.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ValueError(
            "a model must be a local directory with config, tokenizer and safetensors,"
            f" {model_path} lacks {', '.join(missing)}; save model and tokenizer there with"
            " save_pretrained"
        )


def read_tokenizer(model_path: str) -> Any:  # Any: tokenizers have no useful common type
    """Load the tokenizer from the directory, without contacting a model hub."""
    with importing_transformers():  # reading one imports further parts
        if _is_generic(Path(model_path)):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(model_path, local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model_path, local_files_only=True)


def _is_generic(directory: Path) -> bool:
    """True if AutoTokenizer, which takes seconds to import, would choose the generic class, whose
    whole behaviour lies in tokenizer.json. For architectures outside TOKENIZER_AS_NAMED,
    AutoTokenizer may overrule the directory."""
    tokenizer = _read_json(directory / "tokenizer_config.json")
    return (
        tokenizer.get("tokenizer_class") in GENERIC_TOKENIZERS
        and "auto_map" not in tokenizer
        and _read_json(directory / "config.json").get("model_type") in TOKENIZER_AS_NAMED
    )


def _read_json(file: Path) -> Mapping[str, Any]:  # Any: JSON values
    """The content of a JSON file of the directory; empty where the file is missing."""
    return json.loads(file.read_text()) if file.is_file() else {}


def read_stop_ids(model_path: str, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a response, by the tokenizer and both configuration files."""
    found = {tokenizer.eos_token_id}
    for name in ("config.json", "generation_config.json"):
        ids = _read_json(Path(model_path) / name).get("eos_token_id")
        found.update(ids if isinstance(ids, list) else [ids])
    return tuple(sorted(token for token in found if token is not None))


def takes_pictures(model_path: str) -> bool:
    """True if the model has a vision tower."""
    return "vision_config" in _read_json(Path(model_path) / "config.json")


def read_model_type(model_path: str) -> str:
    """The name of the architecture, as transformers has it."""
    return str(_read_json(Path(model_path) / "config.json")["model_type"])


def read_picture_token(model_path: str) -> int:
    """The token that stands for a picture in what a chat template writes."""
    return int(_read_json(Path(model_path) / "config.json")["image_token_id"])


def read_vocabulary_size(model_path: str) -> int | None:
    """The number of tokens that the model embeds; None where its directory does not say."""
    config = _read_json(Path(model_path) / "config.json")
    size = config.get("text_config", config).get("vocab_size")
    return None if size is None else int(size)


def unembedded_tokens(tokenizer: Any, vocabulary_size: int) -> list[str]:
    """The tokenizer's tokens that the model does not embed, but for padding."""
    end = max(len(tokenizer), 1 + max(tokenizer.added_tokens_decoder, default=-1))
    beyond = set(range(vocabulary_size, end)) - {tokenizer.pad_token_id}
    found: list[str | None] = tokenizer.convert_ids_to_tokens(sorted(beyond))
    return [token for token in found if token is not None]


def read_head_counts(model_path: str) -> tuple[int, int]:
    """(attention heads, KV heads) of the model; the ranks of tensor parallelism share them. 0 where
    its config.json does not say, as in vLLM."""
    config = json.loads((Path(model_path) / "config.json").read_text())
    text: Mapping[str, Any] = config.get("text_config", config)  # Any: JSON values
    heads = int(text.get("num_attention_heads") or text.get("n_head") or 0)
    return heads, int(text.get("num_key_value_heads") or heads)
