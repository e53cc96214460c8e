"""The numbers of a model on which memory depends, for engines and the learner alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The numbers of a model's parameters that its memory depends on."""

    num_parameters: int  # tied ones once
    largest_layer: int  # number of parameters in the largest layer
    table: int  # number of parameters in the embedding
    is_tied: bool  # whether the head is the embedding
    num_layers: int
    hidden: int  # width of the residual stream
    inner: int  # width of a token's gated product in a layer, over all experts that it takes
    heads: int
    head_width: int
    key_heads: int
    normed: int  # widths of all norms in a layer together
    largest_matrix: int  # number of parameters in the largest matrix of a layer
    experts: int = 0  # of a layer, where ranks may share them; 0 without any
    expert: int = 0  # number of parameters of one of them
    beside_experts: int = 0  # number of parameters in the largest layer without them
    top: int = 0  # experts that a token takes
    # name, inputs and outputs of each linear map of a layer, of which an adapter may be
    linear: tuple[tuple[str, int, int], ...] = ()

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return self.table // self.hidden
