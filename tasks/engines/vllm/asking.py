"""How vLLM is asked: token ids in and out, FINAL_ONLY output, no detokenisation on the way, so that
a step costs no Python of ours per token.

Log-probabilities are those of the distribution that was sampled from (`processed_logprobs`: after
temperature and top_p). At temperature 1 and top_p 1 they are the model's own; for greedy decoding
(temperature 0) too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from artifacts.records import Request

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine


def response_params(
    request: Request,
    stop_ids: Sequence[int],
    seed: Mapping[str, Any],  # Any: vLLM's arguments are of many types
) -> SamplingParams:
    """One response (n = 1) from where it was left; seed: the arguments that seed its noise."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=request.max_new_tokens - len(request.kept_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        **seed,
        stop_token_ids=list(stop_ids),
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def probe_params() -> SamplingParams:
    """The log-probabilities of a prompt's own tokens."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def enter(
    engine: LLMEngine, request_id: str, tokens: list[int], params: SamplingParams, salt: str | None
) -> str:
    """vLLM's own id of the request, which it has now; salt: of what it shares its KV cache with."""
    from vllm.inputs.engine import tokens_input

    asked = tokens_input(tokens, cache_salt=salt)
    internal_id: str = engine.add_request(request_id, asked, params)
    return internal_id
