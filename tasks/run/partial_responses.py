"""What there is of responses of a step that are not over: where engines and coordinators write it
down, what an attempt at the step finds of it, and when it may go.

    engines ─▶ turns/   turns of episodes      ┐
    coordinator ─▶ tokens/   of other responses┴─▶ begun_responses ─▶ the next attempt goes on

Written where the artifact root is a folder, which engines and coordinators share; at a URL nothing
is, and what is broken off begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from artifacts import layout
from artifacts.attempt_log import TokenLog, drop_attempts, read_tokens, read_turns
from artifacts.new_tokens import NewTokens
from artifacts.records import Generated
from tasks.rounds.records import InFlight
from tasks.rounds.report import left_by_round
from tasks.run.plan import StepPlan, store_of
from tasks.run.run_context import RunContext
from tasks.run.sample_stream import is_attempt_at


def turns_folder(run: RunContext) -> Path | None:
    """Where the engines of a run write its episodes down; None where they do not."""
    return _folder(run, layout.TURNS) if run.environments else None


@contextmanager
def written_tokens(run: RunContext) -> Iterator[Callable[[Sequence[NewTokens]], None]]:
    """Writes down what engines tell a coordinator of the run, for as long as the block."""
    folder = _tokens_folder(run)
    if folder is None:
        yield lambda told: None
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


def partial_responses(plan: StepPlan) -> Callable[[], Awaitable[Mapping[str, Generated]]]:
    """What there is now of the responses that the attempts at this step began, and of those that
    the round before left to it, by response id; read in a thread, because the round goes on."""
    turns, tokens = turns_folder(plan.run), _tokens_folder(plan.run)
    if turns is None and tokens is None:
        return _nothing
    left = plan.adopted or _left_by(plan, plan.step - 1)
    left_in = {response.response_id: response.attempt for response in left}

    def of_attempts(is_meant: Callable[[int], bool]) -> Mapping[str, Generated]:
        told = read_tokens(tokens, is_meant) if tokens is not None else {}
        return {**told, **(read_turns(turns, is_meant) if turns is not None else {})}

    def found() -> Mapping[str, Generated]:
        adopted = of_attempts(lambda attempt: attempt in left_in.values())
        return {
            **{
                name: found for name, found in adopted.items() if left_in.get(name) == found.attempt
            },
            **of_attempts(lambda attempt: is_attempt_at(plan, attempt)),
        }

    async def read() -> Mapping[str, Generated]:
        return await asyncio.to_thread(found)

    return read


async def _nothing() -> Mapping[str, Generated]:
    return {}


def drop_partial(plan: StepPlan) -> None:
    """The step is committed: nobody goes on with its responses but those that it left to the next
    one."""
    folders = [folder for folder in (turns_folder(plan.run), _tokens_folder(plan.run)) if folder]
    left = {response.attempt for response in _left_by(plan, plan.step)} if folders else set()
    for folder in folders:
        drop_attempts(
            folder,
            lambda attempt: attempt not in left and is_attempt_at(plan, attempt, or_before=True),
        )


def _left_by(plan: StepPlan, step: int) -> tuple[InFlight, ...]:
    """What the round of a step left to the next one."""
    return left_by_round(store_of(plan), step) if plan.overlaps else ()
