"""Responses to one prompt (siblings) compute the prompt once, up to its last token but one.

    first sibling ─▶ step: computes the prompt ─▶ the others enter: each copies the started block
                                                  and computes the prompt's last token

vLLM shares computed prefixes in whole blocks: without this each sibling would compute the last,
half-filled block again, about 16 tokens on CPUs. No draw changes; requests carry a cache salt, so
that KV cache of other weights is not shared. Off where it gains nothing: on GPUs, without prefix
caching, and for models whose layers do not keep every token.

Relied on, in vLLM 0.32, and guarded by `tests/engine/test_siblings.py` and
`tests/unit/test_shared_blocks.py`: the scheduler looks up `KVCacheManager.get_computed_blocks` on
the instance; of a last block that is computed in part the request gets a copy, which workers make
before they compute anything in the step.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from artifacts.prompt_ids import adapter_of
from artifacts.records import Request, prompt_of
from tasks.engines.vllm.llm_engine import on_cpu

# Any: vLLM's scheduler, requests and blocks

Tokens = tuple[int, ...]
Contents = tuple[str, ...]
# of what is shared: cache salt, adapter, prompt and the contents of its pictures
Key = tuple[str | None, str, Tokens, Contents]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request that waits until a sibling has computed the prompt of both."""

    request: Request
    submitted_s: float  # Unix seconds

    @property
    def tokens(self) -> Tokens:
        """The tokens to compute first: the prompt's and the kept ones."""
        return (*self.request.prompt_tokens, *self.request.kept_tokens)

    @property
    def contents(self) -> Contents:
        """The contents of the prompt's pictures."""
        return tuple(picture.content for picture in self.request.pictures)


class Siblings:
    """Decides which requests wait for a sibling, and lets vLLM's scheduler share started blocks."""

    def __init__(self, scheduler: Any) -> None:
        self._can_share = _can_share(scheduler)
        # vLLM's cache salt of all that enters from now on; what has another is never shared with it
        self.salt: str | None = None
        self._inside: dict[Key, list[Any]] = {}  # vLLM's requests, oldest first
        self.waiting: list[Waiting] = []  # have not entered vLLM
        self._blocks = scheduler.kv_cache_manager
        self._whole_blocks = self._blocks.get_computed_blocks
        if self._can_share:
            self._blocks.get_computed_blocks = self._computed_blocks

    def hold(self, request: Request, submitted_s: float) -> bool:
        """Keep the request if it must wait for a sibling; False where it may enter at once."""
        waiting = Waiting(request=request, submitted_s=submitted_s)
        must_wait = self._is_computing(waiting)
        if must_wait:
            self.waiting.append(waiting)
        return must_wait

    def take_all(self) -> list[Waiting]:
        """Remove and return all waiting requests."""
        taken, self.waiting = self.waiting, []
        return taken

    def take_ready(self) -> list[Waiting]:
        """Remove and return the requests that no sibling inside keeps waiting any more."""
        ready = [each for each in self.waiting if not self._is_computing(each)]
        self.waiting = [each for each in self.waiting if self._is_computing(each)]
        return ready

    def take(self, response_ids: Container[str]) -> list[Waiting]:
        """Remove and return the waiting requests with these ids, ready or not."""
        taken = [each for each in self.waiting if each.request.response_id in response_ids]
        self.waiting = [
            each for each in self.waiting if each.request.response_id not in response_ids
        ]
        return taken

    def enter(self, request: Any) -> None:
        """Record that vLLM has this request now, and has not begun it."""
        if self._can_share:
            self._inside.setdefault(_key(request), []).append(request)

    def leave(self, request: Any) -> None:
        """Record that the request is over."""
        if self._can_share:
            key = _key(request)
            self._inside[key].remove(request)
            if not self._inside[key]:
                del self._inside[key]

    def _is_computing(self, waiting: Waiting) -> bool:
        """True if siblings are inside vLLM and none of them has computed the whole prompt yet."""
        request = waiting.request
        key = (self.salt, request.adapter, waiting.tokens, waiting.contents)
        inside = self._inside.get(key, ())
        return bool(inside) and not any(each.num_output_tokens for each in inside)

    def _computed_blocks(self, request: Any) -> tuple[Any, int, int]:
        """Blocks that need not be computed, their tokens, and a mark of vLLM's."""
        blocks, num_tokens, mark = self._whole_blocks(request)
        num_shared = request.num_prompt_tokens - 1  # the logits of the last token are needed
        inside = () if request.num_output_tokens else self._inside.get(_key(request), ())
        source = next((sibling for sibling in inside if _holds(sibling, num_shared)), None)
        if source is None:  # or preempted, with generated tokens to compute
            return blocks, num_tokens, mark
        (manager,) = self._blocks.coordinator.single_type_managers
        place, num_started = divmod(num_shared, manager.block_size)
        (found,) = blocks.blocks
        if not num_started or len(found) != place:
            return blocks, num_tokens, mark
        started = manager.req_to_blocks[source.request_id][place]
        return self._blocks.create_kv_cache_blocks(([*found, started],)), num_shared, mark


def _key(request: Any) -> Key:
    adapter = adapter_of(prompt_of(request.request_id))
    contents = tuple(feature.mm_hash for feature in request.mm_features or ())
    return request.cache_salt, adapter, tuple(request.prompt_token_ids), contents


def _can_share(scheduler: Any) -> bool:
    """True if the engine runs on CPUs and shares prefixes, and every layer keeps every token."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = scheduler.kv_cache_config.kv_cache_groups
    is_plain = len(groups) == 1 and type(groups[0].kv_cache_spec) is FullAttentionSpec
    return is_plain and bool(scheduler.cache_config.enable_prefix_caching) and on_cpu()


def _holds(sibling: Any, num_tokens: int) -> bool:
    """True if vLLM has blocks of this sibling with this many tokens. It has drawn its first token,
    so they are not copies that are still to be made."""
    has_drawn = sibling.status.name == "RUNNING" and sibling.num_output_tokens > 0
    return bool(has_drawn and sibling.num_computed_tokens >= num_tokens)
