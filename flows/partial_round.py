"""The round of a step, kept from the step's beginning on: a resume plays the round that was begun,
whatever it changes in the plan of later ones.

    plan_round ──▶ plans/00007.json ──▶ half played, killed ──▶ resumed ──▶ the same round

Evaluations keep none: who asks other held-out prompts asks them all anew.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from pydantic import TypeAdapter

from artifacts import layout
from artifacts.store import RESTORE, Store
from tasks.scheduling.events import RoundPlan
from tasks.scheduling.queue_state import QueueState

PLAN_SCHEMA_VERSION = 1
PLAN_AGAIN = f"{RESTORE}, or delete it if its round is not in rounds/: the round is planned again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRound:
    """A step's round."""

    before: QueueState  # where the prompts stood when it was planned
    plan: RoundPlan  # what it launches and brings home
    schema_version: int = PLAN_SCHEMA_VERSION  # of this record


_JSON = TypeAdapter(PartialRound)


def keep_round(store: Store, begun: PartialRound) -> PartialRound:
    """Keep the round as that of its step."""
    store.keep(layout.plan_file(begun.plan.step), _JSON.dump_json(begun, indent=1))
    return begun


def partial_round(
    store: Store,
    step: int,
    num_steps: int,
    unfit: Collection[int],
) -> PartialRound | None:
    """The kept round of a step; None if there is none, or if it was not closed and its plan cannot
    be followed: it asks rows that are unfit, or something new after the last step."""
    name = layout.plan_file(step)
    if not store.exists(name):
        return None
    begun = _read(store, name)
    asks_unfit = any(ref.row in unfit for ref in begun.plan.candidates)
    is_over = step > num_steps and not begun.plan.is_drain
    is_closed = store.exists(layout.round_file(step))
    return begun if is_closed or not (asks_unfit or is_over) else None


def _read(store: Store, name: str) -> PartialRound:
    found = store.parsed(name, _parsed, PLAN_AGAIN)
    if isinstance(found, PartialRound):
        return found
    raise ValueError(
        f"{store.url}/{name} must have schema version {PLAN_SCHEMA_VERSION}, got {found};"
        " resume it with the code that wrote it"
    )


def _parsed(data: bytes) -> object:
    """The round, or the schema version of one that other code wrote."""
    version = dict(json.loads(data)).get("schema_version")
    return _JSON.validate_json(data) if version == PLAN_SCHEMA_VERSION else version
