r"""The mathematics rewards: `math_answer` pays 1 if the final answer equals the gold, and
`worked_answer` also pays for the worked lines before it.

    final answer -> both plain numbers? exact fractions, microseconds
                 -> too complex, or not evaluated? wrong
                 -> both of known forms? part by part, under a millisecond
                 -> math-verify in a killable worker, for golds that cannot be read otherwise

The gold is a number (`42`, `-1/2`, `42%`) or a LaTeX expression without \boxed{}. If the gold is a
number, the answer must be one, too: by default an unevaluated `6 \times 7`, which may only repeat
the question, is wrong, although math-verify would call it equal.

    gold "3 + 5 = 8 / 8 + 2 = 10 / 10", response "3 + 5 = 8 / Answer: 8"
    ─▶ the answer is wrong: 0; one of two lines is right: 1/2 ─▶ 0 + (1 - answer_share) / 2

Rewards for lines teach the steps towards answers that are mostly wrong. A gold of a single line is
scored as by `math_answer`, so that held-out questions can be scored by their answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Literal

from pydantic import Field

from artifacts.config_parts import FrozenConfig
from artifacts.fixed_fields import DerivedSeconds
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
    ComparisonRules,
    ExactNumber,
    amount,
    exact_number,
    is_undone,
    is_unevaluated,
    plain,
    same_number,
    too_complex,
)
from tasks.rewards.maths.final_answer import answer_tail, find_answer, fold, visible_text
from tasks.rewards.verify_worker import VerifyWorker, without_value

RECYCLE_CALLS = 10_000  # large, as a fresh worker costs seconds: its caches are empty
REHEARSED = (
    r"\frac{x}{2}",
    r"\left[-1, \sqrt{3}\right)",
    r"\{1, 2\}",
    "(1, 2, 3)",
    "y = 3x + 1",
    r"2 + \sin(3x)",
    "x^2y - e^{2x}",
)
_NAMED = re.compile(r"^\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z]\))?\s*=")
# Signs that an answer to an unreadable gold may contain although the gold lacks them. Any other is
# refused: math-verify ignores relations, and signs that it does not know.
_HARMLESS = re.compile(
    r"[A-Za-z0-9\s+\-*/^_(){}\[\].,|!']|\\(?:[,;:! {}]|(?:[dt]?frac|sqrt|cdot|times|left|right"
    r"|pi|e|ln|log|exp|infty|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|int|sum|prod|lim|binom|text"
    r"|mathrm|operatorname|gcd|lcm|partial|prime|quad|d|mathbb|[lc]?dots)(?![A-Za-z]))"
)
_PART = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
# Unusable golds: a missing value, and words of a sentence, which no answer would repeat exactly.
_MISSING = re.compile(r"nan|null|n/a|undefined", re.IGNORECASE)
_RESPONSE = re.compile(
    r"</?answer>|^(?:the )?(?:final )?(?:answer|ans|result|solution)\b|[a-z]\. [A-Z]"
    r"|(?:(?<!\\)\b[A-Za-z]{2,}[\s,]+){12}",
    re.IGNORECASE,
)


class MathAnswerConfig(FrozenConfig):
    """Compare the final answer with a number or a LaTeX expression."""

    kind: Literal["math_answer"] = Field(
        default="math_answer", description="Chooses the mathematics reward."
    )
    timeout_s: DerivedSeconds = 1.0  # processor seconds for the symbolic check of one answer
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

    def build_reward(self) -> Reward:
        """The reward of this configuration."""
        return MathAnswer(self)


class MathAnswer(ProcessReward):
    """Compares final answers with `Prompt.gold`; math-verify starts when first needed, or by
    `warm`."""

    name = "math_answer"

    def __init__(self, config: MathAnswerConfig) -> None:
        # a quarter of a second, which commands need not wait for that read settings alone
        from tasks.rewards.maths.same_answer import is_readable, same_answer

        self._same_answer, self._is_readable = same_answer, is_readable
        self.num_verified = 0  # answers that math-verify was asked about
        self._unevaluated_is_wrong = config.unevaluated == "wrong"
        self._rules = ComparisonRules(
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
        """Reward 1 if the final answer equals the gold, else 0; INFRA for an unreadable gold."""
        return self.judge(prompt.gold, generated.text)

    def check_gold(self, gold: str) -> None:
        """Check a gold when a data set is read. Raises ValueError if no answer can equal it."""
        verdict = self.judge(gold, f"\\boxed{{{stated_gold(gold)}}}")
        reason = why_unusable(stated_gold(gold)) or verdict.detail
        if verdict.outcome is not Outcome.OK or reason != verdict.detail:
            raise ValueError(
                f"a gold must be a number or a LaTeX expression that equals itself, got {gold!r}"
                f" ({reason}); repair the row or drop it"
            )

    def judge(self, gold: str, text: str) -> Verdict:
        """Compare a response's final answer with the gold; an answer that causes an error is
        wrong."""
        try:
            return self._judge(gold, text)
        except (RewardUnavailable, Interrupted):
            raise
        except Exception:  # the boundary of what a model wrote
            return wrong("unreadable")

    def _judge(self, gold: str, text: str) -> Verdict:
        wanted_text, wanted = read_gold(gold)
        found = find_answer(answer_tail(text))
        if found is None or not (answer := plain(found.bare)):
            return wrong("no_answer")
        if wanted is not None:
            given = exact_number(answer) if found.boxed else amount(answer)
            if given is not None:
                is_same = same_number(wanted, given, self._rules)
                return right("exact") if is_same else wrong("unequal")
        return self._judge_expression(wanted_text, answer)

    def _judge_expression(self, gold: str, answer: str) -> Verdict:
        """Compare an answer with a gold if at least one of them is no plain number."""
        if too_complex(answer):
            return wrong("too_complex")
        if not answer.isprintable():
            return wrong("unprintable")
        result = answer.rpartition("=")[2]
        if self._unevaluated_is_wrong and is_undone(result) and not is_undone(gold):
            return wrong("unevaluated")
        same = self._same_answer(gold, answer, self._rules)
        if same is not None:
            if same:
                return right("identical")
            if exact_number(gold) is not None:
                if not any(character in "0123456789" for character in answer):
                    return wrong("not_a_number")
                if self._unevaluated_is_wrong and is_unevaluated(answer):
                    return wrong("unevaluated")
            return wrong("unequal")
        if (self._is_readable(gold) and not is_undone(answer)) or says_more(gold, answer):
            return wrong("unreadable")
        # out of bounds, so floats cannot decide
        if self._is_readable(gold) and self._is_readable(answer):
            return wrong("undecided")
        return self._verify(gold, answer)

    def _verify(self, gold: str, answer: str) -> Verdict:
        """Have math-verify compare gold and answer, in the worker."""
        if not gold:
            return infra("bad_gold")
        self.num_verified += 1
        reply = self._worker.call(gold, answer)
        if reply.kind != "value":
            return without_value(reply)
        if reply.value == "bad_gold":  # an answer with the same text may still equal it
            is_gold = self._same_answer(gold, gold, self._rules)
            return wrong("unequal") if is_gold else infra("bad_gold")
        return right("verified") if reply.value == "equal" else wrong("unequal")


def says_more(gold: str, answer: str) -> bool:
    """True if an answer has signs that the gold lacks, but for those of known functions, or either
    has a double factorial, which math-verify reads as a factorial of a factorial."""
    stated = _NAMED.sub("", answer, count=1)
    signs = set(_PART.findall(stated)) - set(_PART.findall(gold))
    return "!!" in gold + answer or not all(map(_HARMLESS.fullmatch, signs))


def stated_gold(gold: str) -> str:
    """The answer in a gold: the text after `####`, as in GSM8K's solutions, else the whole gold."""
    return gold.rpartition("####")[2]


def why_unusable(gold: str) -> str:
    """Why a gold is unusable although its own text would equal it; empty if it is usable."""
    text = plain(fold(gold))
    if "\n" in gold.strip() and "\\begin" not in gold:
        return "it has several lines"
    if _MISSING.fullmatch(text):
        return "it is a missing value"
    try:
        value = json.loads(text.replace("'", '"'))
    except ValueError:
        value = None
    is_list = isinstance(value, list)
    is_interval = is_list and len(value) == 2 and set(map(type, value)) <= {int, float}
    if '"' in text or ((is_list or isinstance(value, dict)) and not is_interval):
        return "it is a list of JSON or in quotes"
    if text.endswith("=") or sum(map(text.count, "([{")) > sum(map(text.count, ")]}")):
        return "it ends too early"
    if _RESPONSE.search(text):
        return "it is a sentence or a response"
    return ""


@lru_cache(maxsize=4096)
def read_gold(gold: str) -> tuple[str, ExactNumber | None]:
    """A gold's plain text, and its value if it is a number; the responses of a group share it."""
    text = plain(fold(stated_gold(gold)))
    return text, exact_number(text)


class WorkedAnswerConfig(FrozenConfig):
    """Compare the answer with the gold's last line, the lines before it with the other lines."""

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

    def build_reward(self) -> Reward:
        """The reward of this configuration."""
        return WorkedAnswer(self)


class WorkedAnswer(MathAnswer):
    """Scores against a gold whose last line is the answer and whose other lines are its working."""

    name = "worked_answer"

    def __init__(self, config: WorkedAnswerConfig) -> None:
        super().__init__(config.answer)
        self._answer_share = config.answer_share

    def verdict(self, prompt: Prompt, generated: Generated) -> Verdict:
        """Reward between 0 and 1; OK if the answer is right, INFRA for an unreadable last line."""
        *working, answer = prompt.gold.split("\n")
        verdict = self.judge(answer, generated.text)
        if not working or verdict.reward is None:
            return verdict
        lines_share = (1 - self._answer_share) * worked_share(working, generated.text)
        return replace(verdict, reward=self._answer_share * verdict.reward + lines_share)

    def check_gold(self, gold: str) -> None:
        """Check a gold's last line, the answer. Raises ValueError if no answer can equal it."""
        super().check_gold(gold.split("\n")[-1])


def worked_share(working: Sequence[str], text: str) -> float:
    """Number of leading lines that response and working share, divided by the lines of the longer
    one. In a response, blank lines and those from the stated answer on do not count."""
    wanted, written = (
        [" ".join(line.split()) for line in lines]
        for lines in (working, visible_text(text).split("\n"))
    )
    given = [*takewhile(lambda line: find_answer(line) is None, filter(None, written))]
    pairs = zip(wanted, given, strict=False)
    num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return num_same / max(len(working), len(given))
