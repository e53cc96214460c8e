"""The mathematics reward with a part for the worked lines: is the answer right, and how far does
the response get there as the gold does?

    gold "3 + 5 = 8 / 8 + 2 = 10 / 10", response "3 + 5 = 8 / Answer: 8"
    ─▶ the answer is wrong: 0, one line of two is there: 1/2 ─▶ 0 + (1 - answer_share) / 2

Where most answers to a long question are wrong, the answer alone tells a policy nothing about the
steps towards it; the lines do, from the first one on. A gold of a single line is an answer without
a working, and is scored as by `math_answer`: so what is held out can be scored by its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.records import Generated, Prompt
from tasks.rewards.base import Reward, Verdict
from tasks.rewards.maths.final_answer import find_answer, visible_text
from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig
from tasks.rewards.programs.adaptive_timeout import MeasuredTimes


class WorkedAnswerConfig(BaseModel):
    """Compare the final answer, and the lines before it with those of the gold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["worked_answer"] = Field(
        "worked_answer", description="Chooses the mathematics reward that pays for worked lines."
    )
    answer_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description=(
            "Reward of the right answer alone; what is left of 1 is paid for the lines of the gold"
            " that the response begins with."
        ),
    )
    answer: MathAnswerConfig = Field(
        MathAnswerConfig(), description="How the final answer is compared."
    )

    def build_reward(self, book: MeasuredTimes) -> Reward:
        """It executes no programs and needs no time limits."""
        return WorkedAnswer(self)


class WorkedAnswer(MathAnswer):
    """Scores against a gold whose last line is the answer and the others its working."""

    name = "worked_answer"

    def __init__(self, config: WorkedAnswerConfig) -> None:
        super().__init__(config.answer)
        self._answer_share = config.answer_share

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """Between 0 and 1, OK where the answer is right; INFRA if the gold ends in no answer."""
        *working, answer = prompt.gold.split("\n")
        verdict = self.judge(answer, generated.text)
        if not working or verdict.reward is None:
            return verdict
        lines_share = (1 - self._answer_share) * worked_share(working, generated.text)
        return replace(verdict, reward=self._answer_share * verdict.reward + lines_share)

    def check_gold(self, gold: str) -> None:
        """ValueError if nothing can ever be equal to the answer: the gold's last line."""
        super().check_gold(gold.split("\n")[-1])


def worked_share(working: Sequence[str], text: str) -> float:
    """Leading lines that a response has in common with the working, over the longer of both; what
    follows a stated answer is none of its lines, nor is a blank one."""
    written = filter(None, map(_plain, visible_text(text).split("\n")))
    given = [*takewhile(lambda line: find_answer(line) is None, written)]
    pairs = zip(map(_plain, working), given, strict=False)
    num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return num_same / max(len(working), len(given))


def _plain(line: str) -> str:
    return " ".join(line.split())
