"""What the RollPacker paper and its artifact run on what: models, caps, devices, batches.

From the paper's set-up: 16 hosts of 8 H800; Qwen2.5 7B, 14B and 32B with responses of at most 8k,
16k and 32k tokens on 16, 32 and 64 devices; 128 prompts of 8 responses a step; eta 1.25 on both; a
third each of mathematics (2 s a check), programs (30 s) and questions that a 7B model judges.
Parallel sizes are the paper's. Where it was not readable to us what a figure was run on, the
experiment says what ours is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DEVICE = "h800"  # in hosts of 8
ALL_TASKS = ("math", "code", "judge")
# those of the paper, ones that differ by little, ones that grow from step to step, or ones that are
# half as long for some steps, and then as they were
Lengths = Literal["published", "no_tail", "drifting", "jumping"]


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
    thinks: bool = False  # whether its responses are long ones
    lengths: Lengths = "published"


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
)
