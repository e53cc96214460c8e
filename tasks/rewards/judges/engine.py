"""vLLM as a judge: a batch of questions in, one judgement each out.

    batcher ─▶ RemoteJudge ── bytes over Dask ─▶ JudgeActor ─▶ JudgeEngine
    ─▶ SteppingThread ─▶ JudgeCore ─▶ vLLM's LLMEngine

A yes-or-no question is a prefill and one token that can only be a yes or a no. Its
log-probabilities are those of the masked distribution, so that P(yes) = sum over the yes tokens /
sum over both needs no parsing and cannot fail. A generative verdict is a JSON object by structured
output, decoded greedily; one that was cut off is asked for once more without its reason.

A judge shares the rollout engine's vLLM settings, pinning and stepping thread, and nothing else:
its weights are its own and never change in a run. Leaves out caching and who asks in what batches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from artifacts.judgements import Judgement, JudgeQuestion
from artifacts.records import Generated, pack, unpack
from tasks.cluster.actors import Remote
from tasks.cluster.dask_cluster import pin_process
from tasks.engines.model_files import check_model_directory, read_tokenizer
from tasks.engines.vllm.cores import pin_this_thread
from tasks.engines.vllm.llm_engine import build_llm_engine, on_cpu
from tasks.engines.vllm.stepping import SteppingThread
from tasks.rewards.judges.engine_config import Judge, JudgeEngineConfig
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


class JudgeEngine(Judge):
    """One judge in this process. `start` builds it, `close` frees it."""

    def __init__(
        self,
        config: JudgeEngineConfig,
        model_path: str,
        name: str,
        cpu_ids: Sequence[int] | None,
        *,
        has_tokenizer: bool,
    ) -> None:
        """has_tokenizer: whether vLLM itself needs the tokenizer, which structured output does."""
        check_model_directory(model_path)
        self.name = name
        self._config = config
        self._model_path = model_path
        self._cpu_ids = tuple(cpu_ids) if cpu_ids else None
        self._has_tokenizer = has_tokenizer
        self._thread: SteppingThread[JudgeCore] = SteppingThread(name, self._build)

    def start(self, deadline_s: float) -> None:
        """Build the engine in its thread and wait for it."""
        self._thread.start(deadline_s)

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        batch = tuple(questions)
        return await self._thread.call(
            "decide", lambda core: core.decide(batch), self._config.call_deadline_s
        )

    async def rest(self) -> None:
        if self._config.placement == "sleep":
            await self._thread.call("rest", lambda core: core.rest(), self._config.call_deadline_s)

    def check_alive(self) -> None:
        """Raise EngineLost when the stepping thread has died; a batch that runs is not waited
        for."""
        self._thread.check_alive()

    def close(self) -> None:
        """Free the device."""
        self._thread.close(self._config.call_deadline_s)

    def _build(self) -> JudgeCore:
        pin_this_thread(self._cpu_ids, 1)
        arguments = self._config.vllm_arguments(self._model_path, 0, on_cpu(), self._has_tokenizer)
        engine = build_llm_engine(arguments)
        return JudgeCore(engine, read_tokenizer(self._model_path), self._config.max_model_len)


class JudgeActor:
    """Holds one judge. Its methods are coroutines on the worker's event loop."""

    def __init__(
        self,
        config: JudgeEngineConfig,
        model_path: str,
        name: str,
        core_ids: tuple[int, ...],
        has_tokenizer: bool,
        start_s: float,
    ) -> None:
        cores = pin_process(core_ids)
        self._engine = JudgeEngine(config, model_path, name, cores, has_tokenizer=has_tokenizer)
        self._engine.start(start_s)

    async def ping(self) -> None:
        """Answers as long as the engine does; raises EngineLost when its stepping thread has died
        in a living worker."""
        self._engine.check_alive()

    async def decide(self, payload: bytes) -> bytes:
        return pack(await self._engine.decide(unpack(payload)))

    async def rest(self) -> None:
        await self._engine.rest()

    async def close(self) -> None:
        self._engine.close()


class RemoteJudge(Judge):
    """The Judge protocol over an actor."""

    def __init__(self, remote: Remote, deadline_s: float) -> None:
        """deadline_s: how long a batch may take."""
        self.name = remote.name
        self._remote = remote
        self._deadline_s = deadline_s

    @classmethod
    def connect(cls, run_id: str, name: str, deadline_s: float) -> RemoteJudge:
        """The current generation of a run's judge. Raises ActorLost if it is gone."""
        return cls(Remote.connect(run_id, name), deadline_s)

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        judged: tuple[Judgement, ...] = unpack(
            await self._remote.call("decide", pack(tuple(questions)), deadline_s=self._deadline_s)
        )
        return judged

    async def rest(self) -> None:
        await self._remote.call("rest", deadline_s=self._deadline_s)
