"""What `rollflow compare` says of the costs of two runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.prices import gain

DOLLARS, SECONDS, TRAINED = "cost/dollars", "cost/added_s", "ledger/trained_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTotals:
    """The steps of a run that have a cost."""

    name: str  # of the run
    dollars: float
    seconds: float  # that these steps added to the run
    trained_tokens: float

    @property
    def is_known(self) -> bool:
        return min(self.dollars, self.seconds, self.trained_tokens) > 0


def cost_totals(name: str, metrics: Mapping[str, Mapping[int, float]]) -> CostTotals:
    """metrics: values by step, by name."""
    steps = metrics.get(DOLLARS, {}).keys()

    def total(metric: str) -> float:
        return sum(metrics.get(metric, {}).get(step, 0.0) for step in steps)

    return CostTotals(
        name=name, dollars=total(DOLLARS), seconds=total(SECONDS), trained_tokens=total(TRAINED)
    )


def cost_verdict(first: CostTotals, second: CostTotals) -> list[str]:
    """Both runs' cost of a trained token, and the gain of the second; nothing where no run has
    prices."""
    known = [run for run in (first, second) if run.is_known]
    lines = [
        f"{run.name}: {1e6 * run.dollars / run.trained_tokens:.4g} dollars a million trained"
        f" tokens, {run.trained_tokens / run.dollars:,.0f} tokens a dollar."
        for run in known
    ]
    if len(known) < 2:
        return lines
    throughput_ratio = _rate(second.trained_tokens, second) / _rate(first.trained_tokens, first)
    cost_ratio = _rate(second.dollars, second) / _rate(first.dollars, first)
    lines.append(
        f"{second.name} has R = {throughput_ratio:.3f} times the throughput of {first.name} at"
        f" 1 + N*c/C = {cost_ratio:.3f} times its dollars an hour: gain R/(1 + N*c/C) ="
        f" {gain(throughput_ratio, cost_ratio):.3f} in tokens per dollar."
    )
    return lines


def _rate(amount: float, run: CostTotals) -> float:
    return amount / run.seconds
