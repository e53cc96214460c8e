"""How old the weights were that sampled what a step trains, in versions behind those that it
trains. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from artifacts.records import Generated, Group, sampled_versions


def staleness_figures(step: int, groups: Iterable[Group], *, recomputes: bool) -> dict[str, float]:
    """The metrics of the groups that a step trains; a response counts by its oldest sampled token.
    recomputes: whether engines compute again what runs when newer weights are loaded."""
    responses = [response.generated for group in groups for response in group.responses]
    lags = [lag for response in responses if (lag := lag_of(response, step)) is not None]
    num_mixed = sum(len(sampled_versions(response)) > 1 for response in responses)
    return {
        "lag/mean_versions": sum(lags) / max(1, len(lags)),
        "lag/max_versions": float(max(lags, default=0)),
        "lag/mixed_fraction": num_mixed / max(1, len(responses)),
        "lag/recomputed_tokens": float(sum(map(_recomputed_tokens, responses)) * recomputes),
    }


def lag_of(response: Generated, step: int) -> int | None:
    """How far its oldest sampled token is behind the weights that the step trains; None without
    one."""
    versions = [span.version for span in sampled_versions(response)]
    return step - 1 - min(versions) if versions else None


def _recomputed_tokens(response: Generated) -> int:
    """Sampled tokens of a response that were computed again because newer weights were loaded, once
    for each load."""
    return sum(accumulate(span.num_tokens for span in sampled_versions(response)[:-1]))
