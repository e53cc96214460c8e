"""What was held, for how long, for what use, and what it cost. Pure functions of records.

    Held (device, class, from, until) ─┐
    Span (device, kind, from, until) ──┴▶ seconds by class and use ─▶ dollars, tokens per dollar

At every moment a held device has exactly one use, so that the uses of a class sum to what was held
of it. Devices that the run starts and devices that come and go are the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from artifacts.prices import PriceConfig
from artifacts.records import Span
from artifacts.reports.timeline import Interval, clipped, difference, length, within

IDLE = "idle"
# what a device was held for by the kinds of its spans; of two at once the first counts
USES: Mapping[str, frozenset[str]] = {
    "training": frozenset({"train", "update"}),
    # a judge that scores a response generates, too
    "generating": frozenset({"rollout", "evaluate", "reward"}),
}
# besides what a device that was lent was held for: a version of the weights on its way there and
# into its engine; from the word that it leaves; until it held weights for the first time; from the
# last that is known of it until it was known to be gone
LENT_USES: Mapping[str, frozenset[str]] = {
    "transferring": frozenset({"transfer"}),
    "draining": frozenset({"drain"}),
    "starting": frozenset({"build"}),
    "lost": frozenset({"lost"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A device that was paid for, once however many processes worked on it."""

    device: str  # its name in the spans
    price_class: str
    start_s: float  # Unix seconds
    end_s: float  # Unix seconds
    is_lent: bool = False  # whether the run did not start it

    @property
    def uses(self) -> Mapping[str, frozenset[str]]:
        """What it may have been held for."""
        return {**USES, **LENT_USES} if self.is_lent else USES


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a run that a step pays for."""

    start_s: float  # Unix seconds
    end_s: float  # Unix seconds

    @property
    def duration_s(self) -> float:
        return max(0.0, self.end_s - self.start_s)


def used_seconds(
    held: Iterable[Held], spans: Sequence[Span], window: Window
) -> dict[str, dict[str, float]]:
    """Device seconds in the window by class, then by use, `IDLE` among them."""
    seconds: dict[str, dict[str, float]] = {}
    for holding in held:
        of_class = seconds.setdefault(holding.price_class, {})
        for use, used_s in _used(holding, spans, window).items():
            of_class[use] = of_class.get(use, 0.0) + used_s
    return seconds


def _used(holding: Held, spans: Sequence[Span], window: Window) -> dict[str, float]:
    """Seconds of one device by use; a moment counts for the first use that it was part of."""
    seconds: dict[str, float] = {}
    left = _in_window([holding], window)
    for use, kinds in holding.uses.items():
        own = (span for span in spans if span.device == holding.device and span.kind in kinds)
        rest = difference(left, clipped(own, window.start_s, window.end_s))
        seconds[use] = length(left) - length(rest)
        left = rest
    return seconds | {IDLE: length(left)}


def held_seconds(held: Iterable[Held], window: Window) -> dict[str, float]:
    """Device seconds in the window by class."""
    seconds: dict[str, float] = {}
    for holding in held:
        before_s = seconds.get(holding.price_class, 0.0)
        seconds[holding.price_class] = before_s + length(_in_window([holding], window))
    return seconds


def cost_figures(
    held_s: Mapping[str, float], trained_tokens: float, window: Window, prices: PriceConfig
) -> dict[str, float]:
    """The cost of a step under the names of metrics; dollars only where prices are set.

    held_s: device seconds by class. The tokens are those that were trained, so that what is
    generated for nothing costs.
    """
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
    """Device seconds by class and use under the names of metrics."""
    return {
        f"cost/{name}_{use}_s": seconds
        for name, uses in used_s.items()
        for use, seconds in uses.items()
    }


def _in_window(held: Iterable[Held], window: Window) -> list[Interval]:
    times = ((holding.start_s, holding.end_s) for holding in held)
    inside = within(times, window.start_s, window.end_s)
    return [(start_s, end_s) for start_s, end_s in inside if end_s > start_s]
