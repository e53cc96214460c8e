"""A draft is verified in the pass that reads it, instead of being decoded token by token.

    prompt + draft ─▶ one prefill ─▶ the token that is drawn in every place of the draft
                                  ─▶ all up to the first that differs, and that one, are kept

A draft is what other weights drew for a response with the same noise (`noise`). What is drawn in a
place depends on the noise and on the tokens before it alone, so that as long as the draft agrees
it is what decoding would have drawn, with today's log-probabilities; from the first other token on
the response is decoded. Nothing is accepted that would not have been drawn.

Leaves out where drafts come from. Relied on, in vLLM 0.32, and guarded by
`tests/engine/test_drafts.py`: the runner looks `_get_prompt_logprobs_dict` up on the instance and
calls it after every step with the hidden states of all computed tokens; it may return any number of
rows for a request, which come home as the output's `prompt_logprobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from artifacts.records import Request, VersionSpan
from tasks.engines.noise import row_seeds
from tasks.engines.vllm.draws import SEED
from tasks.engines.vllm.workers import Workers

DRAFT_FROM = "draft_from"  # where a request's draft begins in its tokens, among its extra_args
_MOST_ROWS = 256  # places whose logits are held at the same time

# Any: vLLM's runner and outputs, and tensors; torch is imported only where an engine runs


def verify_drafts(workers: Workers) -> None:
    """From now on every worker draws along the draft of a request that says where it begins.

    ValueError where vLLM runs its second model runner, which computes prompts elsewhere.
    """
    if not all(workers.collective_rpc(_take_over)):
        raise ValueError(
            "engine.verify_deferred needs vLLM's first model runner, which runs on CPUs, and vLLM"
            " chose the second; turn it off"
        )


def _take_over(worker: Any) -> bool:
    if worker.vllm_config.use_v2_model_runner:
        return False
    runner = worker.model_runner
    runner._get_prompt_logprobs_dict = DraftDraws(runner, runner._get_prompt_logprobs_dict)
    return True


def draft_from(params: Any) -> int | None:  # Any: vLLM's SamplingParams
    """Where the draft of a request begins in its tokens; None of one without."""
    found: int | None = (params.extra_args or {}).get(DRAFT_FROM)
    return found


def draft_of(request: Request, stop_ids: Sequence[int]) -> tuple[int, ...]:
    """What of a request's draft is read: up to its end and within the bound, without that last
    token, since the one after a draft is drawn anyway."""
    if request.kept_tokens:
        return ()
    draft = request.draft_tokens[: request.max_new_tokens - 1]
    return tuple(takewhile(lambda token: token not in stop_ids, draft))


def as_verified(
    request: Request, draft: Sequence[int], output: Any, version: int
) -> tuple[Request, int]:
    """The request with all that was drawn along its draft, by the weights of this version, and how
    many of these tokens the draft had."""
    (last,) = output.outputs
    drawn = (*output.prompt_logprobs.token_ids, *last.token_ids)
    logprobs = (*output.prompt_logprobs.logprobs, *last.logprobs.logprobs)
    pairs = enumerate(zip(draft, drawn, strict=False))
    num_equal = next((place for place, (own, new) in pairs if own != new), len(draft))
    num_kept = num_equal + 1
    known = replace(
        request,
        draft_tokens=(),
        kept_tokens=drawn[:num_kept],
        kept_logprobs=logprobs[:num_kept],
        kept_versions=(VersionSpan(version=version, num_tokens=num_kept),),
    )
    return known, num_equal


class DraftDraws:
    """Draws along the drafts of a step's requests, in the place of vLLM's log-probabilities of
    their prompts; those of other requests stay vLLM's."""

    def __init__(self, runner: Any, others: Callable[..., dict[str, Any]]) -> None:
        """runner: vLLM's model runner. others: its own method, for requests without a draft."""
        self._runner = runner
        self._others = others

    def __call__(self, hidden_states: Any, scheduled: dict[str, int]) -> dict[str, Any]:
        """vLLM's `LogprobsTensors` of the requests whose last prompt token was computed in this
        step. hidden_states: N x H, of its tokens. scheduled: tokens of each request among them."""
        asked = self._runner.num_prompt_logprobs
        drafted = {name: asked[name] for name in asked if self._begin(name) is not None}
        for name in drafted:
            del asked[name]
        found = self._others(hidden_states, scheduled)
        for name, num_logprobs in drafted.items():
            drawn = self._draw(name, hidden_states, scheduled[name]) if name in scheduled else None
            if drawn is None:
                asked[name] = num_logprobs  # a part of it is still to be computed
            else:
                found[name] = drawn
        return found

    def _begin(self, name: str) -> int | None:
        return draft_from(self._runner.requests[name].sampling_params)

    def _draw(self, name: str, hidden_states: Any, num_scheduled: int) -> Any:
        """Draw in the places that this step has computed; the tokens and log-probabilities of all
        places, once the last is there."""
        from vllm.v1.outputs import LogprobsTensors

        state, runner = self._runner.requests[name], self._runner
        begin, end = self._begin(name), len(state.prompt_token_ids)
        assert begin is not None, "who has a draft says where it begins"
        if state.in_progress_prompt_logprobs_cpu is None:
            state.in_progress_prompt_logprobs_cpu = LogprobsTensors.empty_cpu(end - begin, 1)
        drawn = state.in_progress_prompt_logprobs_cpu
        first = state.num_computed_tokens  # of the tokens that this step computed
        row = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]]) - first
        last = min(first + num_scheduled, end - 1)
        for place in range(max(first, begin - 1), last, _MOST_ROWS):
            stop = min(place + _MOST_ROWS, last)
            logits = runner.model.compute_logits(hidden_states[row + place : row + stop])
            tokens, logprobs = self._choose(logits, place + 1, state.sampling_params)
            part = slice(place + 1 - begin, stop + 1 - begin)
            drawn.logprob_token_ids[part, 0] = tokens
            drawn.logprobs[part, 0] = logprobs
            drawn.selected_token_ranks[part] = 0  # nobody reads ranks
        if first + num_scheduled < end:
            return None
        state.in_progress_prompt_logprobs_cpu = None
        return drawn

    def _choose(self, logits: Any, position: int, params: Any) -> tuple[Any, Any]:
        """The tokens from this position on, and their log-probabilities, as the sampler draws
        them."""
        import torch
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        logits = logits.to(torch.float32)
        if params.temperature == 0:
            tokens = logits.argmax(dim=-1)
        else:
            logits.div_(params.temperature)
            bounds = torch.full((len(logits),), params.top_p) if params.top_p < 1 else None
            logits = apply_top_k_top_p(logits, None, bounds)
            positions = np.arange(position, position + len(logits), dtype=np.uint64)
            seeds = np.full(len(logits), params.extra_args[SEED], np.uint64)
            noise_seeds = torch.from_numpy(row_seeds(seeds, positions))
            tokens = torch.ops._C.fused_gumbel_argmax(logits, noise_seeds)
        logprobs = logits.log_softmax(dim=-1)
        return tokens, logprobs.gather(-1, tokens.to(torch.int64).unsqueeze(-1)).squeeze(-1)
