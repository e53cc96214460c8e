"""Records which experts a mixture's routers chose, so that the learner can take the same.

    router of a layer ─▶ RouteRows: experts by slot of the KV cache        (in each worker)
    response ends ─▶ its blocks, as vLLM frees them ─▶ rows ─▶ Routes      (RouteReader)

The rows lie beside the KV cache, in host memory: a prefix that responses share was routed once, and
every response that reads its cache has its routes. For vLLM's first model runner, which the CPU
backend runs; of the second, `enable_return_routed_experts` returns routes, which nobody here reads.

Relied on, in vLLM 0.32, and guarded by `tests/engine/test_routes.py`: routers hand what they chose
to a capture function before they map experts to places; the forward context has the slot of every
token, by layer; `_update_states` copies blocks and `KVCacheManager.free` is looked up on the
instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from artifacts.records import Routes

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

MOST_OF_A_BYTE = 256  # experts whose numbers fit one byte

# Any: vLLM's workers, runners, schedulers and requests, and tensors; torch is imported only where
# an engine runs


class RouteRows:
    """The routes of all tokens in the KV cache of one worker."""

    def __init__(self, runner: Any) -> None:
        """runner: vLLM's model runner, with a KV cache of one group."""
        import torch
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        mixtures = [each for each in runner.get_model().modules() if isinstance(each, MoERunner)]
        routers = [each.router for each in mixtures]
        is_small = max(each.global_num_experts for each in routers) <= MOST_OF_A_BYTE
        self._num_blocks = runner.kv_cache_config.num_blocks
        (group,) = runner.kv_cache_config.kv_cache_groups
        self._layer = group.layer_names[0]  # any: all have the same slots
        shape = (self._num_blocks * group.kv_cache_spec.block_size, len(routers), routers[0].top_k)
        self._rows = torch.zeros(shape, dtype=torch.uint8 if is_small else torch.int16)
        for place, router in enumerate(routers):
            router.set_capture_fn(lambda chosen, place=place: self._capture(place, chosen))
        self._update_states = runner._update_states
        runner._update_states = self._copy_blocks

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of a token, and bytes of a number."""
        return self._rows[0].numel(), self._rows.element_size()

    def read(self, blocks: list[int], num_tokens: int) -> bytes:
        """The rows of the first tokens in these blocks."""
        of_blocks = self._rows.view(self._num_blocks, -1, self.shape[0])[blocks]
        data: bytes = of_blocks.view(-1, self.shape[0])[:num_tokens].numpy().tobytes()
        return data

    def _capture(self, place: int, chosen: Any) -> None:
        from vllm.forward_context import get_forward_context

        slots = get_forward_context().slot_mapping
        if slots:  # there are none while vLLM measures memory
            of_tokens = slots[self._layer][: len(chosen)]
            is_token = of_tokens >= 0
            self._rows[of_tokens[is_token], place] = chosen[is_token].to(self._rows.dtype)

    def _copy_blocks(self, scheduled: Any) -> Any:
        rows = self._rows.view(self._num_blocks, -1)
        for copy in scheduled.kv_cache_block_copies or ():
            rows[copy.dst_block_id] = rows[copy.src_block_id]
        return self._update_states(scheduled)


def _take_routes(worker: Any) -> tuple[int, int]:
    """Have a worker record routes from now on."""
    worker.route_rows = RouteRows(worker.model_runner)
    shape: tuple[int, int] = worker.route_rows.shape
    return shape


def _read_routes(worker: Any, blocks: list[int], num_tokens: int) -> bytes:
    """Every rank routes all tokens: the first one answers."""
    data: bytes = b"" if worker.rank else worker.route_rows.read(blocks, num_tokens)
    return data


class RouteReader:
    """Reads the routes of a response when it has ended, before its blocks are used again."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        (self._width, self._num_bytes), *_ = engine.collective_rpc(_take_routes)
        core: Any = engine.engine_core
        self._manager = core.engine_core.scheduler.kv_cache_manager
        self._free = self._manager.free
        self._manager.free = self._note_blocks
        self._blocks: dict[str, list[int]] = {}  # by vLLM's internal id

    def begin(self, internal_id: str) -> None:
        """Note the blocks of this request when vLLM frees them."""
        self._blocks[internal_id] = []

    def forget(self, internal_id: str) -> None:
        """Note nothing more of this request."""
        del self._blocks[internal_id]

    def read(self, internal_id: str, num_tokens: int) -> Routes:
        """The routes of the first tokens of a request that ended in this step."""
        blocks = self._blocks[internal_id]
        data, *_ = self._engine.collective_rpc(_read_routes, args=(blocks, num_tokens))
        return Routes(width=self._width, num_bytes=self._num_bytes, data=data)

    def _note_blocks(self, request: Any) -> None:
        if request.request_id in self._blocks:
            (self._blocks[request.request_id],) = self._manager.get_block_ids(request.request_id)
        self._free(request)
