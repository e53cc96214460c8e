"""What a request must be to enter an engine."""

from __future__ import annotations

from artifacts.records import Request


def check_room(request: Request, max_model_len: int) -> None:
    """ValueError when the prompt and the longest response do not fit the engine's context."""
    name, length = request.response_id, len(request.prompt_tokens)
    if length < 1 or length + request.max_new_tokens > max_model_len:
        raise ValueError(
            f"prompt and max_new_tokens must fit max_model_len {max_model_len}, {name} has {length}"
            f" + {request.max_new_tokens}; raise the engine's max_model_len or lower max_new_tokens"
        )


def check_request(request: Request, max_model_len: int, vocabulary: int) -> None:
    """ValueError when the request cannot be generated as asked; nothing is ever shortened
    silently."""
    check_room(request, max_model_len)
    name, num_kept = request.response_id, len(request.kept_tokens)
    if num_kept >= request.max_new_tokens:
        raise ValueError(
            f"max_new_tokens must exceed the kept tokens, {name} has {request.max_new_tokens} and"
            f" {num_kept}; do not resume it"
        )
    if num_kept != len(request.kept_logprobs) or num_kept != sum(
        span.num_tokens for span in request.kept_versions
    ):
        raise ValueError(
            f"kept tokens need a log-probability and a version each, {name} keeps {num_kept}; take"
            " all three from one Generated"
        )
    tokens = (*request.prompt_tokens, *request.kept_tokens)
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        raise ValueError(
            f"token ids must be in 0..{vocabulary - 1}, {name} has {min(tokens)}..{max(tokens)};"
            " use the model's tokenizer"
        )
