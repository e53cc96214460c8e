"""Whether what is trained is as long as what was sampled: of a step, and of a run so far. Pure.

A policy that gives up what takes long is fast and trains short responses; the share of the mean
lengths, 1 without bias, says how much of its speed that is.
"""

from __future__ import annotations

from collections.abc import Mapping

from artifacts.records import Group
from tasks.rounds.report import RolloutReport

TOTALS = {  # counters of a run, and the figures of a step that add to them
    "tokens_learned": "length/trained_tokens",
    "responses_learned": "length/trained_responses",
    "tokens_decided": "length/sampled_tokens",
    "responses_decided": "length/sampled_responses",
}


def length_figures(rollout: RolloutReport, groups: tuple[Group, ...]) -> dict[str, float]:
    """The metrics of a step; `groups` are the trained ones, sampled is what its round decided."""
    lengths = [response.generated.num_sampled for group in groups for response in group.responses]
    figures = {
        "length/trained_tokens": sum(lengths),
        "length/trained_responses": len(lengths),
        "length/sampled_tokens": rollout.num_decided_tokens,
        "length/sampled_responses": rollout.num_decided_responses,
    }
    told = {name: float(count) for name, count in figures.items()}
    return told | _share("length/trained_share", [*figures.values()])


def lengths_so_far(totals: Mapping[str, int]) -> dict[str, float]:
    """The metric of a run with these totals."""
    return _share("length/trained_share_so_far", [totals.get(counter, 0) for counter in TOTALS])


def _share(name: str, counts: list[int]) -> dict[str, float]:
    """The mean trained length over the mean sampled one; nothing where there is none of either."""
    trained_tokens, num_trained, sampled_tokens, num_sampled = counts
    if not (num_trained and sampled_tokens):
        return {}
    return {name: trained_tokens / num_trained * num_sampled / sampled_tokens}
