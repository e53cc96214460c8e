"""Small simulated runs."""

from __future__ import annotations

from typing import Any

from tasks.engines.simulation.score_feed import SimulatedRewardConfig
from tasks.engines.simulation.writers import LengthModel
from tasks.scheduling.batch import BatchConfig
from tasks.scheduling.policies.sync import SyncConfig
from tasks.simulation.plain import PlainMachine, PlainWorkload
from tasks.simulation.steps import SimulatedRun

MACHINE = PlainMachine(
    num_devices=4,
    devices_per_host=4,
    device_tokens=12_000,
    weights_tokens=2_000,
    updating_s=3.0,
    publishing_s=2.0,
    rebuilding_s=5.0,
    freeing_s=0.5,
)
WORK = PlainWorkload(
    longest_tokens=2_000,
    num_prompt_tokens=50,
    names=("a", "b"),
    lengths=LengthModel(median_tokens=150, sigma=1.1),
)
AT_ONCE = SimulatedRewardConfig(median_s=0.0)  # verdicts that take no time
BATCH = BatchConfig(prompts_per_step=8, responses_per_prompt=4)


def make_run(**others: Any) -> SimulatedRun:  # Any: fields of SimulatedRun
    """Synchronous steps of 8 prompts x 4 responses on 4 devices, but for what is said."""
    given = {
        "machine": MACHINE,
        "work": WORK,
        "policy": SyncConfig(),
        "batch": BATCH,
        "num_steps": 3,
    }
    return SimulatedRun(**(given | others))
