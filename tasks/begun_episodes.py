"""The episodes of a step that are being played, as its engines write them down: where that is, what
there is of them, and when it may go.

Written where the artifact root is a folder, which engines and coordinators share; at a URL nothing
is, and an episode that is broken off begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from artifacts import layout
from artifacts.records import Generated
from artifacts.turn_log import drop_turns, read_turns
from tasks.plan import StepPlan, store_of
from tasks.rounds.records import InFlight
from tasks.rounds.report import left_by_round
from tasks.run_context import RunContext
from tasks.sample_stream import is_attempt_at


def turns_folder(run: RunContext) -> Path | None:
    """Where the engines of a run write its episodes down; None where they do not."""
    store = run.open_store()
    is_written = bool(run.environments) and store.is_local
    return store.local_path(layout.TURNS) if is_written else None


def begun_episodes(plan: StepPlan) -> Callable[[], Mapping[str, Generated]]:
    """What there is now of the episodes that the attempts at this step began, and of those that the
    round before left to it, by response id."""
    folder = turns_folder(plan.run)
    if folder is None:
        return dict
    left = plan.adopted or _left_by(plan, plan.step - 1)
    left_in = {response.response_id: response.attempt for response in left}

    def read() -> Mapping[str, Generated]:
        adopted = read_turns(folder, lambda attempt: attempt in left_in.values())
        return {
            **{
                name: found for name, found in adopted.items() if left_in.get(name) == found.attempt
            },
            **read_turns(folder, lambda attempt: is_attempt_at(plan, attempt)),
        }

    return read


def drop_begun(plan: StepPlan) -> None:
    """The step is committed: nobody goes on with its episodes but those that it left to the next
    one."""
    folder = turns_folder(plan.run)
    if folder is not None:
        left = {response.attempt for response in _left_by(plan, plan.step)}
        drop_turns(
            folder,
            lambda attempt: attempt not in left and is_attempt_at(plan, attempt, or_before=True),
        )


def _left_by(plan: StepPlan, step: int) -> tuple[InFlight, ...]:
    """What the round of a step left to the next one."""
    return left_by_round(store_of(plan), step) if plan.overlaps else ()
