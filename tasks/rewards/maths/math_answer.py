r"""The mathematics reward: is the final answer equal to the gold?

    final answer -> both plain numbers? exact fractions, microseconds
                 -> too complex, left undone? wrong
                 -> both of known forms? part by part, under a millisecond
                 -> math-verify in a killable worker, for golds that nothing else reads

The gold is a number (`42`, `-1/2`, `42%`) or a LaTeX expression without \boxed{}. A number question
wants a number: by default an unevaluated `6 \times 7`, which may be an echo of the question, is
wrong where math-verify would call it equal.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.records import Generated, Outcome, Prompt
from tasks.isolation.interrupt import Interrupted
from tasks.rewards.base import (
    ProcessReward,
    Reward,
    RewardUnavailable,
    Verdict,
    infra,
    right,
    wrong,
)
from tasks.rewards.maths.exact_number import (
    ExactNumber,
    exact_number,
    first_sentence,
    is_undone,
    is_unevaluated,
    leading_number,
    plain,
    too_complex,
)
from tasks.rewards.maths.final_answer import answer_tail, find_expression, find_number, fold
from tasks.rewards.maths.same_answer import Rules, is_readable, same_answer, same_number
from tasks.rewards.programs.adaptive_timeout import TimeoutBook
from tasks.rewards.workers.verify_worker import VerifyWorker, without_value

RECYCLE_CALLS = 10_000  # a fresh worker costs seconds: it reads everything for the first time
REHEARSED = (
    r"\frac{x}{2}",
    r"\left[-1, \sqrt{3}\right)",
    r"\{1, 2\}",
    "(1, 2, 3)",
    "y = 3x + 1",
    r"2 + \sin(3x)",
    "x^2y - e^{2x}",
)
_SIGNS = "le|ge|ne|leq|geq|neq|in|notin|ni|lor|land|vee|wedge|cup|cap|to|equiv|approx"
_RELATIONS = re.compile(rf"[=<>;]|\\(?:{_SIGNS})(?![a-z])")
_NAMED = re.compile(r"^\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z]\))?\s*=")


class MathAnswerConfig(BaseModel):
    """Compare the final answer with a number or a LaTeX expression."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["math_answer"] = Field(
        default="math_answer", description="Chooses the mathematics reward."
    )
    timeout_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Processor seconds that the symbolic check of one answer may take.",
    )
    unevaluated: Literal["wrong", "verify"] = Field(
        default="wrong",
        description=(
            "An answer that still holds an operation where the gold is a number, or an integral,"
            " sum, product, limit, determinant or factorial where the gold has none, is wrong, or"
            " is checked symbolically."
        ),
    )
    percent: Literal["hundredth", "sign"] = Field(
        default="hundredth",
        description=(
            "A percent sign divides by a hundred, so that 50% is 0.5 and 1/2, or it is "
            "part of the answer, so that 50% is 50% only."
        ),
    )

    def build_reward(self, book: TimeoutBook) -> Reward:
        """It executes no programs and needs no time limits."""
        return MathAnswer(self)


class MathAnswer(ProcessReward):
    """Scores against `Prompt.gold`; the worker process starts with the first answer that needs it,
    or with `warm`."""

    name = "math_answer"

    def __init__(self, config: MathAnswerConfig) -> None:
        self.num_verified = 0  # answers that math-verify was asked about
        self._unevaluated_is_wrong = config.unevaluated == "wrong"
        self._rules = Rules(
            percent_is_hundredth=config.percent == "hundredth",
            number_wants_number=self._unevaluated_is_wrong,
        )
        self._worker = VerifyWorker(
            "tasks.rewards.maths.equivalence:compare",
            timeout_s=config.timeout_s,
            recycle_calls=RECYCLE_CALLS,
            rehearsals=[(form, form) for form in REHEARSED],
        )
        super().__init__(self._worker)

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """1 if the final answer equals the gold, else 0; INFRA if the gold is no answer."""
        return self.judge(prompt.gold, generated.text)

    def check_gold(self, gold: str) -> None:
        """ValueError if nothing can ever be equal to this gold: to be called when a data set is
        read."""
        verdict = self.judge(gold, f"\\boxed{{{gold}}}")
        if verdict.outcome is not Outcome.OK:
            raise ValueError(
                f"a gold must be a number or a LaTeX expression that equals itself, got {gold!r}"
                f" ({verdict.detail}); repair the row or drop it"
            )

    def judge(self, gold: str, text: str) -> Verdict:
        """The verdict on a response's text; whatever reading it raises, it is not the answer."""
        try:
            return self._judge(gold, text)
        except (RewardUnavailable, Interrupted):
            raise
        except Exception:  # the boundary of what a model wrote
            return wrong("unreadable")

    def _judge(self, gold: str, text: str) -> Verdict:
        wanted_text, wanted = read_gold(gold)
        tail = answer_tail(text)
        found = find_number(tail) if wanted else find_expression(tail)
        if found is None or not (answer := plain(found.text)):
            return wrong("no_answer")
        if wanted is None:
            return self._judge_expression(wanted_text, answer)
        given = exact_number(answer) if found.boxed else leading_number(answer)
        if given is not None:
            return right("exact") if same_number(wanted, given, self._rules) else wrong("unequal")
        answer = answer if found.boxed else first_sentence(answer)
        return self._judge_expression(wanted_text, answer)

    def _judge_expression(self, gold: str, answer: str) -> Verdict:
        if too_complex(answer):
            return wrong("too_complex")
        if not answer.isprintable():
            return wrong("unprintable")
        result = answer.rpartition("=")[2]
        if self._unevaluated_is_wrong and is_undone(result) and not is_undone(gold):
            return wrong("unevaluated")
        same = same_answer(gold, answer, self._rules)
        if same is not None:
            return right("identical") if same else wrong(self._why_not(gold, answer))
        if (is_readable(gold) and not is_undone(answer)) or says_more(gold, answer):
            return wrong("unreadable")
        return self._verify(gold, answer)

    def _why_not(self, gold: str, answer: str) -> str:
        """What is wrong with an answer that is not the gold."""
        if exact_number(gold) is None:
            return "unequal"
        if not any(character in "0123456789" for character in answer):
            return "not_a_number"
        return "unevaluated" if self._unevaluated_is_wrong and is_unevaluated(answer) else "unequal"

    def _verify(self, gold: str, answer: str) -> Verdict:
        if not gold:
            return infra("bad_gold")
        self.num_verified += 1
        reply = self._worker.call(gold, answer)
        if reply.kind != "value":
            return without_value(reply)
        if reply.value == "bad_gold":  # which may still be met by the same text
            is_gold = same_answer(gold, gold, self._rules)
            return wrong("unequal") if is_gold else infra("bad_gold")
        return right("verified") if reply.value == "equal" else wrong("unequal")


def says_more(gold: str, answer: str) -> bool:
    """Whether an answer has relations that the gold has not: math-verify reads past `1 = f(x)`."""
    stated = _NAMED.sub("", answer, count=1)
    return bool(set(_RELATIONS.findall(stated)) - set(_RELATIONS.findall(gold)))


@lru_cache(maxsize=4096)
def read_gold(gold: str) -> tuple[str, ExactNumber | None]:
    """A gold in plain form, and its value if it is a number. Golds repeat for every response of a
    group."""
    text = plain(fold(gold))
    return text, exact_number(text)
