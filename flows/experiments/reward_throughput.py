"""How many answers a second does the mathematics reward judge, on each of its two paths?

    python -m flows.experiments.reward_throughput --fast-answers 20000 --verified-answers 500

Prints one line per path. Left out: the cost of killing and restarting a worker, which is one start per answer that times out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from artifacts.records import Outcome
from tasks.rewards.math_answer import MathAnswer, MathAnswerConfig


def fast_answers(num_answers: int) -> Iterator[tuple[str, str]]:
    """Gold and response text in the manner of tiny-mix: a chain of sums and a number."""
    for number in range(num_answers):
        yield (
            str(3 * number),
            f"{number} + {number} = {2 * number}\n{2 * number} + {number} = {3 * number}\nAnswer: {3 * number}",
        )


def verified_answers(num_answers: int) -> Iterator[tuple[str, str]]:
    """Gold and response text that need algebra, all different."""
    for number in range(num_answers):
        yield f"{number}x + \\frac{{{number}}}{{7}}", f"So \\boxed{{\\frac{{{number}}}{{7}} + {number}x}}."


def measure(path: str, reward: MathAnswer, answers: list[tuple[str, str]]) -> str:
    """One line: answers per second and the slowest answers. All answers are right; a wrong one is counted and shown."""
    taken_s: list[float] = []
    num_right = 0
    for gold, text in answers:
        started_s = time.perf_counter()
        num_right += reward.judge(gold, text).outcome is Outcome.OK
        taken_s.append(time.perf_counter() - started_s)
    ordered = sorted(taken_s)
    p50_us, p99_us = (1e6 * ordered[int(share * (len(ordered) - 1))] for share in (0.50, 0.99))
    rate = len(ordered) / sum(ordered)
    return f"path={path} answers={len(ordered)} right={num_right} answers_per_s={rate:.0f} p50_us={p50_us:.1f} p99_us={p99_us:.1f}"


def main() -> None:
    """Run both paths."""
    parser = argparse.ArgumentParser(description="Answers per second of the mathematics reward, by path.")
    parser.add_argument("--fast-answers", type=int, default=20_000, help="number against number, in this process")
    parser.add_argument("--verified-answers", type=int, default=500, help="expressions, in a math-verify worker")
    arguments = parser.parse_args()
    if min(arguments.fast_answers, arguments.verified_answers) < 1:
        parser.error("each path needs at least 1 answer; raise --fast-answers and --verified-answers")
    reward = MathAnswer(MathAnswerConfig(timeout_s=5.0))
    started_s = time.perf_counter()
    reward.warm()
    print(f"worker_start_s={time.perf_counter() - started_s:.2f}")
    try:
        print(measure("exact", reward, list(fast_answers(arguments.fast_answers))))
        print(measure("math-verify", reward, list(verified_answers(arguments.verified_answers))))
    finally:
        reward.close()


if __name__ == "__main__":
    main()
