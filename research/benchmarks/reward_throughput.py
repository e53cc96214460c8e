"""How many answers a second does the mathematics reward judge, and is every verdict right?

    python -m research.benchmarks.reward_throughput --answers 10000

Ten thousand varied answers (`varied_answers`) through the reward as a run uses it: extraction, the
fast paths, math-verify in its worker process, the hard limit. One line in all and one for each
kind; it fails if a verdict is wrong, an answer hangs or a call crashes. CPU time is that of this
process and of all its workers, their starts included: on a busy machine the figure to trust.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from artifacts.records import Generated, Outcome, Prompt, Score
from research.benchmarks.varied_answers import VariedAnswer, varied_answers
from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

HANG_S = 30.0  # far beyond any time limit, the kill and the next worker's start included


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One answer and what became of it."""

    answer: VariedAnswer
    score: Score
    wall_s: float  # seconds
    asked: bool  # math-verify was

    @property
    def is_mistaken(self) -> bool:
        """Whether the verdict is wrong."""
        return self.score.reward != float(self.answer.is_right)

    @property
    def is_crash(self) -> bool:
        """Whether there is no verdict on the answer, or one for want of a worker."""
        return self.score.outcome is Outcome.INFRA or self.score.detail == "verify_crash"


def judge(reward: MathAnswer, answer: VariedAnswer) -> Judged:
    """Score one answer."""
    prompt = Prompt(prompt_id="0/0", domain="math", token_ids=(1,), gold=answer.gold, text="q")
    generated = Generated(
        prompt_id="0/0", index=0, token_ids=(), logprobs=(), versions=(), finish_reason="stop",
        text=answer.text, engine="engine-0",
        submitted_s=0.0, first_token_s=0.0, finished_s=0.0,
    )  # fmt: skip
    before, started_s = reward.num_verified, time.perf_counter()
    score = reward.score(prompt, generated)
    return Judged(
        answer=answer,
        score=score,
        wall_s=time.perf_counter() - started_s,
        asked=reward.num_verified > before,
    )


def line(name: str, judged: list[Judged]) -> str:
    """Figures of some answers."""
    taken_s = sorted(verdict.wall_s for verdict in judged)
    p50_ms, p99_ms, max_ms = (
        1e3 * taken_s[int(share * (len(taken_s) - 1))] for share in (0.50, 0.99, 1.0)
    )
    counts = f"answers={len(judged)} asked_math_verify={sum(verdict.asked for verdict in judged)}"
    timeouts = sum(verdict.score.outcome is Outcome.TIMEOUT for verdict in judged)
    faults = (
        f"wrong_verdicts={sum(verdict.is_mistaken for verdict in judged)}"
        f" hangs={sum(s > HANG_S for s in taken_s)}"
    )
    speed = (
        f"answers_per_s={len(taken_s) / sum(taken_s):.0f} p50_ms={p50_ms:.3f} p99_ms={p99_ms:.2f}"
        f" max_ms={max_ms:.0f}"
    )
    return (
        f"kind={name} {counts} {speed} timeouts={timeouts} {faults}"
        f" crashes={sum(verdict.is_crash for verdict in judged)}"
    )


def cpu_s() -> float:
    """User and system seconds of this process and of the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(answers: Iterable[VariedAnswer], timeout_s: float) -> list[Judged]:
    """Judge all answers with one reward, and print what they cost together."""
    reward = MathAnswer(MathAnswerConfig(timeout_s=timeout_s))
    started_s = time.perf_counter()
    reward.warm()
    reward.close()  # its CPU time is counted from here on only
    print(f"worker_start_s={time.perf_counter() - started_s:.2f}")
    cpu_before_s = cpu_s()
    reward.warm()
    try:
        judged = [judge(reward, answer) for answer in answers]
    finally:
        reward.close()
    each_ms = 1e3 * (cpu_s() - cpu_before_s) / len(judged)
    print(
        f"{line('all', judged)} cpu_ms_per_answer={each_ms:.2f}"
        f" answers_per_cpu_s={1e3 / each_ms:.0f}"
    )
    return judged


def main() -> None:
    """Judge, print and fail on the first kind of fault."""
    parser = argparse.ArgumentParser(
        description="Answers per second of the mathematics reward, by kind, and its verdicts."
    )
    parser.add_argument("--answers", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the answers")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=1.0,
        help="of one symbolic check; more on a busy machine",
    )
    arguments = parser.parse_args()
    if arguments.answers < 100:
        parser.error("fewer than 100 answers do not hold the hostile ones; raise --answers")
    judged = measure(varied_answers(arguments.seed, arguments.answers), arguments.timeout_s)
    by_kind: dict[str, list[Judged]] = defaultdict(list)
    for verdict in judged:
        by_kind[verdict.answer.kind].append(verdict)
    for kind, of_kind in sorted(by_kind.items()):
        print(line(kind, of_kind))
    faulty = [
        verdict
        for verdict in judged
        if verdict.is_mistaken or verdict.is_crash or verdict.wall_s > HANG_S
    ]
    for verdict in faulty[:20]:
        print(
            f"fault: gold={verdict.answer.gold!r} text={verdict.answer.text[-120:]!r}"
            f" wanted={verdict.answer.is_right} got={verdict.score.detail}"
        )
    if faulty:
        raise SystemExit(f"{len(faulty)} answers without the right verdict")


if __name__ == "__main__":
    main()
