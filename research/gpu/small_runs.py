"""A tiny run on the device: twice with one seed, then killed and resumed. All three must train the
same weights."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from artifacts import layout
from research.gpu.figures import Figure
from research.gpu.runs import FinishedRun, demo, device_settings, finish, play, play_until, read

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
    steps_s = statistics.median(step["time/orchestration_s"] for step in first.metrics)
    Figure(name="orchestration of a step", value=steps_s, unit="s", at_most=0.3).print()
    again = play(options.out, "again", *settings, preset="tiny-sync")
    _compare("steps that differ between two runs of one seed", first, again)
    command = demo(options.out, "killed", *settings, preset="tiny-sync")
    play_until(command, options.out / "killed" / layout.step_file(layout.STEPS, KILLED_AFTER))
    resume = [*command[:4], "--root", str(options.out), "--prefect-port", "0"]
    finish([*resume, "--resume", "killed"])
    _compare("steps that differ after a kill", first, read(options.out / "killed", 0.0))
    return 0


def _compare(name: str, first: FinishedRun, second: FinishedRun) -> None:
    """Print how many steps of the second run have other weights than the first, or none."""
    same = [ours == theirs for ours, theirs in zip(first.digests, second.digests, strict=False)]
    Figure(name=name, value=len(first.digests) - sum(same), at_most=0).print()


if __name__ == "__main__":
    sys.exit(main())
