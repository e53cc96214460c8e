"""What the tasks of rounds return, waited for in threads of their own.

asyncio has four threads more than there are cores, and a wait takes one for as long as a round
lasts: on two cores a step and an evaluation beside it took all of them, and nobody replaced a lost
worker or drew a picture meanwhile.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

# as many as may wait: four for a step, two for an evaluation, one for each round that overlaps
THREADS = ThreadPoolExecutor(64, thread_name_prefix="results")


async def result_of(future: Any) -> Any:  # Any: a Prefect future, and what it holds
    """What a submitted task returns or raises."""
    run = copy_context().run  # Prefect keeps there which flow this is
    return await asyncio.get_running_loop().run_in_executor(THREADS, run, future.result)
