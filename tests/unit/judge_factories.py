"""Judges without a model, and responses for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from artifacts.judgements import Judgement, JudgementCache, JudgeQuestion
from artifacts.models.registry import TinyLlamaConfig
from artifacts.records import FinishReason, Generated, Prompt, Score
from tasks.rewards.judges.batcher import JudgeBatcher, JudgingReport
from tasks.rewards.judges.engine_config import JudgeEngineConfig
from tasks.rewards.judges.reward import JudgeConfig

Rule = Callable[[JudgeQuestion], float | None]


def by_reference(question: JudgeQuestion) -> float | None:
    """The rule that a perfect judge follows: the answer is the reference answer."""
    return 0.9 if f"Reference answer:\n{question.answer}\n" in question.before else 0.1


class RuleJudge:
    """Follows a rule; keeps the batches that it was asked."""

    def __init__(
        self,
        name: str = "judge-0",
        rule: Rule = by_reference,
        takes_s: float = 0.0,
        error: Exception | None = None,
    ) -> None:
        self.name = name
        self.batches: list[list[JudgeQuestion]] = []
        self.num_sleeps = 0
        self._rule, self._takes_s, self._error = rule, takes_s, error

    async def decide(self, questions: Sequence[JudgeQuestion]) -> tuple[Judgement, ...]:
        self.batches.append(list(questions))
        await asyncio.sleep(self._takes_s)
        if self._error is not None:
            raise self._error
        return tuple(self._judgement(question) for question in questions)

    async def sleep(self) -> None:
        self.num_sleeps += 1

    def _judgement(self, question: JudgeQuestion) -> Judgement:
        p_yes = self._rule(question)
        return Judgement(
            key=question.key,
            p_yes=p_yes,
            prompt_tokens=10,
            new_tokens=1,
            detail="" if p_yes is not None else "judge_unparsable",
        )


def make_config(**changes: object) -> JudgeConfig:
    """Without the veto, so that a judge is asked about every number."""
    engine = JudgeEngineConfig(model=TinyLlamaConfig())
    return JudgeConfig.model_validate({"engine": engine, "veto": False, **changes})


def make_prompt(gold: str = "8", text: str = "3 + 5?") -> Prompt:
    return Prompt(prompt_id="0/0", domain="story", token_ids=(1,), gold=gold, text=text)


def make_generated(text: str, index: int = 0, finish_reason: FinishReason = "stop") -> Generated:
    return Generated(
        prompt_id="0/0", index=index, token_ids=(1, 2), logprobs=(0.0, 0.0), versions=(),
        finish_reason=finish_reason, text=text,
        engine="engine-0", submitted_s=0.0, first_token_s=0.0, finished_s=0.0,
    )  # fmt: skip


def score_all(
    judges: Sequence[RuleJudge],
    texts: Sequence[str],
    config: JudgeConfig | None = None,
    *,
    cache: JudgementCache | None = None,
    max_batch: int = 64,
    prompt: Prompt | None = None,
) -> tuple[list[Score], JudgingReport]:
    """Scores of responses that arrive together, in order, and the batcher's report."""

    async def run() -> tuple[list[Score], JudgingReport]:
        async with JudgeBatcher(
            judges, cache if cache is not None else JudgementCache(), max_batch
        ) as batcher:
            asked = prompt or make_prompt()
            scoring = (
                batcher.score(config or make_config(), asked, make_generated(text, index))
                for index, text in enumerate(texts)
            )
            scores = await asyncio.gather(*scoring)
        return list(scores), batcher.report

    return asyncio.run(run())
