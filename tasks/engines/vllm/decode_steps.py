"""Decode steps of vLLM's scheduler at a fraction of their Python: most of what a token costs beside
the model are objects that nobody here reads.

    schedule            every running response needs one token, and none can be admitted: blocks are
                        asked for only where one begins or ends; any other step is vLLM's own
    update_from_output  a token that ends nothing is appended in place; of the others (a first
                        token, a last one, a probe, what is stale or finished) vLLM has the rest of
                        the batch

A response's tokens are those of vLLM's scheduled request, its log-probabilities a list of floats
here, so that between its first and its last token no output of vLLM exists.

Relied on, in vLLM 0.32, and guarded by `tests/unit/test_decode_steps.py`, which plays both ways
beside each other: both methods are looked up on the instance; `update_from_output` looks at the
requests of `num_scheduled_tokens` and no others; `allocate_slots` changes nothing for a token
within a block of full attention; `AsyncScheduler` counts placeholders.
"""

from __future__ import annotations

from copy import copy
from typing import Any

# Any: vLLM's scheduler, requests and what passes between it and the model runner


class DecodeSteps:
    """Takes the place of two methods of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler = scheduler
        self._logprobs: dict[str, list[float]] = {}  # by vLLM's internal id
        self._running = RequestStatus.RUNNING
        self._is_async = hasattr(scheduler, "_spec_token_placeholders")
        self._blocks = scheduler.kv_cache_manager
        self._schedule = scheduler.schedule
        self._update = scheduler.update_from_output
        scheduler.update_from_output = self._update_from_output
        if _is_plain(scheduler):
            (manager,) = self._blocks.coordinator.single_type_managers
            self._block_size = int(manager.block_size)
            scheduler.schedule = self._schedule_decodes

    def begin(self, internal_id: str) -> list[float]:
        """Return the list to which the response's log-probabilities will be appended, in nats."""
        return self._logprobs.setdefault(internal_id, [])

    def forget(self, internal_id: str) -> None:
        """Append no more log-probabilities of this response."""
        del self._logprobs[internal_id]

    # --- before the model

    def _schedule_decodes(self, throttle_prefills: bool = False) -> Any:
        scheduled = self._decodes()
        if scheduled is None:
            return self._schedule(throttle_prefills)
        scheduler = self._scheduler
        scheduler.current_step += 1
        self._blocks.new_step_starts()
        last = self._block_size - 1
        new_blocks = [
            self._blocks.allocate_slots(request, 1).get_block_ids(allow_none=True)
            if request.num_computed_tokens % self._block_size in (0, last)
            else None
            for request in scheduled
        ]
        output = self._output(scheduled, new_blocks)
        for request in scheduled:
            request.num_computed_tokens += 1
            request.num_in_flight_tokens += 1
            if self._is_async:
                request.num_output_placeholders += 1
        scheduler.finished_req_ids = set()
        scheduler.reset_preempted_req_ids = set()
        return output

    def _decodes(self) -> list[Any] | None:
        """The running requests that get a token in this step, each exactly one; None for a step
        that is more than that, or that might have to preempt."""
        scheduler = self._scheduler
        running = scheduler.running
        is_full = len(running) >= scheduler.max_num_active_reqs
        if not running or (scheduler.waiting and not is_full) or scheduler.kv_holding_waiting:
            return None
        if scheduler._pause_state.name != "UNPAUSED":
            return None
        last_position = scheduler.max_model_len - 1
        scheduled = []
        num_blocks = 0
        for request in running:
            computed, ahead = request.num_computed_tokens, request.num_output_placeholders
            end = request.num_prompt_tokens + request.max_tokens
            if (ahead and computed + 2 - ahead >= end) or computed >= last_position:
                continue  # its last token is being computed already
            if request.is_prefill_chunk or len(request._all_token_ids) + ahead != computed + 1:
                return None
            num_blocks += computed % self._block_size == 0
            scheduled.append(request)
        is_room = num_blocks <= self._blocks.block_pool.get_num_free_blocks()
        is_room = is_room and len(scheduled) <= scheduler.max_num_scheduled_tokens
        return scheduled if scheduled and is_room else None

    def _output(self, scheduled: list[Any], new_blocks: list[Any]) -> Any:
        from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

        scheduler = self._scheduler
        names = [request.request_id for request in scheduled]
        all_tokens: dict[str, list[int]] = {}
        if not scheduler.use_v2_model_runner:
            before = scheduler.prev_step_scheduled_req_ids
            if not before.issuperset(names):
                all_tokens = {
                    request.request_id: request._all_token_ids.copy()
                    for request in scheduled
                    if request.request_id not in before
                }
            before.clear()
            before.update(names)
        return SchedulerOutput(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=CachedRequestData(
                req_ids=names,
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids=all_tokens,
                new_block_ids=new_blocks,
                num_computed_tokens=[request.num_computed_tokens for request in scheduled],
                num_output_tokens=[
                    len(request._output_token_ids) + request.num_output_placeholders
                    for request in scheduled
                ],
            ),
            num_scheduled_tokens=dict.fromkeys(names, 1),
            total_num_scheduled_tokens=len(names),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            preempted_req_ids=scheduler.reset_preempted_req_ids,
            finished_req_ids=scheduler.finished_req_ids,
            free_encoder_mm_hashes=scheduler.encoder_cache_manager.get_freed_mm_hashes(),
            new_block_ids_to_zero=scheduler._get_new_block_ids_to_zero(),
            ec_manager_metadata=scheduler.encoder_cache_manager.get_manager_metadata(),
        )

    # --- after the model

    def _update_from_output(self, scheduler_output: Any, model_output: Any) -> Any:
        values = _sampled_logprobs(model_output)
        rest = self._append(scheduler_output.num_scheduled_tokens, model_output, values)
        requests = self._scheduler.requests
        known = [(requests[name], name) for name in rest if name in requests]
        before = [len(request._output_token_ids) for request, _ in known]
        of_rest = copy(scheduler_output)
        of_rest.num_scheduled_tokens = rest
        outputs = self._update(of_rest, model_output)
        for (request, name), num_before in zip(known, before, strict=True):
            num_new = len(request._output_token_ids) - num_before
            if num_new and name in self._logprobs:
                row = model_output.req_id_to_index[name]
                self._logprobs[name] += values[row : row + num_new]
        return outputs

    def _append(
        self, scheduled: dict[str, int], model_output: Any, values: list[float]
    ) -> dict[str, int]:
        """Append each token that ends nothing; returns the entries of all other requests."""
        requests, logprobs = self._scheduler.requests, self._logprobs
        rows, sampled = model_output.req_id_to_index, model_output.sampled_token_ids
        max_length, hash_size = self._scheduler.max_model_len, self._scheduler.hash_block_size
        rest: dict[str, int] = {}
        for name, num_scheduled in scheduled.items():
            request, values_so_far = requests.get(name), logprobs.get(name)
            if (
                request is None
                or values_so_far is None
                or not request._output_token_ids  # the first token is like no other
                or request.status is not self._running
                or request.num_stale_output_tokens
            ):
                rest[name] = num_scheduled
                continue
            row = rows[name]
            (token,) = sampled[row] or (None,)
            params = request.sampling_params
            tokens, new = request._all_token_ids, request._output_token_ids
            if (
                token is None
                or token == params.eos_token_id
                or token in params.stop_token_ids
                or len(new) + 1 >= request.max_tokens
                or len(tokens) + 1 >= max_length
            ):
                rest[name] = num_scheduled
                continue
            request.num_in_flight_tokens -= num_scheduled
            new.append(token)
            tokens.append(token)
            values_so_far.append(values[row])
            if len(tokens) % hash_size == 0:
                request.update_block_hashes()
            if self._is_async:
                request.num_output_placeholders -= 1
                num_known = request.num_computed_tokens - request.num_output_placeholders
                if num_known % hash_size == 0:
                    self._blocks.cache_blocks(request, num_known)
        return rest


def _sampled_logprobs(model_output: Any) -> list[float]:
    """The log-probability of the sampled token of each row; empty if none was asked for."""
    logprobs = model_output.logprobs
    values: list[float] = [] if logprobs is None else logprobs.logprobs[:, 0].tolist()
    return values


def _is_plain(scheduler: Any) -> bool:
    """True if a decode step needs only blocks of full attention: no drafts, connectors, pipeline
    stages or layers that forget. Adapters are asked about at admission alone."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = scheduler.kv_cache_config.kv_cache_groups
    has_more = (
        scheduler.num_spec_tokens
        or scheduler.num_lookahead_tokens
        or scheduler.connector
        or scheduler.ec_connector
        or scheduler.aux_output_connector
        or scheduler.use_pp
        or scheduler.is_encoder_decoder
        or scheduler.defer_block_free
        or scheduler.log_stats
        or scheduler.dcp_world_size > 1
        or scheduler.policy.name != "FCFS"
    )
    return len(groups) == 1 and type(groups[0].kv_cache_spec) is FullAttentionSpec and not has_more
