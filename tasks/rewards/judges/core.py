"""vLLM as a judge, as the stepping thread sees it: a batch of questions in, one judgement each out.

A yes-or-no question is a prefill and one token that can only be a yes or a no. Its
log-probabilities are those of the masked distribution, so that P(yes) = sum over the yes tokens /
sum over both needs no parsing and cannot fail. A generative verdict is a JSON object by structured
output, decoded greedily; one that was cut off is asked for once more without its reason. Leaves out
batching over time, caching and deadlines. Weights are the judge's own for good: nothing here loads
others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from artifacts.judgements import Judgement, JudgeQuestion
from artifacts.records import Generated
from tasks.rewards.judges.question import QuestionEncoder, verdict_tokens

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine


class JudgeCore:
    """One LLMEngine that only judges. Works off a whole batch in one call, so that between calls it
    is never busy."""

    busy = False

    def __init__(
        self, engine: LLMEngine, tokenizer: Any, max_model_len: int
    ) -> None:  # Any: see QuestionEncoder
        self._engine = engine
        self._tokenizer = tokenizer
        self._encoder = QuestionEncoder(tokenizer, max_model_len)
        self._num_asked = 0
        self._asleep = False

    def step(self) -> list[Generated]:
        """Nothing is ever left to do between two calls."""
        return []

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        """A judgement for each question, in order. ValueError when yes and no cannot be told apart
        in the judge's vocabulary."""
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False
        judged = self._ask(questions, self._verdict_params)
        again = [
            question
            for question, judgement in zip(questions, judged, strict=True)
            if question.mode == "generative" and judgement.p_yes is None and judgement.prompt_tokens
        ]
        retried = {judgement.key: judgement for judgement in self._ask(again, self._retry_params)}
        return tuple(_together(judgement, retried.get(judgement.key)) for judgement in judged)

    def rest(self) -> None:
        """Give the GPU's memory back until the next question."""
        if not self._asleep:
            self._engine.sleep(level=1)
            self._asleep = True

    def _ask(
        self, questions: Sequence[JudgeQuestion], params: Callable[[JudgeQuestion], SamplingParams]
    ) -> list[Judgement]:
        from vllm.inputs.engine import tokens_input

        prompts = [
            (question, tokens)
            for question in questions
            if (tokens := self._encoder.encode(question)) is not None
        ]
        entering = [
            (question, tokens, params(question)) for question, tokens in prompts
        ]  # before any is inside the engine
        asked: dict[str, JudgeQuestion] = {}
        for question, tokens, wanted in entering:
            self._num_asked += 1
            name = f"judge:{self._num_asked}"
            self._engine.add_request(name, tokens_input(tokens), wanted)
            asked[name] = question
        told: dict[str, Judgement] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    question = asked[output.request_id]
                    told[question.key] = self._judgement(question, output)
        return [
            told.get(question.key) or _no_verdict(question, "judge_prompt_too_long")
            for question in questions
        ]

    def _judgement(self, question: JudgeQuestion, output: RequestOutput) -> Judgement:
        written = output.outputs[0]
        p_yes = (
            self._probability(question, written.logprobs)
            if question.mode == "yes_no"
            else self._verdict(question, written.token_ids)
        )
        return Judgement(
            key=question.key,
            p_yes=p_yes,
            prompt_tokens=len(output.prompt_token_ids or ()),
            new_tokens=len(written.token_ids),
            detail="" if p_yes is not None else "judge_unparsable",
        )

    def _probability(
        self, question: JudgeQuestion, logprobs: Any
    ) -> float:  # Any: vLLM's mapping from token to Logprob, by position
        yes, no = verdict_tokens(self._tokenizer, question.yes, question.no)
        first = logprobs[0]
        for_yes, for_no = (
            math.fsum(math.exp(first[token].logprob) for token in tokens) for tokens in (yes, no)
        )
        return for_yes / (for_yes + for_no)

    def _verdict(self, question: JudgeQuestion, token_ids: Sequence[int]) -> float | None:
        """What the judge's own output says, exactly; None for anything else."""
        try:
            told = json.loads(self._tokenizer.decode(token_ids, skip_special_tokens=True))
        except ValueError:
            return None
        verdict = told.get("verdict") if isinstance(told, dict) else None
        return (
            {question.yes: 1.0, question.no: 0.0}.get(verdict) if isinstance(verdict, str) else None
        )

    def _verdict_params(self, question: JudgeQuestion) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if question.mode == "generative":
            return _structured(question, {"reason": {"type": "string"}})
        allowed = [
            token
            for tokens in verdict_tokens(self._tokenizer, question.yes, question.no)
            for token in tokens
        ]
        return SamplingParams(
            max_tokens=1, temperature=0.0, allowed_token_ids=allowed, logprobs=len(allowed),
            detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip

    def _retry_params(self, question: JudgeQuestion) -> SamplingParams:
        return _structured(question, {})


def _structured(
    question: JudgeQuestion, first: dict[str, Any]
) -> SamplingParams:  # Any: JSON schema
    """Greedy decoding into {first ..., "verdict": yes or no}."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    properties = {**first, "verdict": {"enum": [question.yes, question.no]}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    wanted = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    return SamplingParams(
        max_tokens=question.max_new_tokens, temperature=0.0, structured_outputs=wanted,
        detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip


def _together(first: Judgement, second: Judgement | None) -> Judgement:
    """The second's verdict, with the tokens of both."""
    if second is None:
        return first
    return Judgement(
        key=first.key,
        p_yes=second.p_yes,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        new_tokens=first.new_tokens + second.new_tokens,
        detail=second.detail,
    )


def _no_verdict(question: JudgeQuestion, detail: str) -> Judgement:
    return Judgement(key=question.key, p_yes=None, prompt_tokens=0, new_tokens=0, detail=detail)
