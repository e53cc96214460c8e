"""The cost of held devices: seconds by price class and use, for a step and for a whole run.

    Held (device, class, from, until) ─┐
    Span (device, kind, from, until) ──┴▶ seconds by class and use ─▶ dollars, tokens per dollar
    figures of committed steps ─▶ RunCost

At every moment a held device has exactly one use, so that the uses of a class sum to its held
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from artifacts.prices import PriceConfig
from artifacts.records import Span
from artifacts.reports.timeline import Interval, clipped, length, taken, union, within

IDLE = "idle"
# the kinds of spans of each use of a device; if a moment has two uses, the first counts
USES: Mapping[str, frozenset[str]] = {
    "training": frozenset({"train", "update"}),
    # a judge that scores a response generates, too
    "generating": frozenset({"rollout", "evaluate", "reward"}),
}
# further uses of an elastic worker's device. transferring: a weight version is sent to the worker
# and loaded into its engine. draining: after the notice that the worker leaves. starting: until the
# worker first held weights. lost: from its last sign of life until it was known to be gone
LENT_USES: Mapping[str, frozenset[str]] = {
    "transferring": frozenset({"transfer"}),
    "draining": frozenset({"drain"}),
    "starting": frozenset({"build"}),
    "lost": frozenset({"lost"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A device and the time for which it was paid: one record, however many processes used it."""

    device: str  # its name in the spans
    price_class: str
    start_s: float  # Unix seconds
    end_s: float  # Unix seconds
    is_lent: bool = False  # True for an elastic worker's device

    @property
    def uses(self) -> Mapping[str, frozenset[str]]:
        """The possible uses of the device, each with the kinds of its spans."""
        return {**USES, **LENT_USES} if self.is_lent else USES


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The interval of a run whose device time counts for one step."""

    start_s: float  # Unix seconds
    end_s: float  # Unix seconds

    @property
    def duration_s(self) -> float:
        return max(0.0, self.end_s - self.start_s)


def used_seconds(
    held: Iterable[Held], spans: Sequence[Span], window: Window
) -> dict[str, dict[str, float]]:
    """Device seconds within the window by price class, then by use, `IDLE` included. A moment with
    several uses counts for the first in `uses`."""
    seconds: dict[str, dict[str, float]] = {}
    for holding in held:
        of_class = seconds.setdefault(holding.price_class, {})
        left = _in_window(holding, window)
        for use, kinds in holding.uses.items():
            own = (span for span in spans if span.device == holding.device and span.kind in kinds)
            used_s, left = taken(left, clipped(own, window.start_s, window.end_s))
            of_class[use] = of_class.get(use, 0.0) + used_s
        of_class[IDLE] = of_class.get(IDLE, 0.0) + length(left)
    return seconds


def held_seconds(held: Iterable[Held], window: Window) -> dict[str, float]:
    """Device seconds within the window by price class."""
    seconds: dict[str, float] = {}
    for holding in held:
        before_s = seconds.get(holding.price_class, 0.0)
        seconds[holding.price_class] = before_s + length(_in_window(holding, window))
    return seconds


def cost_figures(
    held_s: Mapping[str, float], trained_tokens: float, window: Window, prices: PriceConfig
) -> dict[str, float]:
    """The cost of a step as metrics, by name; metrics in dollars only if prices are set. held_s:
    device seconds by price class. trained_tokens: the step's trained tokens alone, though tokens
    that were generated and not trained cost device seconds, too."""
    figures = {f"cost/{name}_worker_s": seconds for name, seconds in held_s.items()}
    figures["cost/added_s"] = window.duration_s
    if window.duration_s:
        figures["cost/throughput_all_devices"] = trained_tokens / window.duration_s
    if not prices.are_set:
        return figures
    dollars = {name: seconds * prices.dollars_per_s(name) for name, seconds in held_s.items()}
    figures |= {f"cost/{name}_dollars": spent for name, spent in dollars.items()}
    total = sum(dollars.values())
    figures["cost/dollars"] = total
    if total:
        figures["cost/tokens_per_dollar"] = trained_tokens / total
    return figures


def use_figures(used_s: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Device seconds by price class and use as metrics, by name."""
    return {
        f"cost/{name}_{use}_s": seconds
        for name, uses in used_s.items()
        for use, seconds in uses.items()
    }


def _in_window(holding: Held, window: Window) -> list[Interval]:
    return union(within([(holding.start_s, holding.end_s)], window.start_s, window.end_s))


TRAINED_TOKENS, ADDED_SECONDS = "ledger/trained_tokens", "cost/added_s"
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """Dollars, seconds and tokens of a run's steps, for a run whose devices have prices."""

    num_steps: int  # steps that were counted
    seconds: float  # that these steps added to the run
    trained_tokens: float  # response tokens that they trained
    dollars: Mapping[str, float]  # by price class
    # device seconds by price class and use; empty of a run whose steps overlap
    used_s: Mapping[str, Mapping[str, float]]

    @property
    def headline(self) -> str:
        """The cost in a sentence."""
        total, tokens = sum(self.dollars.values()), self.trained_tokens
        return (
            f"{total:.2f} dollars ({total / self.num_steps:.3g} a step),"
            f" {tokens / total if total else 0.0:,.0f} trained tokens a dollar,"
            f" {tokens / self.seconds if self.seconds else 0.0:,.0f} a second over all devices."
        )

    @property
    def rows(self) -> list[tuple[str, float, float]]:
        """(class and use, device seconds, share of all device seconds), in the order of uses."""
        total_s = sum(sum(uses.values()) for uses in self.used_s.values())
        return [
            (f"{name}, {use}", seconds, seconds / total_s if total_s else 0.0)
            for name, uses in self.used_s.items()
            for use, seconds in uses.items()
        ]


def run_cost(steps: Sequence[Figures], prices: PriceConfig) -> RunCost | None:
    """Sum the cost of steps, from their metrics. Returns None if no class has a price or no step
    has a cost in dollars."""
    counted = [figures for figures in steps if "cost/dollars" in figures]
    if not (prices.are_set and counted):
        return None
    uses = {
        name: {use: _sum(counted, f"cost/{name}_{use}_s") for use in (*USES, *LENT_USES, IDLE)}
        for name in prices.classes
    }
    dollars = {name: _sum(counted, f"cost/{name}_dollars") for name in prices.classes}
    return RunCost(
        num_steps=len(counted),
        seconds=_sum(counted, ADDED_SECONDS),
        trained_tokens=_sum(counted, TRAINED_TOKENS),
        dollars={name: spent for name, spent in dollars.items() if spent},
        used_s={
            # a use that only elastic workers' devices have is left out if it has no seconds
            name: {use: s for use, s in seconds.items() if s or use not in LENT_USES}
            for name, seconds in uses.items()
            if any(seconds.values())
        },
    )


def _sum(steps: Iterable[Figures], name: str) -> float:
    return sum(figures.get(name, 0.0) for figures in steps)
