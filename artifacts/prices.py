"""Prices of a device-hour by price class, and the gain in tokens per dollar by cheap devices.

prices:
  own_class: reserved
  classes: {reserved: 10.47, spot: 2.66}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from artifacts.config_parts import FrozenConfig

HOUR_S = 3600.0
CLASS_NAME = re.compile(r"[a-z][a-z0-9-]*")  # it becomes part of the names of metrics


class PriceConfig(FrozenConfig):
    """The price classes of a run's devices."""

    classes: Mapping[str, float] = Field(
        default_factory=dict,
        description="Dollars per device-hour by price class; empty counts seconds and no dollars.",
    )
    own_class: str = Field(
        "reserved", description="Price class of the devices that the run itself starts."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, dollars in self.classes.items():
            _check_name(name)
            if not 0 <= dollars < float("inf"):
                raise ValueError(
                    f"prices.classes.{name} must be a finite price >= 0 in dollars per device-hour,"
                    f" got {dollars}; correct it"
                )
        _check_name(self.own_class)
        if self.are_set:
            self.dollars_per_s(self.own_class)
        return self

    @property
    def are_set(self) -> bool:
        """True if any class has a price."""
        return bool(self.classes)

    def dollars_per_s(self, price_class: str) -> float:
        """Dollars for a second of one device. Raises ValueError for a class without a price."""
        if price_class not in self.classes:
            known = ", ".join(self.classes) or "none"
            raise ValueError(
                f"a price class must be one of prices.classes ({known}), got {price_class!r}; add"
                f" prices.classes.{price_class}, or name another"
            )
        return self.classes[price_class] / HOUR_S


def gain(throughput_ratio: float, cost_ratio: float) -> float:
    """Tokens per dollar divided by those of a baseline (RLBoost, section 6): R / (1 + N * c / C).
    throughput_ratio: R. cost_ratio: dollars an hour divided by the baseline's, 1 + N * c / C for N
    helpers at c dollars an hour each beside the baseline's own machine at C dollars an hour."""
    return throughput_ratio / cost_ratio


def _check_name(price_class: str) -> None:
    if not CLASS_NAME.fullmatch(price_class):
        raise ValueError(
            "the name of a price class must be lower-case letters, digits and dashes, got"
            f" {price_class!r}; rename it"
        )
