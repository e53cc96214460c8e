"""What a set-up's model is asked, and how its answers are scored.

Where a model thinks before it answers (Qwen3), its lengths are those that `flash_setting` assumes
for it: a median of 9k tokens, sigma 0.8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from research.paper.setups import SetUp
from research.paper.variants import PaperVariant
from tasks.rewards.programs.adaptive_timeout import AdaptiveTimeoutConfig
from tasks.simulation.length_law import LONGEST_SCORE, P75_SCORE, LengthLaw
from tasks.simulation.reward_queue import RewardWorkers
from tasks.simulation.reward_times import JudgeTimes, ProgramTimes
from tasks.simulation.workloads import (
    CODE,
    GROWING,
    JUDGE,
    MATH,
    Domain,
    Drift,
    Jumps,
    Workload,
    mixed,
    without_tail,
)

FIXED_S = 30.0  # seconds that every program has where limits do not adapt
RESERVED_SHARE = 0.25  # of the devices are a judge's own, in baselines
PROGRAMS_PER_DEVICE = 4  # reward processes
BESIDE_SHARE = 0.2  # of a device's arithmetic that a judge beside an engine gets
THINKING_TOKENS, THINKING_SIGMA = 9000.0, 0.8
JUMPS = Jumps(times=0.5, every_steps=9)
DRIFTS: Mapping[str, Drift | Jumps] = {"drifting": GROWING, "jumping": JUMPS}
DOMAINS = {domain.name: domain for domain in (MATH, CODE, JUDGE)}


def work_of(set_up: SetUp, variant: PaperVariant) -> Workload:
    """The tasks of a set-up, scored as a variant does."""
    num_reserved = reserved_devices(set_up, variant)
    parts = (_domain(DOMAINS[name], set_up, variant, num_reserved) for name in set_up.tasks)
    return Workload(
        name="+".join(set_up.tasks),
        longest_tokens=set_up.cap_tokens,
        parts=mixed(*parts),
        drift=DRIFTS.get(set_up.lengths, Drift()),
        workers=RewardWorkers(
            num_workers=PROGRAMS_PER_DEVICE * set_up.num_devices,
            num_judges=num_reserved or set_up.num_devices,
        ),
    )


def reserved_devices(set_up: SetUp, variant: PaperVariant) -> int:
    """Devices that are the judge's own."""
    is_judged = JUDGE.name in set_up.tasks and variant.judge == "resident"
    return round(RESERVED_SHARE * set_up.num_devices) if is_judged else 0


def _domain(domain: Domain, set_up: SetUp, variant: PaperVariant, num_reserved: int) -> Domain:
    times = domain.reward
    if isinstance(times, ProgramTimes) and not variant.adapts_timeouts:
        fixed = AdaptiveTimeoutConfig(floor_s=FIXED_S, ceiling_s=FIXED_S)
        times = replace(times, timeout=fixed)
    if isinstance(times, JudgeTimes):
        share = 1.0 if num_reserved else BESIDE_SHARE
        times = replace(times, placement=variant.judge, compute_share=share)
    asked = without_tail(domain) if set_up.lengths == "no_tail" else domain
    lengths = thinking() if set_up.thinks else asked.lengths
    return replace(domain, reward=times, lengths=lengths)


def thinking() -> LengthLaw:
    """Log-normal as a whole."""
    return LengthLaw(
        median_tokens=THINKING_TOKENS,
        p75_tokens=THINKING_TOKENS * math.exp(THINKING_SIGMA * P75_SCORE),
        longest_ratio=math.exp(THINKING_SIGMA * LONGEST_SCORE),
    )
