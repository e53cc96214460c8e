"""Runs an order of real engines, and reads its figures: the flow's part of `counterparts`.

Order ─▶ python -m research.ablations.ablation ... ─▶ runs, ablation.md, ablation.png ─▶ figures
CourseOrder ─▶ python -m research.ablations.elastic_course ... ─▶ course.json ─▶ figures
"""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from research.ablations.ablation_figures import costs_of, speed_up, steps_of
from research.ablations.measured_run import measured
from research.paper.counterparts import POLYRL, CourseOrder, Order
from tasks.cluster.process_environment import python_path

LAST_WORDS = 20  # lines that an error repeats
STOP_S = 120.0  # how long its run, and that one's server, may take to stop
OF_THIS_FLOW = "PREFECT__"  # environment that is of this flow run, and no other's


async def perform(order: Order | CourseOrder, tell: Callable[[str], None]) -> dict[str, float]:
    """Its figures, once all of its runs are there. RuntimeError with its last words if it fails."""
    order.out.mkdir(parents=True, exist_ok=True)
    await run_command(order.command, tell)
    return course_figures(order) if isinstance(order, CourseOrder) else figures_of(order)


async def run_command(command: Sequence[str], tell: Callable[[str], None]) -> None:
    """To its end, every line told. When this is cancelled it is stopped, and its run with it."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_FLOW)
    }
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, env=environment | python_path()
    )
    assert process.stdout is not None, "it was asked for"
    words: deque[str] = deque(maxlen=LAST_WORDS)
    try:
        async for line in process.stdout:
            words.append(line.decode(errors="replace").rstrip())
            tell(words[-1])
        code = await process.wait()
    finally:
        await _stop(process)
    if code:
        raise RuntimeError(f"{' '.join(command[1:3])} ended with {code}: {' '.join(words)}")


def figures_of(order: Order) -> dict[str, float]:
    """Mean seconds of a step and of its rollout by variant, and how many times the groups of the
    first variant it trains in a second."""
    runs = measured(order.out, order.variants)
    first = costs_of(runs, order.variants[0], order.period)
    found: dict[str, float] = {}
    for variant in order.variants:
        name, steps = f"real/{order.comparison}/{variant}", steps_of(runs, variant)
        for figure in ("step_s", "rollout_s"):
            values = [step.metrics[f"time/{figure}"] for step in steps]
            found[f"{name}/{figure}"] = sum(values) / len(values)
        gain = speed_up(first, costs_of(runs, variant, order.period))
        if gain is not None:
            found[f"{name}/speed_up"] = gain.mean
    return found


def course_figures(order: CourseOrder) -> dict[str, float]:
    """Median seconds of a step with elastic workers and without, and what a reward differs by."""
    read = json.loads(order.figures.read_text())
    seconds, name = read["step_s"], f"real/{POLYRL}"
    return {
        f"{name}/elastic/step_s": seconds["with elastic workers"],
        f"{name}/static/step_s": seconds["static"],
        f"{name}/speed_up": seconds["static"] / seconds["with elastic workers"],
        f"{name}/reward_difference": read["reward_difference"],
    }


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()
