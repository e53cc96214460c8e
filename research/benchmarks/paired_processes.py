"""Two kinds of one measurement, each in a fresh process, in turns.

main of a benchmark ── in_pairs ─▶ itself with --kind KIND, a process each ─▶ tell ─▶ Result
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.cluster.deaths import manner

MARK = "RESULT "
ENDS_WITHIN_S = 1800.0  # a process

Result = Mapping[str, Any]  # Any: JSON values


def paired_parser(
    about: str | None, kinds: Sequence[str], new_tokens: int
) -> argparse.ArgumentParser:
    """The options that measurements of one engine share; about: the module's docstring."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("model", help="local model directory")
    parser.add_argument(
        "--cores",
        type=int,
        nargs="+",
        default=[0],
        help="cores that the measured process is pinned to",
    )
    parser.add_argument("--pairs", type=int, default=3, help="how often to measure both")
    parser.add_argument("--prompts", type=int, default=8, help="different prompts")
    parser.add_argument("--responses", type=int, default=8, help="responses per prompt")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=new_tokens)
    parser.add_argument("--kind", choices=kinds, help=argparse.SUPPRESS)
    return parser


def in_pairs(
    module: str, kinds: Sequence[str], num_pairs: int
) -> Iterator[dict[str, list[Result]]]:
    """All results so far by kind, after each pair; which goes first alternates. RuntimeError with
    the last words of a process that told nothing."""
    results: dict[str, list[Result]] = {kind: [] for kind in kinds}
    for pair in range(num_pairs):
        for kind in kinds if pair % 2 == 0 else kinds[::-1]:
            results[kind].append(_in_fresh_process(module, kind))
        yield results


def tell(result: Result) -> None:
    """What the process of one kind ends with."""
    print(MARK + json.dumps(result), flush=True)


def _in_fresh_process(module: str, kind: str) -> Result:
    command = [sys.executable, "-m", module, *sys.argv[1:], "--kind", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_WITHIN_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise RuntimeError(
            f"the process that measured {kind} {manner(done.returncode)}:\n{done.stderr[-3000:]}"
        )
    result: Result = json.loads(lines[0].removeprefix(MARK))
    return result
