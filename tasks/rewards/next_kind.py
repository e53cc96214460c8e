"""What a free reward worker turns to: the rule of the pool, and of its simulation. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def next_kind(
    backlog: Mapping[str, int], running: Mapping[str, int], num_workers: int
) -> str | None:
    """The kind that a free worker turns to, None if it may turn to none: of those with a backlog
    the one with the fewest workers.

    With `num_workers` at work only a kind that has none of them may still begin.
    """
    is_full = sum(running.values()) >= num_workers
    waiting = [kind for kind, count in backlog.items() if count and not (is_full and running[kind])]
    return min(waiting, key=lambda kind: (running[kind], -backlog[kind]), default=None)
