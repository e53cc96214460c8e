"""What a run's last step says of its seeding window, in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def seeding_summary(steps: Sequence[Mapping[str, float]]) -> str:
    """For how long the own engines generated in the last of these steps, and how many elastic
    workers are worth holding; empty of a run that does not seed. steps: their figures."""
    figures = steps[-1] if steps else {}
    own_s = figures.get("seeding/own_s")
    if own_s is None:
        return ""
    told = f"seeding: own engines generated for {own_s:.1f} s, {_how_it_ended(figures)}"
    worth = figures.get("seeding/elastic_workers_worth_holding")
    return told if worth is None else f"{told}; {worth:.1f} elastic workers worth holding"


def _how_it_ended(figures: Mapping[str, float]) -> str:
    if not figures["seeding/closed"]:
        return "to the end of the round"
    if figures["seeding/closed_early"]:
        return "until they had nothing left to do"
    return f"until their window of {figures['seeding/window_s']:.1f} s was over"
