"""The recorded parts of a step's unfinished responses: where engines and coordinators write them,
which of them an attempt at the step finds, and when they are deleted.

These parts are written only if the artifact root is a folder, which engines and coordinators share.
At a URL nothing is written, and interrupted responses begin again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from artifacts import layout
from artifacts.attempt_log import TokenLog, drop_attempts, read_tokens, read_turns
from artifacts.new_tokens import NewTokens
from artifacts.records import Generated
from tasks.rounds.records import InFlight
from tasks.rounds.report import left_by_round
from tasks.run.run_context import RunContext, StepPlan, store_of
from tasks.run.sample_stream import is_attempt_at


def turns_folder(run: RunContext) -> Path | None:
    """Where a run's engines record turns of episodes, if it has any and its root is a folder."""
    return _folder(run, layout.TURNS) if run.environments else None


@contextmanager
def written_tokens(run: RunContext) -> Iterator[Callable[[Sequence[NewTokens]], None]]:
    """A function, valid within the block, that records the tokens which engines report. It records
    nothing in a run without reports, or whose artifact root is a URL."""
    folder = _tokens_folder(run)
    if folder is None:
        yield lambda new_tokens: None
        return
    log = TokenLog(folder)
    try:
        yield log.write
    finally:
        log.close()


def _tokens_folder(run: RunContext) -> Path | None:
    return _folder(run, layout.TOKENS) if run.engine.report_tokens else None


def _folder(run: RunContext, name: str) -> Path | None:
    store = run.open_store()
    return store.local_path(name) if store.is_local else None


async def partial_responses(plan: StepPlan) -> Mapping[str, Generated]:
    """The recorded parts of unfinished responses, by response id: of those that attempts at this
    step began, and of those that the round before left running."""
    if turns_folder(plan.run) is None and _tokens_folder(plan.run) is None:
        return {}
    return await asyncio.to_thread(_recorded, plan)


def _recorded(plan: StepPlan) -> Mapping[str, Generated]:
    turns, tokens = turns_folder(plan.run), _tokens_folder(plan.run)

    def of_attempts(is_meant: Callable[[int], bool]) -> dict[str, Generated]:
        reported = read_tokens(tokens, is_meant) if tokens is not None else {}
        return {**reported, **(read_turns(turns, is_meant) if turns is not None else {})}

    left = plan.adopted or _left_by(plan, plan.step - 1)
    left_in = {response.response_id: response.attempt for response in left}
    adopted = of_attempts(lambda attempt: attempt in left_in.values())
    adopted = {name: found for name, found in adopted.items() if left_in.get(name) == found.attempt}
    return adopted | of_attempts(lambda attempt: is_attempt_at(plan, attempt))


def drop_partial(plan: StepPlan) -> None:
    """Delete the recorded parts of the responses of a committed step and of earlier ones, except
    those that this step's round left running for the next one."""
    folders = [folder for folder in (turns_folder(plan.run), _tokens_folder(plan.run)) if folder]
    left = {response.attempt for response in _left_by(plan, plan.step)} if folders else set()
    for folder in folders:
        drop_attempts(
            folder,
            lambda attempt: attempt not in left and is_attempt_at(plan, attempt, or_before=True),
        )


def _left_by(plan: StepPlan, step: int) -> tuple[InFlight, ...]:
    """The responses that the round of a step left to the next one."""
    return left_by_round(store_of(plan), step) if plan.overlaps else ()
