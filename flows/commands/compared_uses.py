"""What `rollflow compare` says devices were held for, by price class. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from artifacts.reports.device_cost import IDLE, LENT_USES, USES

HELD = re.compile(r"cost/(.+)_worker_s")


def use_lines(name: str, metrics: Mapping[str, Mapping[int, float]]) -> list[str]:
    """A line for each class of devices of a run: how long they were held, and the share of each
    use. Nothing of a class whose uses are not told. metrics: values by step, by name."""
    classes = sorted(found[1] for metric in metrics if (found := HELD.fullmatch(metric)))
    lines = (_line(name, price_class, metrics) for price_class in classes)
    return [line for line in lines if line]


def _line(name: str, price_class: str, metrics: Mapping[str, Mapping[int, float]]) -> str:
    used_s = {
        use: sum(metrics.get(f"cost/{price_class}_{use}_s", {}).values())
        for use in (*USES, *LENT_USES, IDLE)
    }
    total_s = sum(used_s.values())
    if not total_s:
        return ""
    shares = [f"{seconds / total_s:.1%} {use}" for use, seconds in used_s.items() if seconds]
    return f"{name}: {price_class} devices were held for {total_s:,.0f} s: {', '.join(shares)}."
