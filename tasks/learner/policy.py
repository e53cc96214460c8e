"""The policy and its frozen reference: decoders that run packed prefix trees.

    groups' tokens -> embedding rows -> decoder layers (tree attention) -> hidden states of
    predicting nodes -> head_pass
                           gradients in fp32 <- backward <- gradient of those hidden states <-'

The policy computes with bf16 copies of the weights, exactly the numbers that the engines load;
sums of products and gradients, masters and moments are fp32. A reference has only its bf16 copy.
With `mixed` these copies are held, and multiplied, in fp32. What stands for a picture's tokens is
computed by a vision tower (`tower`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from artifacts.models.importing import building_model
from tasks.learner.adapters import (
    AdapterParameters,
    MergedParameters,
    adapt,
    is_of_adapter,
    owner_of,
    using,
)
from tasks.learner.architecture import (
    check_packed,
    model_class,
    read_config,
    takes_pictures,
    text_model,
)
from tasks.learner.fused_layers import fuse_layers
from tasks.learner.head import HeadResult, LossGradient, add_rows, head_pass
from tasks.learner.learner_config import ComputeDtype, Placement
from tasks.learner.lora_config import NO_ADAPTER, LoraConfig
from tasks.learner.parameters import (
    FlatParameters,
    Holds,
    Parameters,
    ReplicatedParameters,
    TrainedParameters,
    every,
)
from tasks.learner.ranks import Ranks
from tasks.learner.routers import Routers
from tasks.learner.rows import DeviceRow
from tasks.learner.tower import BesideTower, Pictures, Tower, is_of_decoder, is_of_tower, tower_of
from tasks.learner.tree_attention import TREE_ATTENTION, register_attention

if TYPE_CHECKING:
    from tasks.learner.sharded_parameters import ShardedParameters, TrainedShards

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "mixed": torch.float32}


class Scorer(Protocol):
    """What gives the log-probabilities of a row."""

    def score(self, row: DeviceRow, temperature: float = 1.0) -> HeadResult: ...


class Decoder:
    """A decoder that scores tokens. All calls come from one thread."""

    def __init__(
        self, model: Any, parameters: Parameters, tower: Tower | None = None
    ) -> None:  # Any: a transformers model
        """`parameters` holds the model's parameters from now on. tower: of a model that takes
        pictures."""
        config = model.config.get_text_config()
        self.window: int | None = getattr(config, "sliding_window", None)
        self.backbone: nn.Module = text_model(model)
        self.routers = Routers(model)
        self.vocabulary_size = int(config.vocab_size)
        self._tower = tower
        self.parameters, self.device = parameters, parameters.device
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        embedding = model.get_input_embeddings()
        self._embedding_name = names[id(embedding.weight)]
        # Gemma multiplies embeddings by a constant, rounded to their dtype; Granite divides logits
        dtype = parameters.compute
        scale = float(getattr(embedding, "scalar_embed_scale", 1.0))
        self._embedding_scale = float(torch.tensor(scale, dtype=dtype))
        self._logits_scaling = float(getattr(config, "logits_scaling", 1.0))
        self._head_name = names[id(model.get_output_embeddings().weight)]

    def score(self, row: DeviceRow, temperature: float = 1.0) -> HeadResult:
        """Returns log-probabilities and entropies of the row's targets; no gradients."""
        with torch.no_grad(), self.routers.replaying(row.routes):
            seen = self._seen(row)
            embedded = self._embed(row, seen)
            added = added_levels(row, seen, embedded)
            hidden = predicting_states(self.backbone, row, embedded, added)
        scaled = temperature * self._logits_scaling
        with self.parameters.whole(self._head_name) as weight:
            return head_pass(hidden, weight, row.predictions, scaled)

    def _seen(self, row: DeviceRow) -> Tensor | None:
        """The embeddings of the tokens of the row's pictures; None without pictures."""
        if row.pictures is None:
            return None
        assert self._tower is not None, "a model without a tower is given no pictures"
        return self._tower.embedded(row.pictures.pictures)

    def _embed(self, row: DeviceRow, seen: Tensor | None) -> Tensor:
        """The embeddings of the row's tokens, (1, N, hidden); seen: those of its pictures."""
        if row.largest_id >= self.vocabulary_size or row.smallest_id < 0:
            raise ValueError(
                f"token ids must lie in the model's vocabulary of {self.vocabulary_size}, got"
                f" {row.largest_id}; let rollout and learner start from the same model"
            )
        with self.parameters.whole(self._embedding_name) as weight:
            rows = weight[row.tokens][None]
        embedded = rows if self._embedding_scale == 1.0 else rows * self._embedding_scale
        if row.pictures is not None and seen is not None:
            first = seen.detach()[row.pictures.places, : embedded.shape[-1]]
            embedded[0, row.pictures.nodes] = first.to(embedded)
        return embedded


def predicting_states(
    backbone: nn.Module, row: DeviceRow, embedded: Tensor, added: Tensor | None = None
) -> Tensor:
    """Returns the hidden states of the predicting nodes, (R, hidden). added: (M, levels hidden), to
    be added to the states of the pictures' nodes behind each of the first layers."""
    positions = row.positions[None] if row.pictures is None else row.pictures.rotary[:, None]
    deepened: dict[str, Any] = {}  # Any: arguments that only some models have
    if row.pictures is not None and added is not None:
        is_seen = torch.zeros(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
        is_seen[0, row.pictures.nodes] = True
        levels = torch.split(added, embedded.shape[-1], 1)
        deepened = {"visual_pos_masks": is_seen, "deepstack_visual_embeds": levels}
    output = backbone(
        inputs_embeds=embedded, position_ids=positions, use_cache=False, tree=row.plan(), **deepened
    )
    hidden: Tensor = output.last_hidden_state
    return hidden[0].index_select(0, row.nodes)


def added_levels(row: DeviceRow, seen: Tensor | None, embedded: Tensor) -> Tensor | None:
    """What the tower adds to the nodes of pictures behind the first layers, (M, levels hidden), as
    a leaf of its own; None for a row without pictures, or a tower that adds nothing."""
    hidden = embedded.shape[-1]
    if row.pictures is None or seen is None or seen.shape[1] == hidden:
        return None
    return seen.detach()[row.pictures.places, hidden:].requires_grad_(seen.requires_grad)


class PolicyModel(Decoder):
    """A decoder that is trained: its parameters have sums of gradients."""

    parameters: TrainedParameters

    def _trained(self, name: str) -> Tensor | None:
        """The sum of the parameter's gradients; None if it stays as it is."""
        return self.parameters.gradient(name) if name in self.parameters.shapes else None

    def score_and_backward(
        self, row: DeviceRow, temperature: float, loss_gradient: LossGradient
    ) -> HeadResult:
        """Score the targets, and add the gradient of the loss sum to the parameters' sums."""
        with self.routers.replaying(row.routes):
            return self._score_and_backward(row, temperature, loss_gradient)

    def _score_and_backward(
        self, row: DeviceRow, temperature: float, loss_gradient: LossGradient
    ) -> HeadResult:
        seen = self._seen(row)
        embedded = self._embed(row, seen).requires_grad_()
        added = added_levels(row, seen, embedded)
        hidden = predicting_states(self.backbone, row, embedded, added)
        head_gradient = self._trained(self._head_name)
        with self.parameters.whole(self._head_name) as weight:
            result = head_pass(
                hidden.detach(),
                weight,
                row.predictions,
                temperature * self._logits_scaling,
                loss_gradient,
                head_gradient,
            )
        if head_gradient is not None and self._head_name != self._embedding_name:
            self.parameters.reduce(self._head_name)
        torch.autograd.backward([hidden], [result.grad_hidden])
        assert embedded.grad is not None
        gradient = embedded.grad[0]
        if row.pictures is not None and seen is not None:
            if seen.requires_grad:
                of_nodes = [gradient[row.pictures.nodes]]
                if added is not None and added.grad is not None:
                    of_nodes.append(added.grad)
                of_seen = torch.zeros_like(seen)
                add_rows(of_seen, row.pictures.places, torch.cat(of_nodes, 1).to(of_seen))
                torch.autograd.backward([seen], [of_seen])
            gradient[row.pictures.nodes] = 0.0
        rows_gradient = self._trained(self._embedding_name)
        if rows_gradient is None:
            return result
        add_rows(rows_gradient, row.tokens, gradient.float(), alpha=self._embedding_scale)
        self.parameters.reduce(self._embedding_name)
        return result


class BaseOf:
    """A policy without its adapter: the model that the run started from."""

    def __init__(self, policy: PolicyModel) -> None:
        self._policy = policy

    def score(self, row: DeviceRow, temperature: float = 1.0) -> HeadResult:
        """As `Decoder.score`."""
        with using(self._policy.backbone, None):
            return self._policy.score(row, temperature)


def load_policy(
    model_path: str,
    compute: ComputeDtype,
    ranks: Ranks,
    placement: Placement = "replicated",
    recompute_layers: bool = False,
    lora: LoraConfig = NO_ADAPTER,
    pictures: Pictures | None = None,
) -> PolicyModel:
    """Load the model to train, or to train an adapter of; collective if its parameters are sharded,
    which needs ranks that have joined. Raises ValueError for a path without a model, or one that
    packed training cannot run."""
    model = load_decoder(model_path, ranks.device)
    model.requires_grad_(True)
    tower = tower_of(model, pictures, ranks.device)
    return placed(model, compute, ranks, placement, recompute_layers, lora, tower)


def placed(
    model: Any,
    compute: ComputeDtype,
    ranks: Ranks,
    placement: Placement,
    recompute_layers: bool,
    lora: LoraConfig,
    tower: Tower | None = None,
) -> PolicyModel:  # Any: transformers models carry no types
    """The loaded model as it is trained, or an adapter of it."""
    # embedding and head get their gradients by hand: rows, and sums over chunks
    for table in (model.get_input_embeddings(), model.get_output_embeddings()):
        table.weight.requires_grad_(False)
    if lora.rank:
        adapt(model, lora)
    if recompute_layers:
        recompute(model)
    if lora.rank:
        return PolicyModel(model, _of_adapter(model, compute, ranks, placement, lora), tower)
    if tower is not None and (placement == "sharded" or not tower.is_trained):
        return PolicyModel(model, _beside_tower(model, compute, ranks, placement, tower), tower)
    return PolicyModel(model, _trained(model, compute, ranks, placement), tower)


def _beside_tower(
    model: Any, compute: ComputeDtype, ranks: Ranks, placement: Placement, tower: Tower
) -> BesideTower:  # Any: as above
    """The parameters of a model whose tower is frozen, or whole beside a sharded decoder."""
    held = (_replicated if tower.is_trained else _whole)(model, compute, ranks, is_of_tower)
    return BesideTower(held, _trained(model, compute, ranks, placement, is_of_decoder))


def _trained(
    model: Any, compute: ComputeDtype, ranks: Ranks, placement: Placement, holds: Holds = every
) -> ReplicatedParameters | TrainedShards:  # Any: as above
    """Trained parameters, placed as asked."""
    if placement == "replicated":
        return _replicated(model, compute, ranks, holds)
    from tasks.learner.sharded_parameters import TrainedShards  # brings FSDP, which few runs need

    return TrainedShards(model, DTYPES[compute], ranks, holds)


def _rounds(compute: ComputeDtype) -> bool:
    """True if parameters lie in fp32 and have numbers of bf16."""
    return compute == "mixed"


def _replicated(
    model: Any, compute: ComputeDtype, ranks: Ranks, holds: Holds = every
) -> ReplicatedParameters:  # Any: as above
    """Trained parameters that are whole on every rank."""
    return ReplicatedParameters(model, DTYPES[compute], ranks, holds, rounds=_rounds(compute))


def _of_adapter(
    model: Any, compute: ComputeDtype, ranks: Ranks, placement: Placement, lora: LoraConfig
) -> AdapterParameters:  # Any: as above
    """The parameters of an adapted model: the base placed as asked, adapters on every rank."""

    def held(adapter: str) -> ReplicatedParameters:
        def holds(name: str) -> bool:
            return is_of_adapter(name) and owner_of(name) == adapter

        return _replicated(model, compute, ranks, holds)

    adapters = {name: held(name) for name in lora.names}
    base = _frozen(model, compute, ranks, placement, lambda name: not is_of_adapter(name))
    if lora.publish == "merged":
        return MergedParameters(base, adapters[""], lora.scale)
    return AdapterParameters(base, adapters)


def _frozen(
    model: Any, compute: ComputeDtype, ranks: Ranks, placement: Placement, holds: Holds = every
) -> FlatParameters | ShardedParameters:  # Any: as above
    """One copy of parameters that stay as they are."""
    if placement == "replicated":
        return _whole(model, compute, ranks, holds)
    from tasks.learner.sharded_parameters import ShardedParameters

    dtype = DTYPES[compute]
    is_checked = holds is not every  # beneath an adapter; what only scores is not compared
    return ShardedParameters(model, dtype, ranks, dtype, holds, is_checked=is_checked)


def _whole(
    model: Any, compute: ComputeDtype, ranks: Ranks, holds: Holds
) -> FlatParameters:  # Any: as above
    """One copy of parameters that stay as they are, whole on every rank."""
    rounds = _rounds(compute)
    return FlatParameters(model, DTYPES[compute], ranks.device, holds=holds, rounds=rounds)


def load_reference(
    model_path: str,
    compute: ComputeDtype,
    ranks: Ranks,
    placement: Placement = "replicated",
    pictures: Pictures | None = None,
) -> Decoder:
    """Load the model that the run started from, to score with: one copy in the compute dtype, whole
    on this rank or sharded over the ranks."""
    model = load_decoder(model_path, ranks.device)
    frozen = replace(pictures, is_trained=False) if pictures is not None else None
    tower = tower_of(model, frozen, ranks.device)
    model.requires_grad_(False).eval()
    if tower is None or placement == "replicated":
        return Decoder(model, _frozen(model, compute, ranks, placement), tower)
    _whole(model, compute, ranks, is_of_tower)
    return Decoder(model, _frozen(model, compute, ranks, placement, is_of_decoder), tower)


def recompute(model: Any) -> None:  # Any: untyped transformers
    """Have backward recompute every layer; transformers does so only in training mode. Dropout
    stays off, because engines sample without it."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    model.gradient_checkpointing_enable()


def load_decoder(model_path: str, device: torch.device) -> Any:  # Any: as above
    """Load the model in fp32 into host memory, with tree attention, and with compiled layers if it
    is for a GPU. Raises ValueError as `load_policy` does."""
    register_attention()
    if not (Path(model_path) / "config.json").is_file():
        raise ValueError(
            f"model_path must be a directory with a config.json, got {model_path!r}; fetch or"
            " convert the model first"
        )
    check_packed(Path(model_path))
    attention: str | dict[str, str] = TREE_ATTENTION
    config = read_config(Path(model_path))
    if takes_pictures(config):
        attention = {"text_config": TREE_ATTENTION, "vision_config": "sdpa"}
    with building_model():
        model = model_class(config).from_pretrained(
            model_path,
            dtype=torch.float32,
            attn_implementation=attention,
            local_files_only=True,
        )
    if device.type == "cuda":
        fuse_layers(model)
    return model
