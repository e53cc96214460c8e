"""What the RollPacker paper and its artifact run on what: models, caps, devices, batches, tasks.

From the paper's set-up: 16 hosts of 8 H800; Qwen2.5 7B, 14B and 32B with responses of at most 8k,
16k and 32k tokens on 16, 32 and 64 devices; 128 prompts of 8 responses a step; eta 1.25 on both; a
third each of mathematics (2 s a check), programs (30 s) and questions that a 7B model judges.
Parallel sizes are the paper's. Where the paper does not say what a figure was run on, the
experiment says what ours is. The lengths of a model that thinks before it answers (Qwen3) are
those that `flash` assumes for it: a median of 9k tokens, sigma 0.8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from research.paper.variants import PaperVariant
from tasks.rewards.programs.adaptive_timeout import AdaptiveTimeoutConfig
from tasks.simulation.length_law import LONGEST_SCORE, P75_SCORE, LengthLaw
from tasks.simulation.reward_queue import JudgeTimes, ProgramTimes, RewardWorkers
from tasks.simulation.workloads import CODE, JUDGE, LONGEST_PROMPT, MATH, Domain, Workload, mixed

DEVICE = "h800"  # in hosts of 8
ALL_TASKS = ("math", "code", "judge")
FIXED_S = 30.0  # seconds that every program has where limits do not adapt
RESERVED_SHARE = 0.25  # of the devices are a judge's own, in baselines
PROGRAMS_PER_DEVICE = 4  # reward processes
BESIDE_SHARE = 0.2  # of a device's arithmetic that a judge beside an engine gets
# of the time in which a judge on a device of its own computes: Figure 7b. In the artifact it scores
# one answer after the other, each in a pass of its own, between which the device waits
ALONE_SHARE = 0.226
THINKING_TOKENS, THINKING_SIGMA = 9000.0, 0.8
DOMAINS = {domain.name: domain for domain in (MATH, CODE, JUDGE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """A model, what it answers, and the devices that it has."""

    model: str  # as the table of models has it
    cap_tokens: int  # of a response
    num_devices: int
    engine_size: int  # devices of a rollout replica
    train_sizes: tuple[int, int, int]  # tensor, pipeline and context parallel
    prompts: int = 128  # of a step, P0
    responses: int = 8  # of a prompt, R0
    tasks: tuple[str, ...] = ALL_TASKS  # in equal shares
    thinks: bool = False  # before it answers, so that its responses are long
    num_logprob_models: int = 2  # asked for log-probabilities: the old policy, the reference

    @property
    def batch_positions(self) -> int:
        """Positions of a step's batch, every response padded to the bounds."""
        return self.prompts * self.responses * (LONGEST_PROMPT + self.cap_tokens)


K = 1024
BY_MODEL: Mapping[str, SetUp] = {
    "7B": SetUp(
        model="qwen2.5-7b",
        cap_tokens=8 * K,
        num_devices=16,
        engine_size=1,
        train_sizes=(2, 1, 1),
    ),
    "14B": SetUp(
        model="qwen2.5-14b",
        cap_tokens=16 * K,
        num_devices=32,
        engine_size=2,
        train_sizes=(2, 2, 2),
    ),
    "32B": SetUp(
        model="qwen2.5-32b",
        cap_tokens=32 * K,
        num_devices=64,
        engine_size=2,
        train_sizes=(4, 1, 4),
    ),
}
BY_CAP: Mapping[str, SetUp] = {f"{set_up.cap_tokens // K}k": set_up for set_up in BY_MODEL.values()}
# figure 6: one host; its batch of 128 is taken as prompts, its questions as mathematics
PREEMPTED = SetUp(
    model="qwen3-8b",
    cap_tokens=32 * K,
    num_devices=8,
    engine_size=1,
    train_sizes=(2, 1, 1),
    tasks=("math",),
    thinks=True,
)
# table 3, of the artifact: one host
STREAMED = SetUp(
    model="qwen2.5-7b",
    cap_tokens=4 * K,
    num_devices=8,
    engine_size=1,
    train_sizes=(2, 2, 1),
    prompts=64,
    responses=4,
    tasks=("math",),
    num_logprob_models=0,  # it has no reference and skips the old log-probabilities
)


def work_of(set_up: SetUp, variant: PaperVariant) -> Workload:
    """The workload of a set-up, scored as a variant scores it."""
    num_reserved = reserved_devices(set_up, variant)
    parts = (_domain(DOMAINS[name], set_up, variant, num_reserved) for name in set_up.tasks)
    return Workload(
        name="+".join(set_up.tasks),
        longest_tokens=set_up.cap_tokens,
        parts=mixed(*parts),
        workers=RewardWorkers(
            num_workers=PROGRAMS_PER_DEVICE * set_up.num_devices,
            num_judges=num_reserved or set_up.num_devices,
            scores_rules_serially=variant.scores_last,
        ),
    )


def reserved_devices(set_up: SetUp, variant: PaperVariant) -> int:
    """The number of devices that only the judge uses."""
    is_judged = JUDGE.name in set_up.tasks and variant.judge == "resident"
    return round(RESERVED_SHARE * set_up.num_devices) if is_judged else 0


def _domain(domain: Domain, set_up: SetUp, variant: PaperVariant, num_reserved: int) -> Domain:
    times = domain.reward
    if isinstance(times, ProgramTimes) and not variant.adapts_timeouts:
        fixed = AdaptiveTimeoutConfig(floor_s=FIXED_S, ceiling_s=FIXED_S)
        times = replace(times, timeout=fixed)
    if isinstance(times, JudgeTimes):
        share = ALONE_SHARE if num_reserved else BESIDE_SHARE
        times = replace(times, placement=variant.judge, compute_share=share)
    lengths = domain.lengths
    if set_up.thinks:  # log-normal as a whole
        lengths = LengthLaw(
            median_tokens=THINKING_TOKENS,
            p75_tokens=THINKING_TOKENS * math.exp(THINKING_SIGMA * P75_SCORE),
            longest_ratio=math.exp(THINKING_SIGMA * LONGEST_SCORE),
        )
    return replace(domain, reward=times, lengths=lengths)
