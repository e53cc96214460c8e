r"""The mathematics reward: is the final answer equal to the gold?

    final answer -> both plain numbers? exact fractions, microseconds
                 -> too complex, left undone? wrong -> both closed forms? the same function or not, microseconds
                 -> math-verify in a killable worker

The gold is a number (`42`, `-1/2`, `42%`) or a LaTeX expression without \boxed{}. A number question wants a number: by default
an unevaluated `6 \times 7`, which may be an echo of the question, is wrong where math-verify would call it equal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from artifacts.records import Generated, Outcome, Prompt
from tasks.rewards.base import ProcessReward, Verdict, infra, right, wrong
from tasks.rewards.exact_number import ExactNumber, exact_number, is_undone, is_unevaluated, leading_number, plain, too_complex
from tasks.rewards.final_answer import answer_tail, find_expression, find_number, fold
from tasks.rewards.identity import same_function
from tasks.rewards.verify_worker import VerifyWorker, text_at_fault

RECYCLE_CALLS = 10_000  # a fresh worker costs seconds: it reads everything for the first time
REHEARSED = (r"\frac{x}{2}", r"\left[-1, \sqrt{3}\right)", r"\{1, 2\}", "(1, 2, 3)", "y = 3x + 1", r"2 + \sin(3x)", "x^2y - e^{2x}")


class MathAnswerConfig(BaseModel):
    """Compare the final answer with a number or a LaTeX expression."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["math_answer"] = Field(default="math_answer", description="Chooses the mathematics reward.")
    timeout_s: float = Field(default=1.0, gt=0, le=60, description="Wall seconds that the symbolic check of one answer may take.")
    unevaluated: Literal["wrong", "verify"] = Field(
        default="wrong",
        description="An answer that still holds an operation where the gold is a number, or an integral, sum, product, limit, "
        "determinant or factorial where the gold has none, is wrong, or is checked symbolically.",
    )


class MathAnswer(ProcessReward):
    """Scores against `Prompt.gold`; the worker process starts with the first answer that needs it, or with `warm`."""

    name = "math_answer"

    def __init__(self, config: MathAnswerConfig) -> None:
        self.num_verified = 0  # answers that math-verify was asked about
        self._unevaluated_is_wrong = config.unevaluated == "wrong"
        self._worker = VerifyWorker(
            "tasks.rewards.equivalence:compare",
            timeout_s=config.timeout_s,
            recycle_calls=RECYCLE_CALLS,
            rehearsals=[(form, form) for form in REHEARSED],
        )
        super().__init__(self._worker)

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """1 if the final answer equals the gold, else 0; INFRA if the gold is no answer."""
        return self.judge(prompt.gold, generated.text)

    def check_gold(self, gold: str) -> None:
        """ValueError if nothing can ever be equal to this gold: to be called when a data set is read."""
        verdict = self.judge(gold, f"\\boxed{{{gold}}}")
        if verdict.outcome is not Outcome.OK:
            raise ValueError(
                f"a gold must be a number or a LaTeX expression that equals itself, got {gold!r} ({verdict.detail}); "
                "repair the row or drop it"
            )

    def judge(self, gold: str, text: str) -> Verdict:
        """The verdict on a response's text."""
        wanted_text, wanted = read_gold(gold)
        tail = answer_tail(text)
        found = find_number(tail) if wanted else find_expression(tail)
        if found is None or not (answer := plain(found.text)):
            return wrong("no_answer")
        if wanted is None:
            return self._judge_expression(wanted_text, answer)
        given = exact_number(answer) if found.boxed else leading_number(answer)
        if given is not None:
            return right("exact") if given == wanted else wrong("unequal")
        return self._judge_expression(wanted_text, answer) if found.boxed else wrong("not_a_number")

    def _judge_expression(self, gold: str, answer: str) -> Verdict:
        if too_complex(answer):
            return wrong("too_complex")
        if not answer.isprintable():
            return wrong("unprintable")
        if exact_number(gold) is not None and (rejected := self._reject_for_number(gold, answer)):
            return wrong(rejected)
        if self._unevaluated_is_wrong and is_undone(answer) and not is_undone(gold):
            return wrong("unevaluated")
        if (same := same_function(gold, answer)) is not None:
            return right("identical") if same else wrong("unequal")
        return self._verify(gold, answer)

    def _reject_for_number(self, gold: str, answer: str) -> str:
        """Why `answer` cannot be the number `gold`, or an empty string: the cheap reasons, before math-verify is asked."""
        if not any(character in "0123456789" for character in answer):
            return "not_a_number"
        if ("%" in answer) != ("%" in gold):
            return "percent"
        return "unevaluated" if self._unevaluated_is_wrong and is_unevaluated(answer) else ""

    def _verify(self, gold: str, answer: str) -> Verdict:
        if not gold:
            return infra("bad_gold")
        self.num_verified += 1
        reply = self._worker.call(gold, answer)
        if reply.kind != "value":
            return text_at_fault(reply) or wrong("verify_crash")
        if reply.value == "bad_gold":
            return infra("bad_gold")
        return right("verified") if reply.value == "equal" else wrong("unequal")


@lru_cache(maxsize=4096)
def read_gold(gold: str) -> tuple[str, ExactNumber | None]:
    """A gold in plain form, and its value if it is a number. Golds repeat for every response of a group."""
    text = plain(fold(gold))
    return text, exact_number(text)
