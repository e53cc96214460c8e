"""The room that probes get in an engine that is full of running responses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tasks.engines.vllm.llm_engine import make_room

BLOCK = 32


class Scheduler:
    """As much of vLLM's scheduler as makes room: running requests hold one block each."""

    def __init__(self, num_running: int, num_free: int, second_runner: bool) -> None:
        self.running = [*range(num_running)]
        self.preempted: list[int] = []
        self.max_num_running_reqs = 8
        self.use_v2_model_runner = second_runner
        blocks = SimpleNamespace(get_num_free_blocks=lambda: num_free + len(self.preempted))
        self.kv_cache_manager = SimpleNamespace(block_pool=blocks)

    def _preempt_request(self, request: int, now_s: float) -> None:
        self.preempted.append(request)


@pytest.mark.parametrize(
    ("num_running", "num_free", "second_runner", "preempted"),
    [
        (8, 9, False, []),  # the first runner drops requests that a step does not schedule
        (8, 9, True, [7, 6]),  # the second one keeps a slot for each
        (6, 9, True, []),
        (7, 9, True, [6]),
        (8, 1, False, [7]),
        (6, 0, True, [5, 4]),
    ],
)
def test_the_last_to_run_make_room_in_blocks_and_in_slots(
    num_running: int, num_free: int, second_runner: bool, preempted: list[int]
) -> None:
    scheduler = Scheduler(num_running, num_free, second_runner)
    make_room(scheduler, BLOCK, [(1,) * 8, (2,) * 8])
    assert scheduler.preempted == preempted
