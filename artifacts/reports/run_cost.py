"""What a run has cost so far, from the figures of its committed steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from artifacts.prices import PriceConfig
from artifacts.reports.holding import IDLE, LENT_USES, USES

TRAINED, SECONDS = "ledger/trained_tokens", "cost/added_s"
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Dollars, seconds and tokens of the steps of a run whose devices have prices."""

    num_steps: int  # steps that were counted
    seconds: float  # that these steps added to the run
    trained_tokens: float  # response tokens that they trained
    dollars: Mapping[str, float]  # by price class
    # device seconds by price class and use; empty of a run whose steps overlap
    used_s: Mapping[str, Mapping[str, float]]

    @property
    def total_dollars(self) -> float:
        return sum(self.dollars.values())

    @property
    def tokens_per_dollar(self) -> float:
        """Trained tokens; 0 where nothing was paid."""
        return self.trained_tokens / self.total_dollars if self.total_dollars else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens a second, all devices together."""
        return self.trained_tokens / self.seconds if self.seconds else 0.0

    @property
    def dollars_per_hour(self) -> float:
        return 3600 * self.total_dollars / self.seconds if self.seconds else 0.0

    @property
    def headline(self) -> str:
        """The cost in a sentence."""
        return (
            f"{self.total_dollars:.2f} dollars ({self.total_dollars / self.num_steps:.3g} a step),"
            f" {self.tokens_per_dollar:,.0f} trained tokens a dollar,"
            f" {self.tokens_per_s:,.0f} a second over all devices."
        )

    @property
    def rows(self) -> list[tuple[str, float, float]]:
        """(what was held, its device seconds, its share of all), in the order of the uses."""
        total_s = sum(sum(uses.values()) for uses in self.used_s.values())
        return [
            (f"{name}, {use}", seconds, seconds / total_s if total_s else 0.0)
            for name, uses in self.used_s.items()
            for use, seconds in uses.items()
        ]


def run_cost(steps: Sequence[Figures], prices: PriceConfig) -> RunCost | None:
    """The cost of these steps; None where nothing has a price, or no step was counted."""
    counted = [figures for figures in steps if "cost/dollars" in figures]
    if not (prices.are_set and counted):
        return None
    uses = {name: _used(counted, name) for name in prices.classes}
    dollars = {name: _sum(counted, f"cost/{name}_dollars") for name in prices.classes}
    return RunCost(
        num_steps=len(counted),
        seconds=_sum(counted, SECONDS),
        trained_tokens=_sum(counted, TRAINED),
        dollars={name: spent for name, spent in dollars.items() if spent},
        used_s={name: seconds for name, seconds in uses.items() if any(seconds.values())},
    )


def _used(steps: Sequence[Figures], name: str) -> dict[str, float]:
    """Device seconds of a class by use; of what only lent devices are held for where there were
    any."""
    seconds = {use: _sum(steps, f"cost/{name}_{use}_s") for use in (*USES, *LENT_USES, IDLE)}
    return {use: used_s for use, used_s in seconds.items() if used_s or use not in LENT_USES}


def _sum(steps: Iterable[Figures], name: str) -> float:
    return sum(figures.get(name, 0.0) for figures in steps)
