"""What a decode step and a prefilled token cost a replica: bytes, arithmetic, launches, exchange.

    step = host and launches + exchange + max(weights read, matrix products) + KV cache read

Matrix products and attention follow each other in every layer, so that each has a roof of its own:
the products wait for the weights until the batch is large, attention waits for the cache at any
size, because a key is read for every query (Williams et al., "Roofline", CACM 2009, applied to the
two kinds of operator). Pure. Leaves out who decodes what when (`engines.simulation.batch`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tasks.simulation.hardware import Device
from tasks.simulation.shapes import BF16_BYTES, ModelShape

# of a layer of a captured graph: two norms, rotation, cache write, attention and its reduction,
# activation, four matrix products and one that was split
KERNELS_PER_LAYER = 12
EXCHANGES_PER_LAYER = 2  # all-reduces, after attention and after the feed-forward layer
ACTIVATION_BYTES = 4e9  # of a device, that an engine keeps for the largest step and its graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds and bytes of a model on a replica of `size` devices."""

    model: ModelShape
    device: Device
    size: int  # tensor-parallel
    is_one_host: bool = True  # whether its devices reach each other without the network
    sorts_logits: bool = False  # whether the sampler sorts the vocabulary, for top-k or top-p
    is_eager: bool = False  # whether steps are launched kernel by kernel, not as a graph

    @property
    def fixed_s(self) -> float:
        """Seconds that every step takes, whatever its batch: the engine's processes, kernel
        launches, the latency of exchanges."""
        layers = self.model.num_layers
        launch_s = self.device.eager_s if self.is_eager else self.device.launch_s
        launches_s = layers * KERNELS_PER_LAYER * launch_s
        alone_s = self.device.host_s + launches_s
        if self.size == 1:
            return alone_s
        latency_s = layers * EXCHANGES_PER_LAYER * self.device.collective_s
        return alone_s + self.device.process_s + latency_s

    @property
    def sequence_s(self) -> float:
        """Seconds of a step for each sequence: bookkeeping in the engine's process, and sampling
        where the vocabulary is sorted for that."""
        logits = self.model.vocabulary_size if self.sorts_logits else 0
        return self.device.host_s_per_sequence + self.device.sort_s_per_logit * logits

    @property
    def weights_s(self) -> float:
        """Seconds to read each device's share of the weights once."""
        weights = BF16_BYTES * self.model.matrix_parameters / self.size
        return weights / self.device.read_bytes_per_s

    @property
    def matrix_s_per_token(self) -> float:
        """Seconds of the matrix products of a token."""
        return self.model.flops_per_token / self.size / self.device.matrix_flops

    @property
    def kv_s_per_token(self) -> float:
        """Seconds to attend to one token: reading it, or the arithmetic where that takes longer."""
        read_s = self.kv_bytes_per_token / self.device.read_bytes_per_s
        return max(read_s, self.model.flops_per_token_pair / self.size / self.device.matrix_flops)

    @property
    def exchange_s_per_token(self) -> float:
        """Seconds to exchange a token's activations between devices, by rings of all-reduces."""
        if self.size == 1:
            return 0.0
        sent = 2 * (self.size - 1) / self.size * BF16_BYTES * self.model.hidden_size
        exchanges = self.model.num_layers * EXCHANGES_PER_LAYER
        return exchanges * sent / self.device.link_bytes_per_s(self.is_one_host)

    @property
    def attention_share(self) -> float:
        """Arithmetic of attending to one earlier token, over that of a token's matrix products."""
        return self.model.flops_per_token_pair / self.model.flops_per_token

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of a token on each device. Key-value heads are divided among the devices, or
        repeated when there are fewer heads than devices."""
        return self.model.kv_bytes_per_token / min(self.size, self.model.num_kv_heads)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit the KV cache of the replica. ValueError when the weights do not fit."""
        if not self.fits:
            weights = self.model.weight_bytes / self.size
            raise ValueError(
                f"weights and KV cache of {self.model.name} must fit {self.size} devices"
                f" {self.device.name}, got {weights / 1e9:.1f} GB of weights for each of"
                f" {self.device.cache_bytes / 1e9:.1f} GB; choose a larger tensor-parallel size"
            )
        return int(self._room_bytes / self.kv_bytes_per_token)

    @property
    def fits(self) -> bool:
        """True if the devices hold the weights and the KV cache of at least one token."""
        return self._room_bytes >= self.kv_bytes_per_token

    @property
    def _room_bytes(self) -> float:
        """Bytes of each device for the KV cache. Activations get the usual amount, or a tenth of a
        small device."""
        activations = min(ACTIVATION_BYTES, 0.1 * self.device.cache_bytes)
        return self.device.cache_bytes - self.model.weight_bytes / self.size - activations
