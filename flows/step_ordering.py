"""A step among others that overlap it.

its round closes ──▶ closed: the next round begins
every step before it is committed ──▶ turn: it trains
an evaluation of the weights before it is over ──▶ it updates and publishes
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from flows.task_results import result_of
from tasks.rounds.report import RolloutReport
from tasks.run.sample_buffer import RoundAborted


class StepOrdering:
    """What one step and the loop over all steps tell each other, within the flow's process."""

    __slots__ = ("_telling", "closed", "evaluation", "held_s", "turn")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # the report of its round, or why there is none
        self.closed: asyncio.Future[RolloutReport] = loop.create_future()
        self.turn: asyncio.Future[bool] = loop.create_future()  # whether it may train
        # that needs the weights which the step replaces; known when its turn comes
        self.evaluation: asyncio.Future[None] | None = None
        self.held_s = 0.0  # that its update waited for the evaluation
        self._telling: asyncio.Task[None] | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Prefect takes a flow's parameters along to its tasks; none of them needs this one."""
        return type(None), ()

    async def may_train(self, rollout: Any) -> bool:  # Any: a Prefect future of the round's report
        """Wait for the step's turn, and say meanwhile when its round is closed. False when nothing
        is to be trained any more, or the round has failed."""
        self._telling = asyncio.create_task(self._tell(rollout))
        await asyncio.wait((self._telling, self.turn), return_when=asyncio.FIRST_COMPLETED)
        if not self.turn.done() and self.closed.exception() is not None:
            return False
        return await self.turn

    async def may_update(self) -> None:
        """Wait until nobody needs the weights that the step replaces. Raises RoundAborted when
        their evaluation failed: it is to be made again first."""
        if self.evaluation is None:
            return
        began_s = time.monotonic()
        await asyncio.wait((self.evaluation,))
        self.held_s = time.monotonic() - began_s
        if self.evaluation.cancelled() or self.evaluation.exception() is not None:
            raise RoundAborted("the evaluation of the weights before this step's failed")

    async def _tell(self, rollout: Any) -> None:  # Any: as above
        try:
            report = await result_of(rollout)
        except BaseException as error:
            self.closed.set_exception(error)
            self.closed.exception()  # whoever waits hears of it; nobody has to
        else:
            self.closed.set_result(report)
