"""Runs the tests of learner and engine on the device, file by file, and tells how many passed."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from research.gpu.figures import Figure, not_measured

ROOT = Path(__file__).parents[2]
ENGINE = "tests/engine"
FIRST = ("test_vllm_engine.py", "test_vllm_draws.py", "test_load_while_running.py")  # of the engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    failed = 0
    for suite in suites(options.device):
        # warnings of other builds of vLLM and torch are not what is asked here
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        done = subprocess.run(
            [*command, "-W", "default", f"--basetemp={options.out}/{Path(suite).stem}", suite],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}/tests/unit"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(done.stdout[-6000:], flush=True)
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", _last(done))}
        num_failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
        if counts.keys() <= {"skipped", "warnings"}:
            not_measured(suite, "its tests are skipped on this device")
            continue
        Figure(name=f"{suite}: failed", value=num_failed, at_most=0).print()
        Figure(name=f"{suite}: passed", value=counts.get("passed", 0)).print()
        failed += done.returncode not in (0, 1, 5)  # pytest: fine, some failed, none collected
    return int(failed > 0)


def suites(device: str) -> list[str]:
    """All files of tests of the device, the most valuable first; few of them on cores, where they
    are tests as any other."""
    if device == "cpu":
        return ["tests/gpu", f"{ENGINE}/test_token_reports.py"]
    every = sorted(path.name for path in (ROOT / ENGINE).glob("test_*.py"))
    return ["tests/gpu", *(f"{ENGINE}/{name}" for name in dict.fromkeys((*FIRST, *every)))]


def _last(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that pytest printed: its counts."""
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return lines[-1] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
