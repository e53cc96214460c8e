"""A tiny run on the device, and one with its seed that is killed and resumed: both must train the
same weights, before the kill and after it."""

from __future__ import annotations

import argparse
import sys
from itertools import zip_longest
from pathlib import Path

from artifacts import layout
from research.gpu.figures import Figure
from research.gpu.runs import (
    demo,
    device_settings,
    finish,
    orchestration,
    play,
    play_until,
    read,
)

NUM_STEPS = 4
KILLED_AFTER = 2  # committed steps
SETTINGS = (
    f"num_steps={NUM_STEPS}",
    "batch.prompts_per_step=8",
    "evaluation.num_prompts=4",
    "keep.checkpoint_every_steps=2",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = (*SETTINGS, *device_settings(options.device, gpu_share=0.2))
    first = play(options.out, "first", *settings, preset="tiny-sync")
    bound_s = 45.0 if options.device == "cuda" else None
    Figure(
        name="from the command to the first token", value=first.first_token_s, unit="s",
        at_most=bound_s,
    ).print()  # fmt: skip
    orchestration(first, options.device).print()
    command = demo(options.out, "killed", *settings, preset="tiny-sync")
    play_until(command, options.out / "killed" / layout.step_file(layout.STEPS, KILLED_AFTER))
    resume = [*command[:4], "--root", str(options.out), "--prefect-port", "0"]
    finish([*resume, "--resume", "killed"])
    killed = read(options.out / "killed", 0.0)
    steps = [*zip_longest(first.digests, killed.digests)]  # None: a step is missing
    for name, span in (
        ("steps that differ between two runs of one seed", steps[:KILLED_AFTER]),
        ("steps that differ after a kill", steps[KILLED_AFTER:]),
    ):
        Figure(name=name, value=sum(ours != theirs for ours, theirs in span), at_most=0).print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
