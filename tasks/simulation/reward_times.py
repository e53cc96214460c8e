"""How long verdicts take: of a rule, of programs in a sandbox, of a judge model.

    rule      tens of milliseconds, at most 2 s (the paper's limit for mathematics)
    program   log-normal, alike within a question, and a share that never ends: killed at the limit
              that the run's `MeasuredTimes` has for its question
    given     as it was recorded (`replay`)
    judge     one forward pass over the prompt and the answer, by the device's arithmetic or by the
              copying of its layers, whichever is longer (`JudgeTimes`)

The limits and anchors of programs are those of `tasks.rewards.programs.adaptive_timeout`. Leaves
out who waits for whom (`reward_queue`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from artifacts.records import CaseResult, CaseVerdict
from tasks.rewards.judges.engine_config import LayerStreaming, resident_layers
from tasks.rewards.programs.adaptive_timeout import AdaptiveTimeoutConfig, MeasuredTimes
from tasks.simulation.draws import alike, normal, uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerToScore:
    """What is to be scored."""

    prompt_id: str
    index: int
    num_tokens: int  # of the prompt and the response
    is_right: bool  # whether the verdict will be that, if there is time
    is_cut: bool = False  # whether the bound on tokens ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTimes:
    """A rule that reads the answer."""

    median_s: float = 0.05
    sigma: float = 1.0  # of the logarithm
    limit_s: float = 2.0  # the longest that it may take

    def seconds(self, answer: AnswerToScore, seed: int) -> float:
        """Until its verdict."""
        spread = self.sigma * normal(seed, "rule", answer.prompt_id, answer.index)
        return min(self.limit_s, self.median_s * math.exp(spread))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTimes:
    """A program that is executed against a question's tests, one after the other.

    With the defaults 95 % of the programs are done after 30 s, the others run into that limit
    (RollPacker, Figure 7a). A question's cases are taken to run equally long, so that one of them
    stands for all. What the bound cut is no whole program and fails at once.
    """

    median_s: float = 1.5  # of a program that passes all cases
    sigma: float = 1.0  # of the logarithm
    question_share: float = 0.8  # correlation of that logarithm in two programs for a question
    doomed_share: float = 0.05  # of the programs that never end
    num_cases: int = 8
    timeout: AdaptiveTimeoutConfig = field(default_factory=AdaptiveTimeoutConfig)

    def case(self, answer: AnswerToScore, seed: int, book: MeasuredTimes) -> CaseResult:
        """The case that decides, by the limit that the book has for it now."""
        key = f"{answer.prompt_id}/case"
        (limit,) = book.limits(self.timeout, (key,))
        needs_s = self._needs_s(answer, seed) / self.num_cases
        if needs_s > limit:
            verdict = CaseVerdict.TIMEOUT
        else:
            verdict = CaseVerdict.PASS if answer.is_right else CaseVerdict.WRONG
        return CaseResult(key=key, verdict=verdict, wall_s=min(needs_s, limit), limit_s=limit)

    def seconds(self, case: CaseResult) -> float:
        """Until the verdict: all cases, or the first one if that is killed, as `CaseRunner` goes
        on behind a wrong answer and not behind a killed one."""
        return case.wall_s * (1 if case.verdict is CaseVerdict.TIMEOUT else self.num_cases)

    def _needs_s(self, answer: AnswerToScore, seed: int) -> float:
        names = (answer.prompt_id, answer.index)
        if answer.is_cut:
            return 0.0
        if uniform(seed, "doomed", *names) < self.doomed_share:
            return math.inf
        score = alike(
            normal(seed, "slow question", answer.prompt_id),
            normal(seed, "slow program", *names),
            self.question_share,
        )
        return self.median_s * math.exp(self.sigma * score)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTimes:
    """A judge that reads prompt and answer and says one token, so that it only prefills.

    `resident`: all layers lie on its device. `pipelined`: as many layers as the arithmetic hides
    are copied from host memory while others compute (RollPacker 4.3; the number is that of the
    real `resident_layers`). `copied`: every layer is copied, then computed, as offloading without
    a pipeline does.
    """

    placement: Literal["resident", "pipelined", "copied"] = "resident"
    parameters: float = 7.6e9  # of Qwen2.5-7B-Instruct, in bf16
    num_layers: int = 28
    frame_tokens: int = 300  # instructions around prompt and answer
    pass_tokens: int = 16384  # waiting answers share a pass up to so many
    streaming: LayerStreaming = field(default_factory=LayerStreaming)
    compute_share: float = 1.0  # of the device's arithmetic that it gets beside a rollout

    def tokens(self, answer: AnswerToScore) -> int:
        """What it reads for an answer."""
        return answer.num_tokens + self.frame_tokens

    def seconds(self, num_tokens: int) -> float:
        """Of a forward pass."""
        tflops = self.compute_share * self.streaming.compute_tflops
        compute_s = 2 * self.parameters * num_tokens / (tflops * 1e12)
        copy_s = 2 * self.parameters / (self.streaming.link_gb_per_s * 1e9)
        if self.placement == "resident":
            return compute_s
        if self.placement == "copied":
            return compute_s + copy_s
        streaming = self.streaming.model_copy(update={"compute_tflops": tflops})
        num_copied = self.num_layers - resident_layers(self.num_layers, num_tokens, streaming)
        return max(compute_s, copy_s * num_copied / self.num_layers)


RewardTimes = RuleTimes | ProgramTimes | JudgeTimes
