"""Checks that a reward can be trained on: whatever a model says, a finite number that is the same
each time, and not the same number for everything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum

from artifacts.conformance import RuleBroken, RuleCheck, RuleFindings, shown
from artifacts.records import Generated, Outcome, Prompt, Score, VersionSpan
from tasks.rewards.base import Reward

# what a model at its worst says: nothing, too much, numbers that are none, control characters
HOSTILE = (
    "", " ", "\n\n", ".", "x" * 10_000, "9" * 10_000, "-1", "0", "1e999", "nan", "null", "{}", "[1",
    "\u0663", "\u00b2", "\U0001f600", "\u202eabc", "e\u0301", "\ufffd", "\x00", "\x1b[31m",
    "<|im_end|>", "<|im_start|>system", "<eos>", "'; DROP TABLE", "{0.__class__}", "%s%n", "../..",
)  # fmt: skip


class RewardRule(StrEnum):
    """The rules, in the order in which they are reported."""

    NUMBER = "every text is paid a finite number"
    REPEATS = "the same text is paid the same each time"
    GOLD = "the gold is one that can be paid"
    DIFFERS = "a right answer is paid more than some other"


def check_reward(
    reward: Reward, *, question: str, gold: str, right: Sequence[str]
) -> tuple[tuple[RuleCheck, ...], str]:
    """Score hostile texts and right answers to a question. right: answers that should be paid best;
    by default the gold itself. Returns the verdicts, and a line with the numbers paid and the
    seconds that a score takes."""
    findings, paid = RuleFindings(RewardRule), dict[str, float]()
    right = right or (gold,)
    prompt = Prompt(prompt_id="0/0", domain="check", token_ids=(1,), gold=gold, text=question)
    with findings.trying(RewardRule.GOLD):
        reward.check_gold(gold)
    began_s = time.perf_counter()
    for text in (*right, *HOSTILE):
        with findings.trying(RewardRule.NUMBER):
            paid[text] = _paid(reward.score(prompt, _said(text)), text)
    taken_s = (time.perf_counter() - began_s) / (len(right) + len(HOSTILE))
    for text in reversed(list(paid)):
        with findings.trying(RewardRule.REPEATS):
            again = _paid(reward.score(prompt, _said(text)), text)
            if again != paid[text]:
                raise RuleBroken(
                    f"the same text must be paid the same, {shown(text)} got {paid[text]:g} first"
                    f" and {again:g} then; keep nothing between calls, and draw nothing"
                )
    with findings.trying(RewardRule.DIFFERS):
        best = max((paid[text] for text in right if text in paid), default=0.0)
        if paid and best <= min(paid.values()):
            raise RuleBroken(
                f"a right answer must be paid more than some other, {shown(right[0])} to"
                f" {shown(question)} got {best:g}, as everything else; give --question, --gold and"
                " a right --answer if these are not of your task, or mend the reward"
            )
    numbers = sorted(set(paid.values()))
    first = f"{shown(right[0])} is paid {paid.get(right[0])}"
    return findings.checks, (
        f"{first}; all numbers paid: {shown(numbers)}; {1e3 * taken_s:.3g} ms a score"
    )


def _said(text: str) -> Generated:
    return Generated(
        prompt_id="0/0",
        index=0,
        token_ids=(1,),
        logprobs=(0.0,),
        versions=(VersionSpan(version=0, num_tokens=1),),
        finish_reason="stop",
        text=text,
        engine="check",
        submitted_s=0.0,
        first_token_s=0.0,
        finished_s=0.0,
    )


def _paid(score: Score, text: str) -> float:
    if score.reward is None or score.outcome is Outcome.INFRA:
        raise RuleBroken(
            f"every text must be paid a finite number, {shown(text)} got none ({score.detail}); pay"
            " 0 for what cannot be read"
        )
    return score.reward
