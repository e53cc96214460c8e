"""Runs vLLM as a judge: a batch of questions in, one judgement for each out.

    batcher ─▶ RemoteJudge ── bytes over Dask ─▶ JudgeActor
    ─▶ SteppingThread ─▶ JudgeCore ─▶ vLLM's LLMEngine

A yes-or-no question takes a prefill and one token, which can only be a yes or a no. So P(yes), the
sum over the yes tokens divided by the sum over both kinds, needs no parsing and cannot fail. A
generative verdict is a JSON object by structured output, decoded greedily; if it was cut off, it is
requested once more without the reason. Leaves out caching and batching (`batcher`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from artifacts.judgements import Judgement, JudgeQuestion
from artifacts.records import Generated, pack, unpack
from tasks.cluster.actors import Remote
from tasks.cluster.dask_cluster import pin_process
from tasks.engines.model_files import check_model_directory, read_tokenizer
from tasks.engines.vllm.llm_engine import build_llm_engine, on_cpu, pin_this_thread
from tasks.engines.vllm.stepping import SteppingThread
from tasks.rewards.judges.engine_config import Judge, JudgeEngineConfig
from tasks.rewards.judges.question import QuestionEncoder, no_verdict, verdict_tokens

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine


class JudgeCore:
    """An LLMEngine that only judges, in its stepping thread; each call finishes its batch."""

    busy = False

    # Any: see QuestionEncoder
    def __init__(self, engine: LLMEngine, tokenizer: Any, max_model_len: int) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._encoder = QuestionEncoder(tokenizer, max_model_len)
        self._num_asked = 0
        self._asleep = False

    def step(self) -> list[Generated]:
        """Do nothing: no work is left between two calls."""
        return []

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        """Answer each question, in order. Raises ValueError if the words for yes and no begin with
        the same tokens in the judge's vocabulary."""
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False
        judged = self._judge(questions, self._verdict_params)
        again = [
            question
            for question, judgement in zip(questions, judged, strict=True)
            if question.mode == "generative" and judgement.p_yes is None and judgement.prompt_tokens
        ]
        retried = self._judge(again, lambda question: _structured(question, {}))
        second_of = {judgement.key: judgement for judgement in retried}
        return tuple(
            replace(
                second,
                prompt_tokens=first.prompt_tokens + second.prompt_tokens,
                new_tokens=first.new_tokens + second.new_tokens,
            )
            if (second := second_of.get(first.key)) is not None
            else first
            for first in judged
        )

    def sleep(self) -> None:
        """Release the GPU memory until the next question."""
        if not self._asleep:
            self._engine.sleep(level=1)
            self._asleep = True

    def _judge(
        self, questions: Sequence[JudgeQuestion], params: Callable[[JudgeQuestion], SamplingParams]
    ) -> list[Judgement]:
        from vllm.inputs.engine import tokens_input

        prepared = [  # errors occur here, before the first request is in the engine
            (question, tokens, params(question))
            for question in questions
            if (tokens := self._encoder.encode(question)) is not None
        ]
        asked: dict[str, JudgeQuestion] = {}
        for question, tokens, wanted in prepared:
            self._num_asked += 1
            name = f"judge:{self._num_asked}"
            self._engine.add_request(name, tokens_input(tokens), wanted)
            asked[name] = question
        found: dict[str, Judgement] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    question = asked[output.request_id]
                    found[question.key] = self._judgement(question, output)
        return [
            found.get(question.key) or no_verdict(question, "judge_prompt_too_long")
            for question in questions
        ]

    def _judgement(self, question: JudgeQuestion, output: RequestOutput) -> Judgement:
        written = output.outputs[0]
        if question.mode == "yes_no":
            first = written.logprobs[0] if written.logprobs else {}
            for_yes, for_no = (
                math.fsum(math.exp(first[token].logprob) for token in tokens)
                for tokens in verdict_tokens(self._tokenizer, question.yes, question.no)
            )
            p_yes: float | None = for_yes / (for_yes + for_no)
        else:
            p_yes = self._written_verdict(question, written.token_ids)
        return Judgement(
            key=question.key,
            p_yes=p_yes,
            prompt_tokens=len(output.prompt_token_ids or ()),
            new_tokens=len(written.token_ids),
            detail="" if p_yes is not None else "judge_unparsable",
        )

    def _written_verdict(self, question: JudgeQuestion, token_ids: Sequence[int]) -> float | None:
        """Parse the judge's JSON: 1 for a yes, 0 for a no, None if it holds no verdict."""
        try:
            written = json.loads(self._tokenizer.decode(token_ids, skip_special_tokens=True))
        except ValueError:
            return None
        verdict = written.get("verdict") if isinstance(written, dict) else None
        if not isinstance(verdict, str):
            return None
        return {question.yes: 1.0, question.no: 0.0}.get(verdict)

    def _verdict_params(self, question: JudgeQuestion) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if question.mode == "generative":
            return _structured(question, {"reason": {"type": "string"}})
        yes, no = verdict_tokens(self._tokenizer, question.yes, question.no)
        allowed = [*yes, *no]
        return SamplingParams(
            max_tokens=1, temperature=0.0, allowed_token_ids=allowed, logprobs=len(allowed),
            detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip


# Any: JSON schema
def _structured(question: JudgeQuestion, first: dict[str, Any]) -> SamplingParams:
    """Greedy decoding of a JSON object with the properties `first` and "verdict", a yes or no."""
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


class JudgeActor:
    """A judge in a Dask worker. Its methods are coroutines on the worker's event loop."""

    def __init__(
        self,
        config: JudgeEngineConfig,
        model_path: str,
        name: str,
        core_ids: tuple[int, ...],
        has_tokenizer: bool,
        start_s: float,
    ) -> None:
        """Build the engine in its thread; returns when it is ready. `has_tokenizer`: load the
        tokenizer in vLLM, which structured output needs. Raises ValueError for a bad configuration,
        EngineLost for any other failure and after start_s."""
        check_model_directory(model_path)
        self._config = config
        cores = pin_process(core_ids) or None

        def build() -> JudgeCore:
            pin_this_thread(cores, 1)
            engine = build_llm_engine(config.vllm_arguments(model_path, 0, on_cpu(), has_tokenizer))
            return JudgeCore(engine, read_tokenizer(model_path), config.max_model_len)

        self._thread: SteppingThread[JudgeCore] = SteppingThread(name, build)
        self._thread.start(start_s)

    async def ping(self) -> None:
        """Raise EngineLost if the engine's stepping thread has died; waits for no batch."""
        self._thread.check_alive()

    async def decide(self, payload: bytes) -> bytes:
        batch: tuple[JudgeQuestion, ...] = unpack(payload)
        limit_s = self._config.call_deadline_s
        return pack(await self._thread.call("decide", lambda core: core.decide(batch), limit_s))

    async def sleep(self) -> None:
        if self._config.placement == "sleep":
            limit_s = self._config.call_deadline_s
            await self._thread.call("sleep", lambda core: core.sleep(), limit_s)

    async def close(self) -> None:
        """Free the device."""
        self._thread.close(self._config.call_deadline_s)


class RemoteJudge(Judge):
    """Calls a judge in another process through its actor."""

    def __init__(self, run_id: str, name: str, deadline_s: float) -> None:
        """Connect to the current generation of a run's judge; a batch has `deadline_s` seconds.
        Raises ActorLost if the judge is gone."""
        self.name = name
        self._remote = Remote.connect(run_id, name)
        self._deadline_s = deadline_s

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        judged: tuple[Judgement, ...] = unpack(
            await self._remote.call("decide", pack(tuple(questions)), deadline_s=self._deadline_s)
        )
        return judged

    async def sleep(self) -> None:
        await self._remote.call("sleep", deadline_s=self._deadline_s)
